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
    time::sleep_until,
};

use super::{
    Progress, RecordSettings, SessionError, StopReason, Window, engine::Engine, stop::Stop,
};
use crate::symbols::{
    SymbolProcess,
    perf_map::{ChangedMaps, PerfMapWatch},
};

/// Samples are drained at least this often. A tick costs 0.2 ms, whatever it finds: most of that is memory that is not in the
/// caches any more.
const TICK: Duration = Duration::from_millis(250);
/// The same while more than samples is waiting: walks to be finished, mappings to be read, perf maps.
const TICK_WITH_WORK: Duration = Duration::from_millis(100);
/// The same while a process is in its first moments.
const TICK_OF_YOUNG: Duration = Duration::from_millis(10);
/// The same while a Python is starting.
const TICK_OF_STARTING: Duration = Duration::from_millis(2);
/// The status line, and what [`Engine::slow_tick`] looks at, come this often.
const SLOW_TICK: Duration = Duration::from_millis(500);
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
    let mut last_tick = began;
    let mut next_slow_tick = began + SLOW_TICK;
    let mut next_progress = Duration::ZERO;
    engine.tick();
    let reason = loop {
        // Looked at in each round, whatever else there is to do.
        let now = Instant::now();
        if let Some(reason) = stop.due(now) {
            break reason;
        }
        // One timer for all: each that is set or runs out costs a wake-up.
        let next_tick = last_tick + time_to_next_tick(&engine);
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
            () = sleep_until(next_tick.into()) => {
                engine.tick();
                last_tick = Instant::now();
                if last_tick >= next_slow_tick {
                    engine.slow_tick();
                    next_slow_tick = last_tick + SLOW_TICK;
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

/// From the end of one tick to the begin of the next.
fn time_to_next_tick(engine: &Engine) -> Duration {
    if engine.has_more() {
        Duration::ZERO
    } else if engine.is_python_starting() {
        TICK_OF_STARTING
    } else if engine.has_young() {
        TICK_OF_YOUNG
    } else if !engine.is_quiet() {
        TICK_WITH_WORK
    } else {
        TICK
    }
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
