//! A recording of one window: runs the engine until it is to end.
//!
//! Samples are drained on a timer and when the ring buffer fills up; everything else is done in the same tick, in the order
//! in which the stages stand.

use std::{
    future::pending,
    io,
    os::fd::{AsRawFd, OwnedFd},
    time::{Duration, Instant},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    sync::watch,
    task::yield_now,
    time::{MissedTickBehavior, interval},
};

use super::{
    Progress, RecordSettings, SessionError, StopReason, Window, engine::Engine, stop::Stop,
};
use crate::symbols::{
    SymbolProcess,
    perf_map::{ChangedMaps, PerfMapWatch},
};

/// Samples are drained at least this often.
const TICK: Duration = Duration::from_millis(100);
/// The same while a process is in its first moments.
const TICK_OF_YOUNG: Duration = Duration::from_millis(10);
/// The same while a Python is starting.
const TICK_OF_STARTING: Duration = Duration::from_millis(2);
/// The status line, and what [`Engine::slow_tick`] looks at, come with every so many ticks.
const SLOW_TICKS: u32 = 5;
/// Progress is not reported again for this number of times as long as the last report took.
const PROGRESS_REST: u32 = 200;

/// Samples the targets until `stop` is asked for, the end of the duration, or the exit of the last of them.
pub(super) async fn record_until(
    settings: &RecordSettings,
    symbols: SymbolProcess,
    stop: &Stop,
    progress: &watch::Sender<Progress>,
) -> Result<Window, SessionError> {
    let mut engine = Engine::start(settings.clone(), symbols, &|| !stop.is_due())?;
    let began = Instant::now();
    stop.sampling_began(began, settings.duration);
    progress.send_replace(Progress::default());
    let ring =
        readable(engine.filled()?).map_err(SessionError::system("watching the sample buffer"))?;
    let mut exits = exits(&engine)?;
    let mut perf_maps = engine.watch_perf_maps();
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ticks_of_young = interval(TICK_OF_YOUNG);
    ticks_of_young.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut ticks_of_starting = interval(TICK_OF_STARTING);
    ticks_of_starting.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut count = 0;
    let mut next_progress = Duration::ZERO;
    let reason = loop {
        // Looked at in each round, whatever else there is to do.
        if let Some(reason) = stop.due(Instant::now()) {
            break reason;
        }
        tokio::select! {
            () = stop.wait() => {}
            () = any_exit(&mut exits) => {
                if engine.all_exited() {
                    break StopReason::TargetExited;
                }
            }
            changed = changed(&mut perf_maps) => {
                engine.perf_maps_changed(changed);
                if perf_maps.is_none() {
                    engine.perf_maps_are_not_watched();
                }
            }
            () = filled(&ring) => engine.take_samples(),
            () = yield_now(), if engine.has_more() => { engine.tick(); }
            _ = ticks_of_young.tick(), if engine.has_young() => { engine.tick(); }
            _ = ticks_of_starting.tick(), if engine.is_python_starting() => { engine.tick(); }
            _ = ticks.tick() => {
                engine.tick();
                count += 1;
                if count % SLOW_TICKS == 0 {
                    engine.slow_tick();
                    let elapsed = began.elapsed();
                    // The hottest function is looked for in all stacks: the more of them there are, the less often.
                    if progress.receiver_count() > 0 && elapsed >= next_progress {
                        progress.send_replace(progress_of(&engine, settings, elapsed));
                        let took = began.elapsed().saturating_sub(elapsed);
                        next_progress = elapsed + PROGRESS_REST * took;
                    }
                }
            }
        }
    };
    Ok(engine.stop(reason))
}

fn progress_of(engine: &Engine, settings: &RecordSettings, elapsed: Duration) -> Progress {
    let (samples, lost) = engine.samples();
    Progress {
        elapsed,
        samples,
        lost,
        hottest: engine.hottest_python(settings.granularity),
    }
}

fn exits(engine: &Engine) -> Result<Vec<AsyncFd<OwnedFd>>, SessionError> {
    let exits = engine.exits()?.into_iter().map(readable);
    exits
        .collect::<Result<_, _>>()
        .map_err(SessionError::system("waiting for the target's exit"))
}

/// Waits until a process exits, once for each.
async fn any_exit(exits: &mut Vec<AsyncFd<OwnedFd>>) {
    let Some(first) = exits.first() else {
        return pending().await;
    };
    // The others are found by asking all of them then.
    let _ = first.readable().await;
    exits.remove(0);
}

/// Waits until perf maps have changed; for ever where that cannot be known. A missed notification is harmless: a failed
/// lookup re-reads the map. Watching only bounds how much it must read.
async fn changed(watch: &mut Option<PerfMapWatch>) -> ChangedMaps {
    let changed = match watch {
        Some(watch) => watch.next().await,
        None => return pending().await,
    };
    changed.unwrap_or_else(|error| {
        tracing::debug!("perf maps are looked at on a timer: {error}");
        *watch = None;
        ChangedMaps::Any
    })
}

/// Waits until the ring buffer holds much.
async fn filled(ring: &AsyncFd<OwnedFd>) {
    if let Ok(mut guard) = ring.readable().await {
        guard.clear_ready();
    }
}

/// A descriptor that can be waited for.
#[expect(
    deprecated,
    reason = "the unsafe successor wants a promise that the types passed here keep: they own it"
)]
fn readable<T: AsRawFd>(descriptor: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::with_interest(descriptor, Interest::READABLE)
}
