//! A launched command during its recording: begins when sampling is on, gets our signals, is waited for.

use std::io;

use rustix::process::Signal;
use tokio::sync::watch;

use super::signals::{Caught, Signals};
use crate::{
    process::launch::{LaunchError, Launched},
    session::Progress,
};

/// Lets the command begin with the first message of `sampling`. Gives it back once it runs, or `None` when sampling
/// never began: then the command did not either, and never will.
pub(crate) async fn begin(
    mut launched: Launched,
    mut sampling: watch::Receiver<Progress>,
) -> Result<Option<Launched>, LaunchError> {
    if sampling.changed().await.is_err() {
        return Ok(None);
    }
    launched.release().await?;
    Ok(Some(launched))
}

/// Passes signals on to the command until it ends. It is left for its exit status to be fetched, and its CPU time to
/// be read before that.
pub(crate) async fn follow(
    launched: Launched,
    mut signals: Signals,
) -> (io::Result<Launched>, Signals) {
    loop {
        let caught = tokio::select! {
            ended = launched.ended() => return (ended.map(|()| launched), signals),
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
