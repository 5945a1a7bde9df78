//! Every map: its size, who writes it, who reads it. And the constants that user space sets before loading.

use aya_ebpf::{
    macros::map,
    maps::{Array, HashMap, PerCpuArray, RingBuf},
};
use profiler_common::{
    config::{TaskOffsets, user_regs},
    counters,
    python::{
        CODE_BYTES_MAX, FRAME_BYTES_MAX, PythonLayout, THREAD_STATES_MAX, ThreadKey, ThreadState,
    },
    sample::{KERNEL_FRAMES_MAX, SampleHeader, USER_WORDS_MAX},
    target::TargetTables,
    unwind_row::{Chunk, Page, ProcessMappings, UnwindRule},
};

/// `BPF_F_MMAPABLE`: user space writes these arrays with plain stores.
const MMAPABLE: u32 = 1 << 10;

/// Unwind rows. Written by user space (`unwind/table.rs`), read by `walk`. Sized at load.
#[map]
pub(crate) static ROWS: Array<Chunk> = Array::with_max_entries(16, MMAPABLE);

/// Where each page of text has its rows. Written by user space, read by `walk`. Sized at load.
#[map]
pub(crate) static PAGES: Array<Page> = Array::with_max_entries(16384, MMAPABLE);

/// Interned unwind rules. Written by user space, read by `walk`.
#[map]
pub(crate) static RULES: Array<UnwindRule> = Array::with_max_entries(65536, MMAPABLE);

/// Mappings of targets; processes that have the same ones share a slot, and a forked child has its parent's. Written by
/// user space, read by `walk`. Sized at load.
#[map]
pub(crate) static PROCESS_MAPPINGS: Array<ProcessMappings> = Array::with_max_entries(64, MMAPABLE);

/// Where interpreters keep their frames; processes in which that is the same share an entry. Written by user space, read by
/// `python`. Sized at load.
#[map]
pub(crate) static PYTHON_LAYOUTS: Array<PythonLayout> = Array::with_max_entries(64, MMAPABLE);

/// Thread group id to its places in [`PROCESS_MAPPINGS`] and [`PYTHON_LAYOUTS`]: every process in it is a target. Written by
/// user space and by `follow`, which adds children, and removes a process before its pid can be another's. Preallocated,
/// as perf-event programs need before Linux 6.1. Sized at load.
#[map]
pub(crate) static PROCESSES: HashMap<u32, TargetTables> = HashMap::with_max_entries(4096, 0);

/// Samples, read by `kernel/ring.rs` in user space.
#[map]
pub(crate) static SAMPLES: RingBuf = RingBuf::with_byte_size(8 << 20, 0);

/// See [`profiler_common::counters`].
#[map]
pub(crate) static COUNTERS: PerCpuArray<u64> = PerCpuArray::with_max_entries(counters::COUNT, 0);

/// The sample being made on this CPU. A per-CPU value may not be larger than 32 KiB (`PCPU_MIN_UNIT_SIZE`).
#[map]
static STATE: PerCpuArray<State> = PerCpuArray::with_max_entries(1, 0);

/// Rules found lately on this CPU. The same few return addresses stand in most stacks of a process.
#[map]
static RULE_CACHE: PerCpuArray<[CachedRule; RULE_CACHE_ENTRIES]> =
    PerCpuArray::with_max_entries(1, 0);

/// Entries of [`RULE_CACHE`]; a power of two.
const RULE_CACHE_ENTRIES: usize = 512;

/// The rule of a return address, as long as the process has the mappings of that generation.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct CachedRule {
    pub(crate) at: u64,
    pub(crate) generation: u64,
    pub(crate) rule: UnwindRule,
}

/// The place in [`RULE_CACHE`] for an address.
#[inline(always)]
pub(crate) fn cached_rule(at: u64) -> Option<*mut CachedRule> {
    let cache = RULE_CACHE.get_ptr_mut(0)?;
    // Fibonacci hashing: the upper bits of the product depend on all bits of the address.
    let hash = at.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let index = (hash >> (64 - RULE_CACHE_ENTRIES.trailing_zeros())) as usize;
    // SAFETY: the mask leaves an index below the number of entries.
    Some(unsafe { &raw mut (*cache)[index & (RULE_CACHE_ENTRIES - 1)] })
}

