//! Why trampolines were not switched. Each says what it means for the process and what to do next, in five lines at most.

use std::{io, path::PathBuf};

use super::{Switch, Version};
use crate::{
    model::Pid,
    process::{TargetError, interpreter::NotYet},
};

/// Why trampolines were not switched. Unless a variant says otherwise, the process is as it was.
#[derive(Debug, thiserror::Error)]
pub enum ActivateError {
    /// It cannot be looked into, or is none.
    #[error(transparent)]
    Target(#[from] TargetError),
    /// It runs no CPython.
    #[error(
        "process {pid} runs no CPython: choose the pid of a Python process (`pgrep -af python` lists them)"
    )]
    NotPython {
        /// The process.
        pid: Pid,
    },
    /// A CPython that cannot have trampolines.
    #[error("process {pid} runs CPython {}.{}, and only 3.9 and later can have trampolines", version.0, version.1)]
    TooOld {
        /// The process.
        pid: Pid,
        /// Major and minor version.
        version: (u8, u8),
    },
    /// Its version cannot be asked.
    #[error(
        "CPython {}.{} takes no requests from outside, as 3.14 and later do; process {pid} was not touched\n  \
        Its functions are recorded without trampolines: sudo pyprof-bpf --pid {pid}\n  \
        To have a perf map, start it with trampolines: {}",
        version.0,
        version.1,
        if *version < (3, 12) { "python -m pyprof_trampoline app.py" } else { "python -X perf app.py" }
    )]
    TakesNoRequests {
        /// The process.
        pid: Pid,
        /// Major and minor version.
        version: (u8, u8),
    },
    /// PEP 768 is switched off in it.
    #[error(
        "process {pid} does not listen to requests from outside: remote debugging is off in it\n  \
        It was started with PYTHON_DISABLE_REMOTE_DEBUG or -X disable-remote-debug, or its Python was built\n  \
        --without-remote-debug. Its functions are recorded without trampolines: sudo pyprof-bpf --pid {pid}\n  \
        To have perf maps, start it with `python -X perf`"
    )]
    RemoteDebuggingOff {
        /// The process.
        pid: Pid,
    },
    /// Another request waits in it.
    #[error(
        "another tool has asked process {pid} to run something, which it has not done yet: try again later"
    )]
    Occupied {
        /// The process.
        pid: Pid,
    },
    /// The interpreter is not as it should be.
    #[error(
        "the CPython in process {pid} is not as this program knows it: {what}. Nothing was changed"
    )]
    Unknown {
        /// The process.
        pid: Pid,
        /// What is not.
        what: String,
    },
    /// What it is cannot be told now.
    #[error("process {pid} cannot be asked now: {reason}. Nothing was changed; try again later")]
    NotYet {
        /// The process.
        pid: Pid,
        /// Why.
        reason: NotYet,
    },
    /// CPython has a fault that this would meet.
    #[error(
        "CPython {version} crashes when trampolines are switched {switch} a second time in one process (cpython issue \
        146522), as they would be now: process {pid} was not touched\n  \
        Its functions are recorded without trampolines: sudo pyprof-bpf --pid {pid}"
    )]
    Faulty {
        /// The process.
        pid: Pid,
        /// Which CPython.
        version: Version,
        /// What was asked for.
        switch: Switch,
    },
    /// Its memory may not be written.
    #[error(
        "not allowed to write to process {pid}: {source}\n  \
        That takes the right to trace it, CAP_SYS_PTRACE or the same user, and kernel.yama.ptrace_scope must allow it.\n  \
        Run pyprof-bpf with sudo"
    )]
    NotPermitted {
        /// The process.
        pid: Pid,
        /// What the operating system said.
        source: io::Error,
    },
    /// No file can be put where it would read it.
    #[error(
        "cannot make a file for the process in {}: {source}; its perf map would have to be there, too",
        path.display()
    )]
    NoPlace {
        /// Its `/tmp`, for us.
        path: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// Others could put another file there.
    #[error(
        "{} is not safe: others than root and the process's user can replace files in it; `chmod +t` makes it so",
        path.display()
    )]
    UnfitPlace {
        /// Its `/tmp`, for us.
        path: PathBuf,
    },
    /// A signal holds it.
    #[error("process {pid} is stopped and runs nothing: let it go on first (`kill -CONT {pid}`)")]
    Halted {
        /// The process.
        pid: Pid,
    },
    /// Its first thread has ended, and with it the one that would do it.
    #[error(
        "process {pid} was not touched: its first thread, which would switch trampolines, has ended\n  \
        Its functions are recorded without trampolines: sudo pyprof-bpf --pid {pid}"
    )]
    NoFirstThread {
        /// The process.
        pid: Pid,
    },
    /// It did not get round to it.
    #[error(
        "process {pid} did not switch trampolines {switch} within {waited_s} s, and will not any more: the request is \
         withdrawn\n  \
        Its main thread, which would do it, runs C code or waits, and has not come back to Python code yet.\n  \
        Try again when it does, or give it longer: --timeout 60"
    )]
    NotRun {
        /// The process.
        pid: Pid,
        /// What was asked for.
        switch: Switch,
        /// How long it had.
        waited_s: u64,
    },
    /// It took the request, and nothing came of it.
    #[error(
        "process {pid} took the request, but did not run it: an audit hook may forbid that, or it cannot read its /tmp. \
         Nothing is left behind"
    )]
    NotRead {
        /// The process.
        pid: Pid,
    },
    /// It began, and did not answer. Trampolines may be switched or not.
    #[error(
        "process {pid} began to switch trampolines {switch} and did not say what became of it; `pyprof-bpf doctor --pid \
         {pid}` shows how it stands"
    )]
    NoAnswer {
        /// The process.
        pid: Pid,
        /// What was asked for.
        switch: Switch,
    },
    /// Python raised an exception.
    #[error("process {pid} cannot switch trampolines {switch}: {}", reason.escape_debug())]
    Failed {
        /// The process.
        pid: Pid,
        /// What was asked for.
        switch: Switch,
        /// Type and words of the exception, raw.
        reason: String,
    },
    /// It ended.
    #[error("process {pid} has ended meanwhile")]
    Gone {
        /// The process.
        pid: Pid,
    },
    /// Whoever asked does not want it any more.
    #[error("stopped by a signal: the request to process {pid} is withdrawn")]
    Interrupted {
        /// The process.
        pid: Pid,
    },
}

impl ActivateError {
    /// A right is missing.
    pub const fn is_refusal(&self) -> bool {
        matches!(
            self,
            Self::NotPermitted { .. } | Self::Target(TargetError::NotPermitted { .. })
        )
    }

    pub(super) fn unknown(pid: Pid, what: &(impl ToString + ?Sized)) -> Self {
        let what = what.to_string();
        Self::Unknown { pid, what }
    }
}
