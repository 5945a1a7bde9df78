//! What scenes are made of.

use std::{
    collections::HashMap,
    env, fs,
    os::{fd::AsRawFd as _, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    process::{self, Command},
};

use pyprof_trampoline::PerfMap;

/// A sentence about the writer, and how it is shown.
pub(crate) type Scene = (&'static str, fn() -> Verdict);
/// A scene that cannot be played here says why.
pub(crate) type Verdict = Result<(), Skip>;

pub(crate) struct Skip(pub(crate) String);

/// The variable that names the scene to be played.
pub(crate) const SCENE: &str = "TEST_WRITER_SCENE";
/// The exit code of a scene that was not played.
pub(crate) const SKIPPED: i32 = 77;

pub(crate) fn map() -> &'static PerfMap {
    PerfMap::of_this_process()
}

pub(crate) fn path() -> PathBuf {
    PerfMap::path()
}

/// What is in this process's map.
pub(crate) fn text() -> String {
    text_of(process::id())
}

/// What is in another one's.
pub(crate) fn text_of(pid: u32) -> String {
    fs::read_to_string(format!("/tmp/perf-{pid}.map")).unwrap()
}

/// Writes an entry that can be told from others.
pub(crate) fn write(n: usize, name: &str) {
    map().write_entry(n, 16, name.as_bytes()).unwrap();
}

/// Descriptors of this process that lead to a path.
pub(crate) fn descriptors_of(path: &Path) -> Vec<i32> {
    fs::read_dir("/proc/self/fd")
        .unwrap()
        .filter_map(Result::ok)
        .filter(|entry| fs::read_link(entry.path()).is_ok_and(|link| link == path))
        .map(|entry| entry.file_name().to_str().unwrap().parse().unwrap())
        .collect()
}

/// Gives this process a `/tmp` of its own, which vanishes with it. To be called while there is one thread only.
pub(crate) fn own_tmp(options: &str) -> Verdict {
    let skip = |what: &str, err: std::io::Error| {
        Skip(format!(
            "this process cannot have a /tmp of its own: {what}: {err}"
        ))
    };
    // SAFETY: asks for a number.
    let uid = unsafe { libc::geteuid() };
    // SAFETY: asks for a number.
    let gid = unsafe { libc::getegid() };
    let spaces = if uid == 0 {
        libc::CLONE_NEWNS
    } else {
        libc::CLONE_NEWNS | libc::CLONE_NEWUSER
    };
    // SAFETY: changes what this process sees of the system, no memory.
    if unsafe { libc::unshare(spaces) } != 0 {
        return Err(skip("unshare", std::io::Error::last_os_error()));
    }
    if uid != 0 {
        for (file, text) in [
            ("uid_map", format!("{uid} {uid} 1")),
            ("setgroups", "deny".to_owned()),
            ("gid_map", format!("{gid} {gid} 1")),
        ] {
            fs::write(format!("/proc/self/{file}"), text).map_err(|err| skip(file, err))?;
        }
    }
    let mount = |kind: &std::ffi::CStr, place: &std::ffi::CStr, flags, options: &str| {
        let options = std::ffi::CString::new(options).unwrap();
        // SAFETY: strings that live through the call.
        let done = unsafe {
            libc::mount(
                kind.as_ptr(),
                place.as_ptr(),
                kind.as_ptr(),
                flags,
                options.as_ptr().cast(),
            )
        };
        if done == 0 {
            Ok(())
        } else {
            Err(skip("mount", std::io::Error::last_os_error()))
        }
    };
    mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE, "")?;
    // This repository and what is built of it stay where they are, should they be below /tmp themselves.
    let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let built = Path::new(env!("CARGO_TARGET_TMPDIR")).join("..");
    let folders = [repository, built].map(|folder| {
        let folder = fs::canonicalize(folder).unwrap();
        let handle = fs::File::open(&folder).unwrap();
        (folder, handle)
    });
    mount(c"tmpfs", c"/tmp", 0, options)?;
    for (folder, handle) in folders {
        if folder.starts_with("/tmp") {
            fs::create_dir_all(&folder).map_err(|err| skip("mkdir", err))?;
            let source = format!("/proc/self/fd/{}", handle.as_raw_fd());
            bind(&source, &folder).map_err(|err| skip("bind", err))?;
        }
    }
    Ok(())
}

