//! Is a pid something that can be profiled, and what is it?

use std::{
    ffi::OsString,
    fmt,
    fs::{self, File},
    io::{self, Read},
    os::{
        fd::{AsFd, BorrowedFd, OwnedFd},
        unix::ffi::OsStringExt,
    },
    path::PathBuf,
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use rustix::{
    event::{PollFd, PollFlags, Timespec},
    io::Errno,
    process::PidfdFlags,
};

use crate::model::Pid;

use super::{
    first_thread::{self, proc_folder, running_thread},
    label,
    launch::HELPER,
    status::{Stat, Status},
};

/// Bytes of a command line that are read; the rest is of no use to anyone.
const COMMAND_LINE_BYTES_MAX: u64 = 64 << 10;
/// Bytes of a status that are read: a process may be in 65,536 groups, which stand before its pids.
const STATUS_BYTES_MAX: u64 = 1 << 20;

/// Forks between a process and its last `exec` that are looked at.
const ANCESTORS_MAX: usize = 16;

/// A process that can be profiled: it exists, has memory, and may be read.
///
/// Keeps a handle of the process (pidfd), so that a later process with the same pid is not taken for it. All facts were
/// read while the process held by the handle was alive.
#[derive(Debug)]
pub struct Target {
    /// Its pid, in our pid namespace.
    pub pid: Pid,
    /// Its pid in its own, innermost pid namespace: what it calls itself, and its perf map.
    pub ns_pid: u32,
    /// Real user id of its owner.
    pub uid: u32,
    /// User and group id with which it makes and opens files.
    pub file_ids: (u32, u32),
    /// Its short name: at most 15 bytes, any bytes replaced that are no text.
    pub comm: String,
    /// Its arguments as it may have changed them since, the program's name first; possibly none.
    pub arguments: Vec<OsString>,
    /// The program it runs, in the mount namespace of the reader; `None` where it cannot be read.
    pub exe: Option<PathBuf>,
    /// Its first thread, whose number is its pid, has ended; others run.
    pub first_thread_has_ended: bool,
    /// When it started, in clock ticks (1/100 s) since boot: with the pid, tells it from all others.
    pub start_ticks: u64,
    pidfd: OwnedFd,
    cpu_time_ns: AtomicU64,
}

/// Why a pid cannot be profiled. Displayed as what is the case, and what to do next.
#[derive(Debug)]
pub enum TargetError {
    /// There is none.
    NoSuchProcess {
        /// What was asked for.
        pid: Pid,
    },
    /// It is a thread of a process.
    Thread {
        /// What was asked for.
        pid: Pid,
        /// The process it belongs to.
        process: Pid,
        /// The thread's name, raw.
        comm: String,
    },
    /// It is part of the kernel.
    KernelThread {
        /// What was asked for.
        pid: Pid,
        /// Its name, raw.
        comm: String,
    },
    /// It has exited already, with all its threads.
    Zombie {
        /// What was asked for.
        pid: Pid,
        /// Its name, raw.
        comm: String,
        /// Its parent.
        parent: Pid,
    },
    /// It is pyprof-bpf.
    Ourselves {
        /// What was asked for.
        pid: Pid,
    },
    /// We may not look into it.
    NotPermitted {
        /// What was asked for.
        pid: Pid,
        /// Whose it is, ` of user 1000`, where that is known.
        owner: String,
    },
    /// `/proc` did not work as it should.
    Proc {
        /// The file.
        path: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl TargetError {
    /// What is the case.
    pub fn finding(&self) -> String {
        match self {
            Self::NoSuchProcess { pid } => format!("there is no process {pid}"),
            Self::Thread { pid, process, comm } => format!(
                "{pid} is a thread of process {process} ({})",
                comm.escape_debug()
            ),
            Self::KernelThread { pid, comm } => format!(
                "{pid} ({}) is a kernel thread, it runs no Python",
                comm.escape_debug()
            ),
            Self::Zombie { pid, comm, parent } => format!(
                "process {pid} ({}) has exited and waits for its parent {parent} to notice",
                comm.escape_debug()
            ),
            Self::Ourselves { pid } => format!("{pid} is pyprof-bpf itself"),
            Self::NotPermitted { pid, owner } => {
                format!("not allowed to look into process {pid}{owner}")
            }
            Self::Proc { path, source } => format!("cannot read {path}: {source}"),
        }
    }

    /// What to do about it.
    pub fn next_step(&self) -> String {
        match self {
            Self::NoSuchProcess { .. } => {
                "it may have exited; `pgrep -af python` lists what runs".to_owned()
            }
            Self::Thread { process, .. } => {
                format!("use {process}, all its threads are profiled")
            }
            Self::KernelThread { .. } | Self::Ourselves { .. } => {
                "choose the pid of a Python process".to_owned()
            }
            Self::Zombie { .. } => "choose a process that runs".to_owned(),
            Self::NotPermitted { .. } => more_rights().to_owned(),
            Self::Proc { source, .. } => match source.raw_os_error().map(Errno::from_raw_os_error) {
                Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM) => {
                    "close files or end programs, or raise the limits (`ulimit -n`)".to_owned()
                }
                _ => {
                    "pyprof-bpf needs a /proc of its own pid namespace (`mount -t proc proc /proc`)"
                        .to_owned()
                }
            },
        }
    }
}

impl fmt::Display for TargetError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.finding(), self.next_step())
    }
}

