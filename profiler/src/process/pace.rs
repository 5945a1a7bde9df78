//! A bound on work that a process under observation can cause at will.

use std::time::{Duration, Instant};

/// CPU time of this thread: what a piece of work took, however busy the machine is.
pub fn thread_time() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::try_from(now).unwrap_or_default()
}

/// In the long run, work is followed by a rest so many times as long.
const REST_FACTOR: u32 = 4;

/// Rest that may be owed: half a second of work at a stretch. A Python that starts up needs less.
const DEBT_MAX: Duration = Duration::from_secs(2);

/// Keeps a kind of work to a fifth of the time, after a start in which it may take all of it.
///
/// A process may map files, `exec`, or replace its perf map thousands of times a second. What such an event asks for
/// is noted, and done when the rest is over.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Rest owed at `since`.
    debt: Duration,
    since: Instant,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            debt: Duration::ZERO,
            since: Instant::now(),
        }
    }
}

impl Pace {
    /// Too much was done lately.
    pub fn is_resting(&self, now: Instant) -> bool {
        self.debt_at(now) > DEBT_MAX
    }

    /// A piece of work that has ended just now has taken this long.
    pub fn spent(&mut self, now: Instant, took: Duration) {
        self.debt = self
            .debt_at(now)
            .saturating_add(took.saturating_mul(REST_FACTOR));
        self.since = now;
    }

    fn debt_at(&self, now: Instant) -> Duration {
        self.debt
            .saturating_sub(now.saturating_duration_since(self.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_free_and_what_goes_beyond_it_is_not() {
        let mut pace = Pace::default();
        let now = Instant::now();
        for _ in 0..4 {
            pace.spent(now, Duration::from_millis(100));
            assert!(!pace.is_resting(now));
        }
        pace.spent(now, Duration::from_secs(1));
        assert!(pace.is_resting(now));
        assert!(!pace.is_resting(now + Duration::from_secs(8)));
    }
}
