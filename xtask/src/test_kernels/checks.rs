//! What is tried on each kernel, and what must come of it.

/// How the workload is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// It runs, and is attached to.
    Attached,
    /// The program starts it.
    Launched,
}

/// One trial.
#[derive(Clone, Copy, Debug)]
pub(super) struct Check {
    pub(super) name: &'static str,
    pub(super) way: Way,
    /// A program from `workloads/`.
    pub(super) workload: &'static str,
    /// More options for `record`.
    pub(super) options: &'static [&'static str],
    /// Each of these frames is in nearly every stack.
    pub(super) frames: &'static [&'static str],
    /// One of these is in a good part of them, if there are any names here.
    pub(super) some: &'static [&'static str],
    /// The share of stacks that must be whole.
    pub(super) complete: f64,
    /// An option that the program must know for this.
    pub(super) needs: Option<&'static str>,
}

/// What is promised.
const COMPLETE: f64 = 0.99;
/// The same for a recording from the start, when libraries are met before their tables are made.
const COMPLETE_FROM_START: f64 = 0.95;

const ALL: [Check; 6] = [
    Check {
        name: "attached",
        way: Way::Attached,
        workload: "chain",
        options: &[],
        frames: &["py::<module>:", "py::baz:", "py::bar:", "py::foo:"],
        some: &[],
        complete: COMPLETE,
        needs: None,
    },
    Check {
        name: "launched",
        way: Way::Launched,
        workload: "chain",
        options: &[],
        frames: &[],
        some: &["py::foo:"],
        complete: COMPLETE_FROM_START,
        needs: None,
    },
    Check {
        name: "deep",
        way: Way::Attached,
        workload: "recursion",
        options: &["--view", "mixed"],
        frames: &["_start", "py::<module>:", "py::main:", "py::descend:"],
        some: &["py::spin:"],
        complete: COMPLETE,
        needs: None,
    },
    Check {
        name: "kernel",
        way: Way::Attached,
        workload: "syscalls",
        options: &["--view", "mixed", "--kernel"],
        frames: &["_start", "py::<module>:", "py::main:"],
        some: &["vfs_read_[k]", "vfs_write_[k]", "handle_mm_fault_[k]"],
        complete: COMPLETE,
        needs: None,
    },
    Check {
        name: "family",
        way: Way::Launched,
        workload: "family",
        options: &["--subprocesses"],
        frames: &[],
        some: &["py::work:"],
        complete: COMPLETE_FROM_START,
        needs: Some("--subprocesses"),
    },
    Check {
        name: "trampolines",
        way: Way::Attached,
        workload: "recursion",
        options: &["--view", "mixed", "--python-from", "perf-map"],
        frames: &["_start", "py::<module>:", "py::main:", "py::descend:"],
        some: &["py::spin:"],
        complete: COMPLETE,
        needs: Some("--python-from"),
    },
];

impl Check {
    /// Why it is skipped.
    pub(super) fn why_not(&self) -> String {
        let option = self.needs.unwrap_or_default();
        format!("this program has no {option}")
    }

    /// The line of the guest's script that does it.
    pub(super) fn line(&self) -> String {
        let way = match self.way {
            Way::Attached => "attached",
            Way::Launched => "launched",
        };
        let words = [way, self.name, self.workload];
        let words: Vec<&str> = words
            .into_iter()
            .chain(self.options.iter().copied())
            .collect();
        words.join(" ")
    }
}

/// The checks that a program with this help text can do, and the others.
pub(super) fn for_program(help: &str) -> (Vec<Check>, Vec<Check>) {
    ALL.into_iter()
        .partition(|check| check.needs.is_none_or(|option| help.contains(option)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_skipped_when_its_option_is_not_there() {
        let (checks, skipped) = for_program("--pid --duration --python-from");
        assert_eq!((checks.len(), skipped.len()), (5, 1));
        assert_eq!(skipped[0].why_not(), "this program has no --subprocesses");
        assert_eq!(for_program("-s, --subprocesses --python-from").1.len(), 0);
    }

    #[test]
    fn the_guest_is_told_in_words() {
        assert_eq!(
            ALL[3].line(),
            "attached kernel syscalls --view mixed --kernel"
        );
    }
}
