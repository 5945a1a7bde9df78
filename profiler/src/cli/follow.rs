//! A launched command during its recording: begins when sampling is on, gets our signals, is waited for.

use std::process::ExitStatus;

use anyhow::Context as _;
use rustix::process::Signal;
use tokio::sync::watch;

use super::signals::{Caught, Signals};
use crate::{process::launch::Launched, session::Progress};

/// Lets the command begin with the first message of `sampling`, and follows it to its end.
///
/// `None`: sampling never began, so the command did not either. Fails when the command cannot be run.
pub(crate) async fn follow(
    mut launched: Launched,
    mut sampling: watch::Receiver<Progress>,
    mut signals: Signals,
) -> anyhow::Result<Option<ExitStatus>> {
    if sampling.changed().await.is_err() {
        return Ok(None);
    }
    drop(sampling);
    launched.release().await?;
    loop {
        let caught = tokio::select! {
            status = launched.wait() => {
                return status.map(Some).context("cannot wait for the command");
            }
            caught = signals.next() => caught,
        };
        match caught {
            // The terminal has sent it to the command as well, which may have its own idea of it: so we wait.
            Caught::Interrupt => {}
            Caught::Terminate => launched.signal(Signal::TERM),
            Caught::HangUp => launched.signal(Signal::HUP),
        }
    }
}