impl std::error::Error for TargetError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Proc { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl Target {
    /// Checks a pid, and collects what is to be known of the process.
    ///
    /// Needs the right to read it (`PTRACE_MODE_READ`): the same user and a process that may dump core, or
    /// CAP_SYS_PTRACE. Yama has no say in it: `yama_ptrace_access_check` (security/yama/yama_lsm.c, Linux 6.12) looks at
    /// `PTRACE_MODE_ATTACH` only. Needs Linux 5.3 (`pidfd_open`).
    pub fn check(pid: Pid) -> Result<Self, TargetError> {
        if pid.0 == std::process::id() {
            return Err(TargetError::Ourselves { pid });
        }
        let status = read_status(pid)?;
        let stat = Stat::parse(&read(pid, "stat")?).ok_or_else(|| unreadable(pid, "stat"))?;
        if status.tgid == std::process::id() {
            return Err(TargetError::Ourselves { pid });
        }
        if status.tgid != pid.0 {
            return Err(TargetError::Thread {
                pid,
                process: Pid(status.tgid),
                comm: stat.comm,
            });
        }
        if stat.is_kernel_thread() {
            return Err(TargetError::KernelThread {
                pid,
                comm: stat.comm,
            });
        }
        if first_thread::has_exited(pid, &stat) {
            return Err(TargetError::Zombie {
                pid,
                comm: stat.comm,
                parent: Pid(stat.parent),
            });
        }
        let pidfd = raw_pid(pid)
            .ok_or(Errno::SRCH)
            .and_then(|raw| rustix::process::pidfd_open(raw, PidfdFlags::empty()))
            .map_err(|error| refused(pid, &status, "pidfd_open", error.into()))?;
        // The check is made when the file is opened.
        let folder = proc_folder(pid);
        let within = |file: &str| format!("{folder}/{file}");
        File::open(within("maps")).map_err(|source| refused(pid, &status, "maps", source))?;
        // Its files are behind that, perf map included; since Linux 6.14, CAP_PERFMON opens `maps` alone
        // (`may_access_mm`, kernel/fork.c).
        fs::read_link(within("root")).map_err(|source| refused(pid, &status, "root", source))?;

        // From here on the handle says which process it is: read everything again.
        let (status, stat) = (read_status(pid)?, Stat::parse(&read(pid, "stat")?));
        let stat = stat.ok_or_else(|| unreadable(pid, "stat"))?;
        let target = Self {
            pid,
            ns_pid: status.ns_pid,
            uid: status.uid,
            file_ids: status.file_ids,
            arguments: arguments(&read_file(pid, within("cmdline"), COMMAND_LINE_BYTES_MAX)?),
            exe: fs::read_link(within("exe")).ok(),
            first_thread_has_ended: stat.is_dead(),
            start_ticks: stat.start_ticks,
            cpu_time_ns: AtomicU64::new(stat.cpu_time().as_nanos() as u64),
            comm: stat.comm,
            pidfd,
        };
        if target.is_alive() {
            Ok(target)
        } else {
            Err(TargetError::NoSuchProcess { pid })
        }
    }

    /// The same for a child that was made at `since_boot`, not for a later process with its pid; `None` if it is gone.
    pub fn check_child(pid: Pid, since_boot: Duration) -> Option<Self> {
        // A pid does not come round within the 10 ms in which starts are told.
        Self::check(pid)
            .ok()
            .filter(|target| target.started() <= since_boot)
    }

