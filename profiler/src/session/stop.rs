//! When a recording is to end: seen at once, also in the middle of a long piece of work.
//!
//! A recording has a thread of its own ([`record`](super::record())), on which it works without ever giving way to
//! others. Another thread asks it to stop, by a value that each long piece of work looks at.

use std::{
    sync::{
        OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::Notify;

use super::StopReason;

/// Set-up that is still going on when a stop is asked for is given up after this: nothing is sampled yet.
pub(super) const SETUP_TIMEOUT: Duration = Duration::from_secs(1);

/// Asks a recording to end, and says whether it was asked.
#[derive(Debug, Default)]
pub(super) struct Stop {
    reason: OnceLock<StopReason>,
    asked: Notify,
    /// When the duration asked for is over.
    end: OnceLock<Instant>,
    is_sampling: AtomicBool,
}

impl Stop {
    /// The recording is to end. The first reason counts.
    pub(super) fn ask(&self, reason: StopReason) {
        let _ = self.reason.set(reason);
        self.asked.notify_one();
    }

    /// Sampling has begun; the recording is to end after this duration, if any.
    pub(super) fn sampling_began(&self, now: Instant, duration: Option<Duration>) {
        self.is_sampling.store(true, Ordering::Release);
        // Later than the clock can tell: never.
        if let Some(end) = duration.and_then(|duration| now.checked_add(duration)) {
            let _ = self.end.set(end);
        }
    }

    /// Sampling has begun.
    pub(super) fn is_sampling(&self) -> bool {
        self.is_sampling.load(Ordering::Acquire)
    }

    /// Why the recording is to end now, if it is.
    pub(super) fn due(&self, now: Instant) -> Option<StopReason> {
        let is_over = self.end.get().is_some_and(|end| now >= *end);
        let asked = self.reason.get().copied();
        asked.or(is_over.then_some(StopReason::Duration))
    }

    /// The recording is to end.
    pub(super) fn is_due(&self) -> bool {
        self.due(Instant::now()).is_some()
    }

    /// Waits until the recording is to end.
    pub(super) async fn wait(&self) {
        let over = async {
            match self.end.get() {
                Some(end) => tokio::time::sleep_until((*end).into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = self.asked.notified() => {}
            () = over => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_counts() {
        let stop = Stop::default();
        let now = Instant::now();
        assert_eq!(stop.due(now), None);
        stop.ask(StopReason::Interrupted);
        stop.ask(StopReason::TargetExited);
        assert_eq!(stop.due(now), Some(StopReason::Interrupted));
    }

    #[test]
    fn the_duration_counts_from_the_first_sample_on() {
        let stop = Stop::default();
        let now = Instant::now();
        assert!(!stop.is_sampling());
        stop.sampling_began(now, Some(Duration::from_secs(8)));
        assert!(stop.is_sampling());
        assert_eq!(stop.due(now + Duration::from_secs(7)), None);
        let over = stop.due(now + Duration::from_secs(8));
        assert_eq!(over, Some(StopReason::Duration));
        let forever = Stop::default();
        forever.sampling_began(now, Some(Duration::MAX));
        assert_eq!(forever.due(now + Duration::from_secs(1 << 30)), None);
    }
}