/// Shows a folder at another path.
fn bind(source: &str, target: &Path) -> std::io::Result<()> {
    let source = std::ffi::CString::new(source)?;
    let target = std::ffi::CString::new(target.as_os_str().as_bytes())?;
    // SAFETY: strings that live through the call.
    let done = unsafe {
        libc::mount(
            source.as_ptr(),
            target.as_ptr(),
            std::ptr::null(),
            libc::MS_BIND,
            std::ptr::null(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// For scenes that play as well in everybody's `/tmp`.
pub(crate) fn own_tmp_if_possible() {
    if let Err(Skip(why)) = own_tmp("size=1g") {
        eprintln!("{why}");
    }
}

/// Needed for some scenes.
pub(crate) fn root() -> Verdict {
    // SAFETY: asks for a number.
    if unsafe { libc::geteuid() } == 0 {
        Ok(())
    } else {
        Err(Skip("only root can make such a file".to_owned()))
    }
}

/// This program, to play a part in another process.
pub(crate) fn part(name: &str) -> Command {
    let mut command = Command::new(env::current_exe().unwrap());
    command.env(SCENE, name);
    command
}

/// A forked child that has done its work.
pub(crate) struct Child {
    pub(crate) pid: u32,
    pub(crate) went_well: bool,
}

impl Child {
    /// Its perf map, which is removed.
    pub(crate) fn map(&self) -> Option<String> {
        let path = format!("/tmp/perf-{}.map", self.pid);
        let text = fs::read_to_string(&path).ok();
        let _ = fs::remove_file(path);
        text
    }
}

/// Forks. The child does `work` and ends without what `exit` does.
pub(crate) fn fork(work: impl FnOnce()) -> Child {
    // SAFETY: the child calls nothing that another thread may have locked, but for the allocator, which the C library
    // makes usable in it.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid == 0 {
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        // SAFETY: ends the process.
        unsafe { libc::_exit(i32::from(done.is_err())) };
    }
    wait(pid)
}

/// Waits for a child to end.
pub(crate) fn wait(pid: i32) -> Child {
    let mut status = 0;
    // SAFETY: a variable that outlives the call.
    while unsafe { libc::waitpid(pid, &raw mut status, 0) } < 0 {
        let err = std::io::Error::last_os_error();
        assert_eq!(err.kind(), std::io::ErrorKind::Interrupted, "{err}");
    }
    Child {
        pid: pid.cast_unsigned(),
        went_well: status == 0,
    }
}

/// Lengths of names, so that lines end anywhere in a page, and some are longer than one.
pub(crate) fn length_of(writer: usize, n: usize) -> usize {
    match (writer * 31 + n) % 1000 {
        0 => 20_000,
        1..=5 => 4_000 + n % 200,
        _ => (writer * 7 + n * 13) % 180,
    }
}

/// The entry number `n` of a writer: address and name say which it is.
pub(crate) fn entry(writer: usize, n: usize) -> (usize, String) {
    let filling = "x".repeat(length_of(writer, n));
    (writer << 32 | n, format!("w{writer}_{n}_{filling}_end"))
}

/// The line that it must give, without the end.
pub(crate) fn line_of(writer: usize, n: usize) -> String {
    let (address, name) = entry(writer, n);
    format!("{address:x} 10 {name}")
}

/// Writes that entry.
pub(crate) fn write_numbered(
    writer: usize,
    n: usize,
) -> Result<(), pyprof_trampoline::PerfMapError> {
    let (address, name) = entry(writer, n);
    map().write_entry(address, 16, name.as_bytes())
}

/// Counts the entries made by [`entry`].
#[derive(Default)]
pub(crate) struct Checker {
    /// How many lines there were of each.
    seen: HashMap<(usize, usize), usize>,
}

impl Checker {
    /// Takes in whole lines; panics at one that is not an entry as it was written.
    pub(crate) fn read(&mut self, lines: &str) {
        for line in lines.lines() {
            let address = line.split(' ').next().unwrap();
            let address = usize::from_str_radix(address, 16).unwrap_or_else(|_| torn(line));
            let (writer, n) = (address >> 32, address & 0xffff_ffff);
            if line != line_of(writer, n) {
                torn(line);
            }
            *self.seen.entry((writer, n)).or_default() += 1;
        }
    }

    /// Each of so many entries of so many writers came once.
    pub(crate) fn assert_complete(&self, writers: usize, entries: usize) {
        assert_eq!(self.seen.len(), writers * entries, "entries were lost");
        assert!(
            self.seen.values().all(|count| *count == 1),
            "some came twice"
        );
        let known = |(writer, n): &(usize, usize)| *writer < writers && *n < entries;
        assert!(self.seen.keys().all(known));
    }
}

fn torn(line: &str) -> ! {
    panic!("not an entry: {:?}", &line[..line.len().min(300)]);
}
