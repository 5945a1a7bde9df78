//! The thread of a recording, and how it is spoken to.

use std::{future::Future, panic::resume_unwind, sync::Arc, thread};

use tokio::{
    runtime,
    sync::{oneshot, watch},
    time::sleep,
};

use super::{
    Progress, RecordSettings, SessionError, StopReason, Window,
    record::record_until,
    stop::{SETUP_TIMEOUT, Stop},
};
use crate::symbols::SymbolProcess;

/// The thread's name, at most 15 bytes.
const THREAD_NAME: &str = "recording";

/// Samples the targets until `stop`, the end of the duration, or the exit of the last of them.
///
/// `symbols` is where symbols are parsed. The first message to `progress` says that sampling has begun. Needs the privileges that [`crate::privilege`] checks
/// for. Dropping the future has sampling end soon, and everything is removed from the kernel then.
///
/// The recording has a thread of its own, on which a piece of work may take long: neither `stop` nor anything else of the
/// caller's waits for that.
pub async fn record(
    settings: RecordSettings,
    symbols: SymbolProcess,
    stop: impl Future<Output = StopReason>,
    progress: watch::Sender<Progress>,
) -> Result<Window, SessionError> {
    let asked = Arc::new(Stop::default());
    let _stops_when_dropped = StopWhenDropped(Arc::clone(&asked));
    let (done, mut recorded) = oneshot::channel();
    let for_thread = Arc::clone(&asked);
    let thread = thread::Builder::new()
        .name(THREAD_NAME.into())
        .spawn(move || {
            // Nobody waits for it any more: set-up took too long.
            let _ = done.send(record_here(&settings, symbols, &for_thread, &progress));
        })
        .map_err(SessionError::system("starting a thread"))?;
    let finished = tokio::select! {
        finished = &mut recorded => finished,
        reason = stop => {
            asked.ask(reason);
            tokio::select! {
                finished = &mut recorded => finished,
                () = sleep(SETUP_TIMEOUT) => {
                    if !asked.is_sampling() {
                        return Err(SessionError::StoppedEarly);
                    }
                    recorded.await
                }
            }
        }
    };
    match finished {
        Ok(recording) => recording,
        // It has panicked, and so does the thread that waits for it.
        Err(_) => match thread.join() {
            Err(panic) => resume_unwind(panic),
            Ok(()) => unreachable!("a thread that ends sends its result"),
        },
    }
}

/// Has the recording end when nobody waits for it any more.
struct StopWhenDropped(Arc<Stop>);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.ask(StopReason::Interrupted);
    }
}

/// The recording, on this thread alone: each tick wakes one thread.
fn record_here(
    settings: &RecordSettings,
    symbols: SymbolProcess,
    stop: &Stop,
    progress: &watch::Sender<Progress>,
) -> Result<Window, SessionError> {
    runtime::Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build()
        .map_err(SessionError::system("starting an event loop"))?
        .block_on(record_until(settings, symbols, stop, progress))
}
