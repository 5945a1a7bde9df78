//! Who descends from whom.

use std::fs;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{select::all_pids, status::Stat};
use crate::model::Pid;

/// Processes that are looked at; `kernel.pid_max` allows four million.
const PROCESSES_MAX: usize = 1 << 16;

/// All processes that descend from these, without themselves, parents before their children. One whose parent has ended
/// is not found: it has been given to another one. Costs some 10 µs for each process on the machine.
pub fn descendants_of(roots: &[Pid]) -> Vec<Pid> {
    let mut children: FxHashMap<Pid, Vec<Pid>> = FxHashMap::default();
    for (pid, parent) in all_processes() {
        children.entry(parent).or_default().push(pid);
    }
    let mut seen: FxHashSet<Pid> = roots.iter().copied().collect();
    let mut found = Vec::new();
    let mut waiting = roots.to_vec();
    while let Some(parent) = waiting.pop() {
        for &child in children.get(&parent).map_or(&[][..], Vec::as_slice) {
            // The list was not read in one moment: a pid that came round could make a circle.
            if seen.insert(child) {
                found.push(child);
                waiting.push(child);
            }
        }
    }
    found
}

/// Every process, with its parent.
fn all_processes() -> impl Iterator<Item = (Pid, Pid)> {
    let pids = all_pids().unwrap_or_default().into_iter();
    pids.take(PROCESSES_MAX).filter_map(|pid| {
        let stat = Stat::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)?;
        Some((pid, Pid(stat.parent)))
    })
}

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::*;

    #[test]
    fn grandchildren_are_found_behind_their_parents() {
        let mut shell = Command::new("sh")
            .args(["-c", "sh -c 'sleep 60 & echo $$ $!; wait' & wait"])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts");
        let mut line = String::new();
        BufReader::new(shell.stdout.take().expect("it is piped"))
            .read_line(&mut line)
            .expect("readable");
        let pids: Vec<Pid> = line
            .split_whitespace()
            .map(|pid| Pid(pid.parse().expect("a pid")))
            .collect();
        let found = descendants_of(&[Pid(shell.id())]);
        // The others wait for it.
        let _ = Command::new("kill").arg(pids[1].to_string()).status();
        shell.wait().expect("it ends");
        assert_eq!(found, pids);
        assert!(!descendants_of(&[Pid(std::process::id())]).contains(&Pid(std::process::id())));
    }
}
