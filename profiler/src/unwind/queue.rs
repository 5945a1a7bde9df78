//! What the table builder is to do, in two lines: short commands pass walks.
//!
//! That a process is a target, has new mappings or another program must be known at once, however many walks wait. These
//! commands are not limited in number: each belongs to an event that the sender has bounded already, and is done in less
//! than a millisecond. Walks carry up to 24 KiB each, so their number is bounded.

use std::{
    collections::VecDeque,
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Walks that may wait for the builder. A burst of imports at the highest rate makes some hundred.
const WALKS_MAX: usize = 1024;

/// A queue of `C`, for one receiver.
#[derive(Debug)]
pub(super) struct Queue<C> {
    lines: Mutex<Lines<C>>,
    filled: Condvar,
}

#[derive(Debug)]
struct Lines<C> {
    /// Short commands, in order.
    short: VecDeque<C>,
    /// Walks, and what must not pass them, in order.
    walks: VecDeque<C>,
    /// How many walks are in there.
    walk_count: usize,
    is_closed: bool,
}

/// What the receiver gets.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<C> {
    Command(C),
    /// There was nothing for so long.
    Nothing,
    /// Nobody sends any more, and all is done.
    Closed,
}

impl<C> Default for Queue<C> {
    fn default() -> Self {
        Self {
            lines: Mutex::new(Lines {
                short: VecDeque::new(),
                walks: VecDeque::new(),
                walk_count: 0,
                is_closed: false,
            }),
            filled: Condvar::new(),
        }
    }
}

impl<C> Queue<C> {
    /// A command that passes walks.
    pub(super) fn send(&self, command: C) {
        self.lines().short.push_back(command);
        self.filled.notify_one();
    }

    /// A command that comes after all walks sent before.
    pub(super) fn send_after_walks(&self, command: C) {
        self.lines().walks.push_back(command);
        self.filled.notify_one();
    }

    /// A walk. Given back when there are too many.
    pub(super) fn send_walk(&self, walk: C) -> Result<(), C> {
        let mut lines = self.lines();
        if lines.walk_count >= WALKS_MAX {
            return Err(walk);
        }
        lines.walk_count += 1;
        lines.walks.push_back(walk);
        drop(lines);
        self.filled.notify_one();
        Ok(())
    }

    /// Nothing more comes.
    pub(super) fn close(&self) {
        self.lines().is_closed = true;
        self.filled.notify_one();
    }

    /// The next command, for which it waits so long; `is_walk` says of one whether it is a walk.
    pub(super) fn next(&self, wait: Duration, is_walk: impl Fn(&C) -> bool) -> Next<C> {
        let mut lines = self.lines();
        if lines.is_empty() && !lines.is_closed && !wait.is_zero() {
            let waited = self
                .filled
                .wait_timeout_while(lines, wait, |lines| lines.is_empty() && !lines.is_closed);
            lines = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        if let Some(command) = lines.short.pop_front() {
            return Next::Command(command);
        }
        match lines.walks.pop_front() {
            Some(command) => {
                lines.walk_count -= usize::from(is_walk(&command));
                Next::Command(command)
            }
            None if lines.is_closed => Next::Closed,
            None => Next::Nothing,
        }
    }

    /// The lines are whole whenever the lock is free, also after a panic.
    fn lines(&self) -> MutexGuard<'_, Lines<C>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<C> Lines<C> {
    fn is_empty(&self) -> bool {
        self.short.is_empty() && self.walks.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &Queue<u32>) -> Next<u32> {
        queue.next(Duration::ZERO, |number| *number < 10_000)
    }

    #[test]
    fn short_commands_pass_walks_and_keep_their_order() {
        let queue = Queue::default();
        queue.send_walk(1).unwrap();
        queue.send(10_001);
        queue.send_walk(2).unwrap();
        queue.send_after_walks(10_003);
        queue.send(10_002);
        queue.close();
        let order = [10_001, 10_002, 1, 2, 10_003].map(Next::Command);
        assert_eq!([(); 5].map(|()| next(&queue)), order);
        assert_eq!(next(&queue), Next::Closed);
    }

    #[test]
    fn walks_are_bounded_and_short_commands_are_taken_nevertheless() {
        let queue = Queue::default();
        let taken = (0..).take_while(|&walk| queue.send_walk(walk).is_ok());
        assert_eq!(taken.count(), WALKS_MAX);
        queue.send(10_001);
        assert_eq!(next(&queue), Next::Command(10_001));
        assert_eq!(queue.send_walk(5), Err(5));
        assert_eq!(next(&queue), Next::Command(0));
        assert_eq!(queue.send_walk(5), Ok(()));
    }

    #[test]
    fn the_receiver_waits_for_a_while_only() {
        let queue = Queue::<u32>::default();
        assert_eq!(
            queue.next(Duration::from_millis(1), |_| true),
            Next::Nothing
        );
    }
}
