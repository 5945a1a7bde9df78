//! Signals that end a recording.

use std::{fs, time::Duration};

use anyhow::Context as _;
use nix::sys::signal::{self, SigSet, SigmaskHow};
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit;

/// "File size limit exceeded" on x86-64; tokio has no name for it.
const SIGXFSZ: i32 = rustix::process::Signal::XFSZ.as_raw();

/// Time for an orderly end after a second Ctrl-C.
const GRACE: Duration = Duration::from_secs(1);

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

    /// Waits for a Ctrl-C that means "at once". Should the program not be gone soon after, it is ended the hard way:
    /// something holds the thread that would have ended it.
    pub(crate) async fn abort(mut self) {
        self.interrupt.recv().await;
        tokio::spawn(async {
            tokio::time::sleep(GRACE).await;
            super::status::clear();
            std::process::exit(exit::ABORTED.into());
        });
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
    fn a_killed_command_gives_128_and_its_signal() {
        let status = |raw| std::process::ExitStatus::from_raw(raw);
        assert_eq!(code_of(status(3 << 8)), 3);
        assert_eq!(code_of(status(9)), 137);
    }
}
