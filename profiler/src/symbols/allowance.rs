//! Work that may be done while samples wait.

use std::time::{Duration, Instant};

/// CPU time for which a process is read while samples wait: at once, and the share of the time in the long run.
pub(super) const WORK_AT_ONCE: Duration = Duration::from_millis(40);
const WORK_SHARE: u32 = 2;

/// Work that may be done now. It is measured in CPU time: on a busy machine no less of it is done.
pub(super) struct Allowance {
    left: Duration,
    since: Instant,
}

impl Allowance {
    pub(super) fn new() -> Self {
        Self {
            left: WORK_AT_ONCE,
            since: Instant::now(),
        }
    }

    /// What there is, with what was earned since the last time.
    pub(super) fn left(&mut self) -> Duration {
        let now = Instant::now();
        let passed = now.saturating_duration_since(self.since);
        self.left = (self.left + passed / WORK_SHARE).min(WORK_AT_ONCE);
        self.since = now;
        self.left
    }

    pub(super) const fn spend(&mut self, work: Duration) {
        self.left = self.left.saturating_sub(work);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_allowed_at_a_stretch_and_half_of_the_time() {
        let mut allowance = Allowance::new();
        assert_eq!(allowance.left(), WORK_AT_ONCE);
        allowance.spend(2 * WORK_AT_ONCE);
        assert!(allowance.left() < WORK_AT_ONCE);
        allowance.left = Duration::ZERO;
        allowance.since -= Duration::from_millis(30);
        assert!(allowance.left() >= Duration::from_millis(10));
        allowance.since -= Duration::from_secs(50);
        assert_eq!(allowance.left(), WORK_AT_ONCE);
    }
}
