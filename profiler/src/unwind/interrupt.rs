//! Ends the compilation of a file before it is complete.

use std::cell::Cell;

/// Steps between two checks: a step takes well below a microsecond.
const STEPS: u32 = 1024;

/// Whether the work on a file is to end early: because the recording ends, or the file takes more time than its process may
/// use.
pub(super) struct Interrupt<'i> {
    is_wanted: &'i dyn Fn() -> bool,
    steps: Cell<u32>,
    happened: Cell<bool>,
}

impl<'i> Interrupt<'i> {
    /// Asks `is_wanted` now and then.
    pub(super) const fn new(is_wanted: &'i dyn Fn() -> bool) -> Self {
        Self {
            is_wanted,
            steps: Cell::new(0),
            happened: Cell::new(false),
        }
    }

    /// A step of the work begins. True: it is to end here.
    pub(super) fn step(&self) -> bool {
        let steps = self.steps.get() + 1;
        self.steps.set(steps % STEPS);
        if steps == STEPS && !self.happened.get() {
            self.happened.set((self.is_wanted)());
        }
        self.happened.get()
    }

    /// The work was ended early: what there is of it is incomplete.
    pub(super) const fn happened(&self) -> bool {
        self.happened.get()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_ends_soon_after_it_is_to_end_and_not_before() {
        let is_wanted = Cell::new(false);
        let question = || is_wanted.get();
        let interrupt = Interrupt::new(&question);
        assert!((0..10 * STEPS).all(|_| !interrupt.step()));
        is_wanted.set(true);
        assert!((0..=STEPS).any(|_| interrupt.step()));
        assert!(interrupt.step() && interrupt.happened());
    }
}