/// One of [`user_regs`].
#[unsafe(no_mangle)]
pub(crate) static USER_REGS: u8 = user_regs::HELPER;
/// Offset of `stack` in `task_struct`.
#[unsafe(no_mangle)]
pub(crate) static TASK_STACK_OFFSET: u32 = 0;
/// Bytes between `task->stack` and the saved user registers.
#[unsafe(no_mangle)]
pub(crate) static TASK_REGS_OFFSET: u32 = 0;
/// 1 to record kernel stacks.
#[unsafe(no_mangle)]
pub(crate) static KERNEL_STACKS: u8 = 0;
/// Device of pyprof-bpf's pid namespace, 0 for the initial one.
#[unsafe(no_mangle)]
pub(crate) static PID_NS_DEV: u64 = 0;
/// Inode of the same.
#[unsafe(no_mangle)]
pub(crate) static PID_NS_INO: u64 = 0;

/// Where the kernel keeps what `follow` needs.
#[unsafe(no_mangle)]
pub(crate) static TASK_OFFSETS: TaskOffsets = TaskOffsets {
    task_tgid: 0,
    task_thread_pid: 0,
    task_signal: 0,
    task_runtime: 0,
    signal_live: 0,
    signal_runtime: 0,
    pid_level: 0,
    pid_numbers: 0,
    binprm_p: 0,
    namespace_inum: 0,
    task_thread_pointer: 0,
};
/// 1 to make children of targets targets.
#[unsafe(no_mangle)]
pub(crate) static FOLLOW_FORKS: u8 = 0;
/// 1 to tell of every `exec` on the machine.
#[unsafe(no_mangle)]
pub(crate) static TELL_ALL_EXECS: u8 = 0;

/// Words behind the header: interpreter frames and native ones, kernel frames, and as much of a copied stack as they
/// leave room for: all of it, unless more than a hundred interpreter frames stand before it.
pub(crate) const WORDS: usize = 3840;

const _: () = assert!(USER_WORDS_MAX + KERNEL_FRAMES_MAX + 1 <= WORDS);

/// The sample being made. `header` and `words` are what is sent.
#[repr(C)]
pub(crate) struct State {
    pub(crate) header: SampleHeader,
    pub(crate) words: [u64; WORDS],
    pub(crate) ip: u64,
    pub(crate) sp: u64,
    /// `rbp`, or where it lies when `bp_in_memory` is not 0: most walks never need its value.
    pub(crate) bp: u64,
    pub(crate) bp_in_memory: u64,
    /// What the last frames saved, in a ring: looked at only when a rule needs such a register.
    pub(crate) recent: [Recent; RECENT_FRAMES],
    /// Frames in that ring since the walk began.
    pub(crate) recent_count: u64,
    /// What `walk::find_saved` found.
    pub(crate) found: u64,
    /// The frame at `ip` is the interrupted one: 1, else 0.
    pub(crate) leaf: u64,
    /// Address of the `ucontext` of the signal frame just passed; 0: the leaf's registers are in `leaf_registers`.
    pub(crate) ucontext: u64,
    /// Native frames so far.
    pub(crate) depth: u64,
    /// Words in use.
    pub(crate) used: u64,
    /// The interrupted frame's registers by DWARF number.
    pub(crate) leaf_registers: [u64; 16],
    /// A piece of the user stack, read at once: most frames are small, and the next ones are in it already.
    pub(crate) window: [u64; WINDOW_WORDS],
    /// Where it begins; 0 when it holds nothing.
    pub(crate) window_begin: u64,
    /// The mapping of the frame before, which is often this one's: begin, end, index.
    pub(crate) mapping_begin: u64,
    pub(crate) mapping_end: u64,
    pub(crate) mapping_index: u64,
    /// The innermost activations of the interpreter's loop that the walk met.
    pub(crate) loops: Loops,
    /// What `python` keeps.
    pub(crate) python: PythonState,
}

/// The innermost activations of the interpreter's loop on the native stack.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Loops {
    /// How many the walk met.
    pub(crate) count: u64,
    /// The innermost one is the interrupted function itself: 1, else 0.
    pub(crate) interrupted: u64,
    /// Where its part of the stack begins and ends.
    pub(crate) sp: u64,
    pub(crate) cfa: u64,
    /// The same of the next one; 0: there is none.
    pub(crate) outer_sp: u64,
    pub(crate) outer_cfa: u64,
}

