//! Which processes a target has started, as far as they run Python.

use std::{collections::BTreeSet, fs, time::Instant};

use super::{Pace, runs_python};
use crate::model::Pid;

/// Processes looked at in one go, and children remembered.
const PROCESSES_MAX: usize = 256;
/// Threads of a process that are asked for their children.
const THREADS_MAX: usize = 64;

/// Pythons among the children of targets, and among their children's children: what was seen so far.
#[derive(Debug, Default)]
pub struct Children {
    pythons: BTreeSet<Pid>,
    pace: Pace,
}

impl Children {
    /// Looks at the children that a process has now. Costs two system calls for each thread and child; needs a kernel
    /// with `CONFIG_PROC_CHILDREN`, without which there seem to be none.
    pub fn look(&mut self, pid: Pid) {
        let began = Instant::now();
        if self.pace.is_resting(began) {
            return;
        }
        let mut waiting = vec![pid];
        let mut seen = BTreeSet::from([pid]);
        while let Some(parent) = waiting.pop() {
            for child in children_of(parent) {
                if seen.len() >= PROCESSES_MAX || !seen.insert(child) {
                    continue;
                }
                waiting.push(child);
                let is_news = self.pythons.len() < PROCESSES_MAX && !self.pythons.contains(&child);
                if is_news && runs_python(child).unwrap_or(false) {
                    self.pythons.insert(child);
                }
            }
        }
        let now = Instant::now();
        self.pace.spent(now, now - began);
    }

    /// The Pythons, by pid.
    pub fn pythons(&self) -> impl Iterator<Item = Pid> + '_ {
        self.pythons.iter().copied()
    }
}

fn children_of(pid: Pid) -> Vec<Pid> {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return Vec::new();
    };
    let lists = threads
        .flatten()
        .take(THREADS_MAX)
        .filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
    lists.flat_map(|list| parse_pids(&list)).collect()
}

fn parse_pids(list: &str) -> Vec<Pid> {
    let pids = list.split_whitespace().filter_map(|pid| pid.parse().ok());
    pids.map(Pid).collect()
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn lists_of_children_are_numbers_and_spaces() {
        assert_eq!(parse_pids("12 345 \n"), [Pid(12), Pid(345)]);
        assert_eq!(parse_pids(""), []);
    }

    #[test]
    fn a_child_is_found_and_one_that_is_no_python_left_out() {
        let mut child = Command::new("sleep")
            .arg("60")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let me = Pid(std::process::id());
        let found = children_of(me).contains(&Pid(child.id()));
        let mut children = Children::default();
        children.look(me);
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(found);
        assert!(!children.pythons().any(|pid| pid.0 == child.id()));
    }
}
