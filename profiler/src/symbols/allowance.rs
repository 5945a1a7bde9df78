//! Work that may be done for processes while samples wait: so much for each of them, and so much for all together.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant},
};

/// CPU time for which all processes together, and each of them, are read while samples wait: at once, and the part of the
/// time in the long run.
pub(super) const WORK_AT_ONCE: Duration = Duration::from_millis(40);
const WORK_DIVISOR: u32 = 2;
/// The same for a process while others use up what there is for all: enough for a piece of a perf map now and then.
pub(super) const WORK_OF_EACH: Duration = Duration::from_millis(1);
const WORK_OF_EACH_DIVISOR: u32 = 200;

/// CPU time that may be spent, and is earned as time passes. Measured in CPU time, so that on a busy machine no less work
/// is done.
#[derive(Clone, Copy, Debug)]
struct Credit {
    /// Negative after a piece of work that took longer than there was credit for.
    nanoseconds: i64,
    earned: Instant,
    most: Duration,
    divisor: u32,
}

impl Credit {
    fn new(now: Instant, most: Duration, divisor: u32) -> Self {
        Self {
            nanoseconds: nanoseconds(most),
            earned: now,
            most,
            divisor,
        }
    }

    /// What there is, with what was earned since the last time.
    fn left(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.earned);
        let earned = nanoseconds(passed / self.divisor);
        self.nanoseconds = self.nanoseconds.saturating_add(earned);
        self.nanoseconds = self.nanoseconds.min(nanoseconds(self.most));
        self.earned = now;
        Duration::from_nanos(u64::try_from(self.nanoseconds).unwrap_or(0))
    }

    fn spend(&mut self, work: Duration) {
        self.nanoseconds = self.nanoseconds.saturating_sub(nanoseconds(work));
    }
}

fn nanoseconds(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// What all processes have together. A clone is the same.
#[derive(Clone, Debug)]
pub(super) struct SharedAllowance(Arc<Mutex<Credit>>);

impl SharedAllowance {
    pub(super) fn new(now: Instant) -> Self {
        let credit = Credit::new(now, WORK_AT_ONCE, WORK_DIVISOR);
        Self(Arc::new(Mutex::new(credit)))
    }

    /// What there is for all, and for one more process in any case.
    pub(super) fn left(&self, now: Instant) -> Duration {
        self.with(|all| all.left(now)).max(WORK_OF_EACH)
    }

    pub(super) fn spend(&self, work: Duration) {
        self.with(|all| all.spend(work));
    }

    fn with<T>(&self, each: impl FnOnce(&mut Credit) -> T) -> T {
        // The value is whole whenever the lock is free, also after a panic.
        each(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Work that may be done for one process.
#[derive(Debug)]
pub(super) struct Allowance {
    own: Credit,
    /// Its own, also when the others have used up what there is for all.
    minimum: Credit,
    all: SharedAllowance,
}

impl Allowance {
    pub(super) fn new(now: Instant, all: &SharedAllowance) -> Self {
        Self {
            own: Credit::new(now, WORK_AT_ONCE, WORK_DIVISOR),
            minimum: Credit::new(now, WORK_OF_EACH, WORK_OF_EACH_DIVISOR),
            all: all.clone(),
        }
    }

    /// The same for another process.
    pub(super) fn another(&self, now: Instant) -> Self {
        Self::new(now, &self.all)
    }

    /// What may be spent now.
    pub(super) fn left(&mut self, now: Instant) -> Duration {
        let of_all = self.all.with(|all| all.left(now));
        let most = of_all.max(self.minimum.left(now));
        self.own.left(now).min(most)
    }

    pub(super) fn spend(&mut self, work: Duration) {
        self.own.spend(work);
        self.minimum.spend(work);
        self.all.with(|all| all.spend(work));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn work_is_allowed_at_a_stretch_and_half_of_the_time() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now, &SharedAllowance::new(now));
        assert_eq!(allowance.left(now), WORK_AT_ONCE);
        allowance.spend(WORK_AT_ONCE);
        assert_eq!(allowance.left(now), Duration::ZERO);
        now += 30 * MS;
        assert_eq!(allowance.left(now), 15 * MS);
        now += 50_000 * MS;
        assert_eq!(allowance.left(now), WORK_AT_ONCE);
    }

    #[test]
    fn a_piece_of_work_that_took_too_long_is_paid_for() {
        let mut now = Instant::now();
        let mut allowance = Allowance::new(now, &SharedAllowance::new(now));
        allowance.spend(10 * WORK_AT_ONCE);
        now += 10 * WORK_AT_ONCE;
        assert_eq!(allowance.left(now), Duration::ZERO);
        now += 10 * WORK_AT_ONCE;
        assert!(!allowance.left(now).is_zero());
    }

    #[test]
    fn a_hundred_processes_together_get_what_one_gets_and_a_little_each() {
        let mut now = Instant::now();
        let all = SharedAllowance::new(now);
        let mut processes: Vec<Allowance> = (0..100).map(|_| Allowance::new(now, &all)).collect();
        let mut worked = Duration::ZERO;
        // Ten seconds of ticks in which each process asks for as much work as there may be.
        for _ in 0..100 {
            for process in &mut processes {
                let left = process.left(now);
                process.spend(left);
                worked += left;
            }
            now += 100 * MS;
        }
        // Half of the time, and for each process a two hundredth of it.
        assert!(worked <= 5000 * MS + 100 * 51 * MS, "{worked:?}");
        assert!(processes.iter_mut().all(|it| !it.left(now).is_zero()));
    }
}
