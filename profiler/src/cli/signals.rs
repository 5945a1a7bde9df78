//! Signals that end a recording.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};

use anyhow::Context as _;
use nix::sys::signal::{self, SigSet, SigmaskHow};
use tokio::{
    signal::unix::{Signal, SignalKind, signal},
    time::timeout,
};

use super::exit::{self, Aborted};

/// "File size limit exceeded" on x86-64; tokio has no name for it.
const SIGXFSZ: i32 = rustix::process::Signal::XFSZ.as_raw();

/// Time for an orderly end after a signal that means "at once".
const GRACE: Duration = Duration::from_secs(1);
/// SIGTERM or SIGHUP again within this time is not a second request.
const REPEATED: Duration = Duration::from_secs(1);

/// The signals people and service managers send to stop a program.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    /// `None` under `nohup`.
    hang_up: Option<Signal>,
}

/// One that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Caught {
    /// Ctrl-C.
    Interrupt,
    /// `kill`.
    Terminate,
    /// The terminal is gone.
    HangUp,
}

impl Signals {
    /// Begins to catch them. Needs a tokio runtime, and a process with one thread.
    ///
    /// A signal that comes while its handler is being installed would be lost: `signal_hook_registry`, which tokio installs
    /// handlers with, knows what to do with a signal only after the handler is in place. So signals wait for that, blocked.
    pub(crate) fn catch() -> anyhow::Result<Self> {
        let mut mask = SigSet::empty();
        for signal in [
            signal::SIGHUP,
            signal::SIGINT,
            signal::SIGTERM,
            signal::SIGXFSZ,
        ] {
            mask.add(signal);
        }
        let before = mask
            .thread_swap_mask(SigmaskHow::SIG_BLOCK)
            .context("cannot block signals")?;
        let signals = Self::install();
        before.thread_set_mask().context("cannot unblock signals")?;
        signals
    }

    fn install() -> anyhow::Result<Self> {
        let catch =
            |kind| -> anyhow::Result<Signal> { signal(kind).context("cannot catch signals") };
        // A file that may not grow any more is an error to be told, not the end of the program (setrlimit(2),
        // RLIMIT_FSIZE). Caught rather than ignored: commands that are launched have it as ever.
        let _ = catch(SignalKind::from_raw(SIGXFSZ))?;
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        Ok(Self {
            hang_up: if ignores_hang_up(&status) {
                None
            } else {
                Some(catch(SignalKind::hangup())?)
            },
            interrupt: catch(SignalKind::interrupt())?,
            terminate: catch(SignalKind::terminate())?,
        })
    }

    /// Waits for the next one.
    pub(crate) async fn next(&mut self) -> Caught {
        let hang_up = async {
            match &mut self.hang_up {
                Some(signal) => signal.recv().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => Caught::Interrupt,
            _ = self.terminate.recv() => Caught::Terminate,
            _ = hang_up => Caught::HangUp,
        }
    }

    /// Waits for the signal that stops sampling, calls `stop`, and then for one that means "at once".
    ///
    /// Where the result is being written already, SIGTERM and SIGHUP mean that from the first, and so does Ctrl-C where it
    /// was said that writing waits for a reader.
    pub(crate) async fn stop_and_abort(mut self, writing: &Writing, stop: impl FnOnce()) -> Caught {
        let first = self.next().await;
        // The session may have ended by itself a moment ago.
        stop();
        if writing.has_begun() && (first != Caught::Interrupt || writing.waits()) {
            exit_later();
            return first;
        }
        self.abort(writing).await
    }

    /// Waits for a signal that means "at once", after the one that ended sampling. Should the program not be gone soon
    /// after, it is ended the hard way: something holds the thread that would have ended it.
    pub(crate) async fn abort(mut self, writing: &Writing) -> Caught {
        let since = Instant::now();
        loop {
            let caught = self.next().await;
            // A terminal that is closed says so twice: the kernel does, and the shell.
            let is_repeated = caught != Caught::Interrupt && since.elapsed() < REPEATED;
            if !is_repeated || writing.has_begun() {
                exit_later();
                return caught;
            }
        }
    }
}

impl Caught {
    /// What people call it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Interrupt => "Ctrl-C",
            Self::Terminate => "SIGTERM",
            Self::HangUp => "SIGHUP",
        }
    }

    /// The exit code of a program that it ended.
    pub(crate) const fn exit_code(self) -> u8 {
        match self {
            Self::Interrupt => exit::ABORTED,
            Self::Terminate => 128 + 15,
            Self::HangUp => 128 + 1,
        }
    }
}

