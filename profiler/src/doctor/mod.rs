//! Can this machine, and this process, be profiled, and what would be missing?
//!
//! * **Job:** finds out beforehand what a recording would run into, and says what to do about it.
//! * **Gets** facts from /proc and /sys, and tries the kernel side for a moment where that is allowed.
//! * **Gives** [`Check`]s: a line each, in the order in which people would ask.
//! * **Must not know** how they are shown.
//!
//! Facts are read apart from being judged, so that each judgement can be tested: `machine` and `target` have both, in
//! this order. Everything works without any privilege: that is when people ask.

#![forbid(unsafe_code)]

mod container;
mod machine;
mod rights;
mod target;

pub use machine::{Limits, Machine, Tried};
pub use target::{FrameFacts, MapFacts, Patient, Space};

/// How something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    /// As it should be.
    Ok,
    /// Recording works, but shows less, or may be refused.
    Limited,
    /// Recording does not work.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// What, in a word or two.
    pub name: &'static str,
    /// How it is.
    pub state: State,
    /// How it is, in words. May hold what a process says of itself, raw.
    pub finding: String,
    /// What to do about it, a step a line; empty where all is well.
    pub next: Vec<String>,
}

impl Check {
    fn ok(name: &'static str, finding: impl Into<String>) -> Self {
        Self {
            name,
            state: State::Ok,
            finding: finding.into(),
            next: Vec::new(),
        }
    }

    fn limited(name: &'static str, finding: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            state: State::Limited,
            next: vec![next.into()],
            ..Self::ok(name, finding)
        }
    }

    fn missing(name: &'static str, finding: impl Into<String>, next: impl Into<String>) -> Self {
        Self {
            state: State::Missing,
            ..Self::limited(name, finding, next)
        }
    }

    /// From the message of an error: its first line is the finding, the others are the next steps.
    fn of_error(name: &'static str, message: &str) -> Self {
        let mut lines = message.lines().map(str::trim).map(str::to_owned);
        Self {
            finding: lines.next().unwrap_or_default(),
            next: lines.collect(),
            ..Self::missing(name, "", "")
        }
    }
}

/// The worst of all.
pub fn verdict<'a>(checks: impl IntoIterator<Item = &'a Check>) -> State {
    let states = checks.into_iter().map(|check| check.state);
    states.max().unwrap_or(State::Ok)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_counts() {
        let ok = Check::ok("a", "fine");
        let limited = Check::limited("b", "less", "do this");
        let missing = Check::of_error("c", "cannot\n  because\n  do that");
        assert_eq!(verdict([]), State::Ok);
        assert_eq!(verdict([&limited, &ok]), State::Limited);
        assert_eq!(verdict([&ok, &missing, &limited]), State::Missing);
        assert_eq!(missing.finding, "cannot");
        assert_eq!(missing.next, ["because", "do that"]);
    }
}
