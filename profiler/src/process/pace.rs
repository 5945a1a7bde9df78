//! A bound on work that a process under observation can cause at will.

use std::time::{Duration, Instant};

/// After a piece of work, so many times as long nothing is done.
const REST_FACTOR: u32 = 4;

/// Keeps a kind of work to a fifth of the time: after each piece it rests four times as long.
///
/// A process may map files, `exec`, or replace its perf map thousands of times a second. What such an event asks for
/// is noted, and done when the rest is over.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pace {
    rest_until: Option<Instant>,
}

impl Pace {
    /// The last piece was too short a time ago.
    pub fn is_resting(&self) -> bool {
        self.rest_until.is_some_and(|until| Instant::now() < until)
    }

    /// A piece of work has taken this long.
    pub fn spent(&mut self, took: Duration) {
        self.rest_until = Instant::now().checked_add(took * REST_FACTOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rests_after_work_and_only_then() {
        let mut pace = Pace::default();
        assert!(!pace.is_resting());
        pace.spent(Duration::from_secs(10));
        assert!(pace.is_resting());
        pace.spent(Duration::ZERO);
        assert!(!pace.is_resting());
    }
}