    /// Its command line, arguments joined by spaces; `[name]` if it has none. Raw: may hold any character.
    pub fn command(&self) -> String {
        let joined = self
            .shown_arguments()
            .iter()
            .map(|argument| argument.to_string_lossy())
            .collect::<Vec<_>>()
            .join(" ");
        // What a title leaves of the arguments' room is zeros, and so as many empty arguments.
        let joined = joined.trim_end();
        if joined.is_empty() {
            format!("[{}]", self.comm)
        } else {
            joined.to_owned()
        }
    }

    /// What to call it, in a few words: its script, module or program, or the title it gave itself. Raw, as above.
    pub fn label(&self) -> String {
        label::process_label(self.shown_arguments(), &self.comm)
    }

    fn shown_arguments(&self) -> &[OsString] {
        match self.arguments.as_slice() {
            // What we launch is known by what it is going to be.
            [_, first, command @ ..] if first == HELPER => command,
            arguments => arguments,
        }
    }

    /// Reads its arguments again, which it may have replaced by a title. Of a process that is gone, or about to be, they
    /// stay as they were.
    pub fn read_title(&mut self) {
        let path = format!("{}/cmdline", proc_folder(self.pid));
        if let Ok(command_line) = read_file(self.pid, path, COMMAND_LINE_BYTES_MAX)
            && !command_line.is_empty()
            && self.is_alive()
        {
            self.arguments = arguments(&command_line);
        }
    }

    /// It runs this very program: it was launched by us and has not become the command yet.
    pub fn is_own_image(&self) -> bool {
        self.exe.is_some() && self.exe == fs::read_link("/proc/self/exe").ok()
    }

    /// It has not exited. Costs one system call; never mistakes another process for it.
    pub fn is_alive(&self) -> bool {
        !has_exited(&self.pidfd)
    }

    /// A handle that becomes readable when the process exits, and stays so: for `poll`, or tokio's `AsyncFd`.
    pub fn exited(&self) -> io::Result<OwnedFd> {
        self.pidfd.try_clone()
    }

    /// CPU time of all its threads, user and system, also of those that have exited; not that of its children.
    ///
    /// In steps of 10 ms (`USER_HZ`). After the process has exited: the last that was seen, which is the final number if
    /// this was called before its parent waited for it.
    pub fn cpu_time(&self) -> Duration {
        if let Some(stat) = self.stat() {
            self.cpu_time_ns
                .fetch_max(stat.cpu_time().as_nanos() as u64, Ordering::Relaxed);
        }
        Duration::from_nanos(self.cpu_time_ns.load(Ordering::Relaxed))
    }

    /// The processes that it was forked from since its last `exec`, the nearest first: what code was made before the
    /// fork has its names in their perf maps. Those that have exited are not found, nor who is behind them.
    pub fn forked_from(&self) -> Vec<Self> {
        let mut ancestors = Vec::new();
        // As things are now: it may have become another program since it was checked.
        let Some(own) = self.stat().filter(|stat| stat.image.is_some()) else {
            return ancestors;
        };
        let mut youngest = own.clone();
        while ancestors.len() < ANCESTORS_MAX
            && let Ok(parent) = Self::check(Pid(youngest.parent))
            && let Some(stat) = parent.stat()
            && stat.image == own.image
            && stat.start_ticks <= youngest.start_ticks
        {
            ancestors.push(parent);
            youngest = stat;
        }
        ancestors
    }

    /// What the kernel says of it now.
    fn stat(&self) -> Option<Stat> {
        let stat = read_stat(self.pid)?;
        (stat.start_ticks == self.start_ticks).then_some(stat)
    }

    /// Where the process's `/tmp` is for us: its perf map lies there. Also right in another mount namespace or chroot.
    pub fn perf_map_directory(&self) -> PathBuf {
        perf_map_directory(self.pid)
    }

