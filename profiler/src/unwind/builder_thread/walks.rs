//! Walks that the BPF program could not finish: continued here as soon as the rows that they need are known.

use std::{fs::File, time::Instant};

use super::{
    super::{RuleLookup, builder::UnfinishedWalk, builder_process::Process},
    Builder, MEMORY_MAX, TRY_EVERY,
};
use crate::{
    model::{ImageId, Pid},
    process::proc_folder,
};

impl Builder {
    /// Goes on where the kernel side stopped, at once or when the rows are there that it takes.
    pub(super) fn finish_or_park(&mut self, walk: Box<UnfinishedWalk>) {
        self.want(walk.stack.image);
        if let Some(walk) = self.finish(walk)
            && let Some(given_up) = self.parked.add(walk)
        {
            self.send(given_up.into_stack());
        }
    }

    /// Finishes a walk, or gives it back if it needs rows that are being made.
    pub(super) fn finish(&mut self, mut walk: Box<UnfinishedWalk>) -> Option<Box<UnfinishedWalk>> {
        let image = walk.stack.image;
        self.open_memory(walk.stack.pid, image);
        if let Some(process) = self.processes.get(&image) {
            let mut is_pending = false;
            let tables = &self.tables;
            let look_up = |address| {
                let found = process.look_up(tables, address);
                is_pending |= matches!(found, RuleLookup::NotYet);
                found
            };
            let words = walk.native.len();
            let finished = process.finish(&mut walk, look_up);
            if is_pending && self.is_to_come(process) {
                walk.native.truncate(words);
                return Some(walk);
            }
            walk.stack.end = finished.end;
            walk.stack.guessed |= finished.guessed;
        }
        self.send(walk.into_stack());
        None
    }

    /// More will be known of a program's mappings.
    pub(super) fn is_to_come(&self, process: &Process) -> bool {
        let has_time = || self.schedule.has_time(process.pid, self.began.elapsed());
        !self.is_ending() && (process.has_to_open() || process.is_waiting() && has_time())
    }

    /// The handle is of the program's memory, not of the process's: another one after an `exec`.
    pub(super) fn open_memory(&mut self, pid: Pid, image: ImageId) {
        let is_current = self.shared.is_current(pid, image);
        let Some(process) = self.processes.get_mut(&image) else {
            return;
        };
        if process.memory.is_some() || !is_current {
            return;
        }
        process.memory = File::open(format!("{}/mem", proc_folder(pid))).ok();
        self.memory_open += 1;
        if self.memory_open > MEMORY_MAX {
            self.memory_open = 1;
            let others = self.processes.iter_mut().filter(|(it, _)| **it != image);
            for (_, process) in others {
                process.memory = None;
            }
        }
    }

    /// Tries walks again whose program has got more rows.
    pub(super) fn retry_walks(&mut self) {
        if self.parked.is_empty() {
            return;
        }
        for image in self.parked.images() {
            let Some(process) = self.processes.get(&image) else {
                self.give_up_walks(image);
                continue;
            };
            let is_recent = process.tried.is_some_and(|at| at.elapsed() < TRY_EVERY);
            if is_recent && self.is_to_come(process) {
                continue;
            }
            if let Some(process) = self.processes.get_mut(&image) {
                process.tried = Some(Instant::now());
            }
            for walk in self.parked.take(image) {
                if let Some(walk) = self.finish(walk) {
                    // There was room for it a moment ago.
                    let _ = self.parked.add(walk);
                }
            }
        }
    }

    /// The walks of a program count as far as they got.
    pub(super) fn give_up_walks(&mut self, image: ImageId) {
        for mut walk in self.parked.take(image) {
            if let Some(process) = self.processes.get(&image) {
                let look_up = |address| process.look_up(&self.tables, address);
                let finished = process.finish(&mut walk, look_up);
                walk.stack.end = finished.end;
                walk.stack.guessed |= finished.guessed;
            }
            self.send(walk.into_stack());
        }
    }

    /// A program is gone, with the walks that wait for it.
    pub(super) fn forget(&mut self, image: ImageId) {
        self.give_up_walks(image);
        self.changed.remove(&image);
        self.without_slot.remove(&image);
        if let Some(process) = self.processes.remove(&image) {
            self.memory_open -= usize::from(process.memory.is_some() && self.memory_open > 0);
        }
    }
}
