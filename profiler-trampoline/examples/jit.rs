//! A just-in-time compiler as small as one can be: how generated code gets its names in a native profiler.
//!
//! ```console
//! $ cargo build --release --package profiler-trampoline --example jit
//! $ target/release/examples/jit --seconds 30 &
//! $ sudo pyprof-bpf --pid $! -d 3
//! $ perf record -g -e cpu-clock -p $! sleep 3; perf report --stdio
//! $ samply record target/release/examples/jit --seconds 5
//! ```
//!
//! A program of your own names the crate so in its `Cargo.toml`, and says `use pyprof_trampoline::PerfMap`:
//!
//! ```toml
//! [dependencies]
//! profiler-trampoline = { path = "../pyprof-bpf/profiler-trampoline" }
//! ```
//!
//! Three functions are made at run time. `jit::outer` calls `jit::inner` three times and `jit::leaf2` once, and these
//! two spin equally long in each call: of the time, three quarters are `jit::inner` and one is `jit::leaf2`. Each
//! function begins as a C compiler's do with `-fno-omit-frame-pointer`, so that a walk by frame pointers finds the
//! caller.

#![expect(clippy::print_stdout, reason = "an example may talk")]

use std::{
    env,
    error::Error,
    ptr,
    time::{Duration, Instant},
};

use pyprof_trampoline::PerfMap;

/// How often a leaf goes round in one call.
const ROUNDS: u32 = 200_000;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = env::args().skip(1);
    let seconds = match (arguments.next().as_deref(), arguments.next()) {
        (None, _) => 10.0,
        (Some("--seconds"), Some(number)) => number.parse()?,
        _ => return Err("usage: jit [--seconds NUMBER]".into()),
    };
    if !cfg!(target_arch = "x86_64") {
        return Err("this example makes code for x86-64 only".into());
    }

    let mut code = Code::default();
    let inner = code.function(&[Part::Spin(ROUNDS)]);
    let leaf2 = code.function(&[Part::Spin(ROUNDS)]);
    let outer = code.function(&[
        Part::Call(inner),
        Part::Call(inner),
        Part::Call(inner),
        Part::Call(leaf2),
    ]);
    let memory = code.seal()?;

    // Names come before the code runs for the first time: a sample may come at any moment after.
    let map = PerfMap::of_this_process();
    for (name, function) in [
        ("jit::inner", inner),
        ("jit::leaf2", leaf2),
        ("jit::outer", outer),
    ] {
        map.write_entry(memory + function.start, function.size, name.as_bytes())?;
    }

    // SAFETY: the code was made for this signature, and its memory is never unmapped.
    let run = unsafe {
        std::mem::transmute::<*const (), extern "C" fn()>(ptr::with_exposed_provenance(
            memory + outer.start,
        ))
    };
    println!("ready");
    let end = Instant::now() + Duration::from_secs_f64(seconds);
    while Instant::now() < end {
        run();
    }
    // The map stays: whoever has recorded reads it afterwards.
    map.fini();
    Ok(())
}

/// Machine code that is being made.
#[derive(Default)]
struct Code {
    bytes: Vec<u8>,
}

/// Where a function lies in it.
#[derive(Clone, Copy)]
struct Function {
    start: usize,
    size: usize,
}

/// What a function does.
enum Part {
    /// Counts down from a number.
    Spin(u32),
    Call(Function),
}

impl Code {
    /// Adds a function of these parts.
    fn function(&mut self, parts: &[Part]) -> Function {
        self.bytes
            .resize(self.bytes.len().next_multiple_of(16), 0xcc); // int3
        let start = self.bytes.len();
        self.bytes.extend([0x55]); // push rbp
        self.bytes.extend([0x48, 0x89, 0xe5]); // mov rbp, rsp
        for part in parts {
            match part {
                Part::Spin(rounds) => {
                    self.bytes.push(0xb9); // mov ecx, rounds
                    self.bytes.extend(rounds.to_le_bytes());
                    self.bytes.extend([0xff, 0xc9]); // dec ecx
                    self.bytes.extend([0x75, 0xfc]); // jnz to the dec
                }
                Part::Call(callee) => {
                    self.bytes.push(0xe8); // call, relative to what follows
                    let next = self.bytes.len() + 4;
                    let distance = callee.start as i32 - next as i32;
                    self.bytes.extend(distance.to_le_bytes());
                }
            }
        }
        self.bytes.extend([0x5d, 0xc3]); // pop rbp; ret
        Function {
            start,
            size: self.bytes.len() - start,
        }
    }

    /// Puts the code into memory of its own, which can be run and no longer written. Gives its address.
    fn seal(&self) -> std::io::Result<usize> {
        // SAFETY: an address that the kernel chooses overlaps nothing.
        let memory = unsafe {
            libc::mmap(
                ptr::null_mut(),
                self.bytes.len(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        if memory == libc::MAP_FAILED {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: the memory is ours alone, and as large as this.
        unsafe {
            ptr::copy_nonoverlapping(self.bytes.as_ptr(), memory.cast::<u8>(), self.bytes.len());
        }
        // SAFETY: as above; there are no references into it.
        let done =
            unsafe { libc::mprotect(memory, self.bytes.len(), libc::PROT_READ | libc::PROT_EXEC) };
        if done != 0 {
            return Err(std::io::Error::last_os_error());
        }
        Ok(memory.expose_provenance())
    }
}