/// Ends the program the hard way if it has not ended by then.
fn exit_later() {
    tokio::spawn(async {
        tokio::time::sleep(3 * GRACE).await;
        super::status::clear();
        std::process::exit(exit::ABORTED.into());
    });
}

/// How far the result has got, for the task that waits for signals, and whether writing is to stop.
#[derive(Debug, Default)]
pub(crate) struct Writing {
    begun: AtomicBool,
    /// Whoever sits there knows that it waits for a reader, and that Ctrl-C gives up.
    waits: AtomicBool,
    /// Nothing is said.
    quiet: bool,
    /// For the thread that writes.
    pub(crate) stop: AtomicBool,
}

impl Writing {
    /// None has begun yet. `quiet`: it is not said what it waits for.
    pub(crate) fn new(quiet: bool) -> Self {
        Self {
            quiet,
            ..Self::default()
        }
    }

    /// Writing does not go on without this: says so, the first time. From then on, the first Ctrl-C gives up.
    pub(crate) fn waits_for(&self, what: &str) {
        // The flag first: standard error may be what nobody reads.
        if !self.waits.swap(true, Ordering::Relaxed) && !self.quiet {
            super::report::print(&[format!("waiting for {what}; Ctrl-C gives up")]);
        }
    }

    fn waits(&self) -> bool {
        self.waits.load(Ordering::Relaxed)
    }

    /// The result is being written from now on.
    pub(crate) fn begin(&self) {
        self.begun.store(true, Ordering::Relaxed);
    }

    fn has_begun(&self) -> bool {
        self.begun.load(Ordering::Relaxed)
    }

    /// Runs `finished` to its end, or to a signal that means "at once". A result that is nearly written may be finished
    /// by then, except where the signal is a Ctrl-C; one that is not leaves nothing of its file.
    pub(crate) async fn finish_or_abort(
        &self,
        finished: impl Future<Output = anyhow::Result<u8>>,
        aborted: impl Future<Output = Caught>,
    ) -> anyhow::Result<u8> {
        tokio::pin!(finished);
        let caught = tokio::select! {
            code = &mut finished => return code,
            caught = aborted => caught,
        };
        if caught != Caught::Interrupt
            && self.has_begun()
            && let Ok(code) = timeout(GRACE, &mut finished).await
        {
            return code;
        }
        self.stop.store(true, Ordering::Relaxed);
        if self.has_begun() {
            let _ = timeout(GRACE / 2, finished).await;
        }
        Err(Aborted(caught).into())
    }
}

/// `SigIgn` of a /proc/PID/status has SIGHUP, the lowest bit.
fn ignores_hang_up(status: &str) -> bool {
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
        .is_some_and(|mask| mask & 1 != 0)
}

/// What a shell would report for a process that ended so.
pub(crate) fn code_of(status: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = match (status.code(), status.signal()) {
        (Some(code), _) => code,
        (None, Some(signal)) => 128 + signal,
        (None, None) => exit::FAILED.into(),
    };
    u8::try_from(code).unwrap_or(exit::FAILED)
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use super::*;

    #[test]
    fn nohup_is_respected() {
        assert!(ignores_hang_up("SigBlk:\t0\nSigIgn:\t0000000000001001\n"));
        assert!(!ignores_hang_up("SigIgn:\t0000000000001000\n"));
    }

    #[test]
    fn from_the_word_about_a_missing_reader_on_writing_waits() {
        let writing = Writing::new(true);
        writing.begin();
        assert!(!writing.waits());
        writing.waits_for("a reader of fifo");
        assert!(writing.waits() && writing.has_begun());
    }

    #[test]
    fn a_killed_command_gives_128_and_its_signal() {
        let status = |raw| std::process::ExitStatus::from_raw(raw);
        assert_eq!(code_of(status(3 << 8)), 3);
        assert_eq!(code_of(status(9)), 137);
    }
}