    /// When it started, since boot, in steps of 10 ms (`USER_HZ`).
    pub fn started(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        Duration::from_millis(self.start_ticks.saturating_mul(1000) / per_second)
    }
}

#[cfg(test)]
impl Target {
    /// A process that there is not: `handle` becomes readable when it exits.
    pub(crate) fn made_up(pid: Pid, start_ticks: u64, handle: OwnedFd) -> Self {
        Self {
            pid,
            ns_pid: pid.0,
            uid: 0,
            file_ids: (0, 0),
            comm: format!("made-up-{pid}"),
            arguments: vec![format!("made-up-{pid}").into()],
            exe: None,
            first_thread_has_ended: false,
            start_ticks,
            pidfd: handle,
            cpu_time_ns: AtomicU64::new(0),
        }
    }
}

/// Where a process's stack begins: at another place after each `exec`. `None` where that cannot be known.
pub fn stack_of(pid: Pid) -> Option<u64> {
    Some(read_stat(pid)?.image?.stack_begin())
}

/// What the kernel says of a process now. What it runs is known to threads that have not ended.
fn read_stat(pid: Pid) -> Option<Stat> {
    let mut stat = Stat::parse(&read(pid, "stat").ok()?)?;
    if stat.is_dead()
        && let Some(thread) = running_thread(pid)
    {
        let of_thread = read(pid, &format!("task/{thread}/stat")).ok()?;
        stat.image = Stat::parse(&of_thread)?.image;
    }
    Some(stat)
}

/// The process of this handle (a pidfd) has exited. Costs one system call.
pub fn has_exited(handle: &impl AsFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // A handle becomes readable when the last thread exits (`pidfd_poll` in fs/pidfs.c, Linux 6.12).
    matches!(rustix::event::poll(&mut polled, Some(&now)), Ok(ready) if ready > 0)
}

/// [`Target::perf_map_directory`] of a process of which only the pid is known.
pub fn perf_map_directory(pid: Pid) -> PathBuf {
    PathBuf::from(format!("{}/root/tmp", proc_folder(pid)))
}

impl AsFd for Target {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pidfd.as_fd()
    }
}

/// What would help who may not look into a process. Root may lack a capability that the process has
/// (`cap_ptrace_access_check`, security/commoncap.c).
fn more_rights() -> &'static str {
    if rustix::process::geteuid().is_root() {
        "that takes CAP_SYS_PTRACE and all that the process itself may; use sudo outside of a container"
    } else {
        "run pyprof-bpf with sudo, or give it CAP_SYS_PTRACE"
    }
}

fn path(pid: Pid, file: &str) -> String {
    format!("/proc/{pid}/{file}")
}

fn read(pid: Pid, file: &str) -> Result<Vec<u8>, TargetError> {
    let bytes_max = match file {
        "status" => STATUS_BYTES_MAX,
        _ => COMMAND_LINE_BYTES_MAX,
    };
    read_file(pid, path(pid, file), bytes_max)
}

fn read_file(pid: Pid, path: String, bytes_max: u64) -> Result<Vec<u8>, TargetError> {
    let mut bytes = Vec::new();
    match File::open(&path).and_then(|file| file.take(bytes_max).read_to_end(&mut bytes)) {
        Ok(_) => Ok(bytes),
        Err(source) => Err(missing(pid, path, source)),
    }
}

fn read_status(pid: Pid) -> Result<Status, TargetError> {
    Status::parse(&read(pid, "status")?).ok_or_else(|| unreadable(pid, "status"))
}

/// With `hidepid`, processes of others look as if they did not exist, except to `kill`.
fn missing(pid: Pid, path: String, source: io::Error) -> TargetError {
    let exists = raw_pid(pid).map(rustix::process::test_kill_process);
    match (source.raw_os_error().map(Errno::from_raw_os_error), exists) {
        (Some(Errno::ACCESS | Errno::PERM), _) | (_, Some(Err(Errno::PERM))) => {
            TargetError::NotPermitted {
                pid,
                owner: String::new(),
            }
        }
        (Some(Errno::NOENT | Errno::SRCH), _) => TargetError::NoSuchProcess { pid },
        _ => TargetError::Proc { path, source },
    }
}

fn refused(pid: Pid, status: &Status, file: &str, source: io::Error) -> TargetError {
    if source.kind() == io::ErrorKind::PermissionDenied {
        return TargetError::NotPermitted {
            pid,
            owner: format!(" of user {}", status.uid),
        };
    }
    missing(pid, path(pid, file), source)
}

fn raw_pid(pid: Pid) -> Option<rustix::process::Pid> {
    rustix::process::Pid::from_raw(i32::try_from(pid.0).ok()?)
}

fn unreadable(pid: Pid, file: &str) -> TargetError {
    let source = io::Error::new(io::ErrorKind::InvalidData, "not in the format of proc(5)");
    TargetError::Proc {
        path: path(pid, file),
        source,
    }
}

fn arguments(command_line: &[u8]) -> Vec<OsString> {
    let whole = command_line.strip_suffix(b"\0").unwrap_or(command_line);
    if whole.is_empty() {
        return Vec::new();
    }
    whole
        .split(|&byte| byte == 0)
        .map(|argument| OsString::from_vec(argument.to_vec()))
        .collect()
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
