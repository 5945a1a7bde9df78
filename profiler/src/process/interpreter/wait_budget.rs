//! How long samples wait for answers that a target can delay: one budget for all processes together.
//!
//! A wait for one process is short. A thousand of them, one for each sample or for each process, are not: so every wait
//! is paid from here. The budget is refilled as time passes, up to [`WAIT_AT_ONCE`]; when it is used up, nothing is
//! waited for, and what is missing is taken in when it comes.

use std::time::{Duration, Instant};

/// Most time that is waited within one tick, for all processes together.
pub const WAIT_AT_ONCE: Duration = Duration::from_millis(40);
/// The budget is refilled with a quarter of the time that passes.
const REFILL_DIVISOR: u32 = 4;

/// What is left of the time for waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitBudget {
    left: Duration,
    refilled: Instant,
    /// No more is added: the recording is to end.
    is_final: bool,
}

impl WaitBudget {
    pub(super) const fn new(now: Instant) -> Self {
        Self {
            left: WAIT_AT_ONCE,
            refilled: now,
            is_final: false,
        }
    }

    /// What may be waited now.
    pub(super) fn left(&mut self, now: Instant) -> Duration {
        let passed = now.saturating_duration_since(self.refilled);
        self.refilled = now;
        if !self.is_final {
            self.left = (self.left + passed / REFILL_DIVISOR).min(WAIT_AT_ONCE);
        }
        self.left
    }

    /// A wait that ended at `now` took so long. It earns nothing.
    pub(super) fn spend(&mut self, now: Instant, waited: Duration) {
        self.left = self.left.saturating_sub(waited);
        self.refilled = now;
    }

    /// This is all there is from now on.
    pub(super) const fn set_final(&mut self, total: Duration) {
        self.left = total;
        self.is_final = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Waits as often as the budget allows, `each` at a time; the clock passes only while waiting.
    fn wait_often(budget: &mut WaitBudget, now: &mut Instant, each: Duration) -> Duration {
        let mut waited = Duration::ZERO;
        for _ in 0..10_000 {
            let wait = each.min(budget.left(*now));
            *now += wait;
            budget.spend(*now, wait);
            waited += wait;
        }
        waited
    }

    #[test]
    fn ten_thousand_slow_answers_cost_no_more_than_the_budget() {
        let mut now = Instant::now();
        let mut budget = WaitBudget::new(now);
        assert_eq!(wait_often(&mut budget, &mut now, 20 * MS), WAIT_AT_ONCE);
        assert_eq!(budget.left(now), Duration::ZERO);
    }

    #[test]
    fn a_quarter_of_the_time_can_be_spent_on_waiting() {
        let mut now = Instant::now();
        let mut budget = WaitBudget::new(now);
        wait_often(&mut budget, &mut now, 20 * MS);
        now += 100 * MS;
        assert_eq!(wait_often(&mut budget, &mut now, 20 * MS), 25 * MS);
        now += 100_000 * MS;
        assert_eq!(budget.left(now), WAIT_AT_ONCE, "nothing is saved up");
    }

    #[test]
    fn a_final_budget_is_not_refilled() {
        let mut now = Instant::now();
        let mut budget = WaitBudget::new(now);
        budget.set_final(200 * MS);
        now += 1000 * MS;
        assert_eq!(wait_often(&mut budget, &mut now, 20 * MS), 200 * MS);
        now += 1000 * MS;
        assert_eq!(budget.left(now), Duration::ZERO);
    }
}