/// Reading the interpreter's frames.
#[repr(C)]
pub(crate) struct PythonState {
    /// Of this process.
    pub(crate) layout: PythonLayout,
    /// `pthread_self()` of the interrupted thread.
    pub(crate) thread_pointer: u64,
    /// States of this thread that were found.
    pub(crate) states: [u64; THREAD_STATES_MAX],
    pub(crate) state_count: u64,
    /// One that has no frame.
    pub(crate) idle_state: u64,
    /// While looking for them: the interpreter, its thread that comes next, and whether it is the only one.
    pub(crate) interpreter: u64,
    pub(crate) candidate: u64,
    pub(crate) is_only: u64,
    /// The state whose frames are read.
    pub(crate) thread: u64,
    /// The frame that comes next, and its `_PyCFrame`.
    pub(crate) frame: u64,
    pub(crate) cframe: u64,
    /// What the first `_PyCFrame` has as the one before it.
    pub(crate) cframe_previous: u64,
    /// It may not be filled yet, and no entry of its activation has shown that it is: 1, else 0.
    pub(crate) is_doubtful: u64,
    /// It is not filled: 1, else 0.
    pub(crate) is_empty: u64,
    /// Words that were in use before the interpreter's first one, and before the first of this state.
    pub(crate) list_begin: u64,
    pub(crate) state_begin: u64,
    /// The code object of the frame before, and its identity: in a recursion, all have the same.
    pub(crate) code: u64,
    pub(crate) identity: u64,
    /// While it is computed.
    pub(crate) hash: u64,
    /// A code object that user space may not know is in this sample.
    pub(crate) has_news: u64,
    /// A piece of memory that holds the frame, and those that it was called from: since 3.11 they lie one behind the other.
    pub(crate) window: [u64; FRAME_WINDOW_WORDS],
    /// Where it begins; 0 when it holds nothing.
    pub(crate) window_begin: u64,
    /// Which of its words is the frame's first.
    pub(crate) frame_at: u64,
    pub(crate) code_words: [u64; CODE_WORDS],
}

/// Words that are read at once, of which frames are looked up; a power of two.
pub(crate) const FRAME_WINDOW_WORDS: usize = 64;

const _: () = assert!(FRAME_BYTES_MAX <= 8 * FRAME_WINDOW_WORDS);
/// Room for the words read of a code object; a power of two.
pub(crate) const CODE_WORDS: usize = (CODE_BYTES_MAX / 8).next_power_of_two();

/// Threads whose state is known, so that it need not be looked for in each sample. Written by user space when it begins
/// with a process, and by `python`; `follow` takes out those that end. Sized at load.
#[map]
pub(crate) static THREADS: HashMap<ThreadKey, ThreadState> = HashMap::with_max_entries(16384, 0);

/// Code objects that were sent lately, by a hash of address and identity. User space is woken for any other: it must
/// read what they are called before they are gone.
#[map]
static KNOWN_CODE: Array<[u32; KNOWN_CODE_ENTRIES]> = Array::with_max_entries(1, 0);

/// A power of two.
const KNOWN_CODE_ENTRIES: usize = 16384;

/// The place in [`KNOWN_CODE`] for a hash.
#[inline(always)]
pub(crate) fn known_code(hash: u32) -> Option<*mut u32> {
    let known = KNOWN_CODE.get_ptr_mut(0)?;
    // SAFETY: the mask leaves an index below the number of entries.
    Some(unsafe { &raw mut (*known)[hash as usize & (KNOWN_CODE_ENTRIES - 1)] })
}

const _: () = assert!(size_of::<State>() <= 32768);

/// Frames whose saved registers are remembered; a power of two. A register that an older frame saved is not known any
/// more: code that computes its frame from one is called directly by the frame that saved it.
pub(crate) const RECENT_FRAMES: usize = 16;

/// Words of the user stack that are read at once; a power of two.
pub(crate) const WINDOW_WORDS: usize = 32;

/// What a frame saved: the first word of its rule, and its CFA (for a signal frame: its `ucontext`).
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Recent {
    pub(crate) rule: u64,
    pub(crate) cfa: u64,
}

/// This CPU's [`State`].
#[inline(always)]
pub(crate) fn state() -> Option<*mut State> {
    STATE.get_ptr_mut(0)
}

/// Adds to a counter of this CPU.
#[inline(always)]
pub(crate) fn add(counter: u32, value: u64) {
    if let Some(slot) = COUNTERS.get_ptr_mut(counter) {
        // SAFETY: the pointer is to this CPU's own slot, which no other program run can interrupt (bpf_prog_active).
        unsafe { *slot += value };
    }
}

/// Counts one.
#[inline(always)]
pub(crate) fn count(counter: u32) {
    add(counter, 1);
}

/// Reads a constant that user space may have set before loading: the compiler must not fold the value written here.
macro_rules! global {
    ($name:ident) => {{
        // SAFETY: a frozen global of this object, valid for the program's life.
        unsafe { core::ptr::read_volatile(&raw const $crate::maps::$name) }
    }};
}
pub(crate) use global;
