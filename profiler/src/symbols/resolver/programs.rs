//! What becomes of programs: they start, fork, are replaced, map files, and are retired.

use std::{sync::Arc, time::Duration};

use super::{NameDiagnosis, Process, PythonCodes, Resolver};
use crate::{
    model::{ImageId, Pid},
    process::{ProgramChange, ProgramEvent, PythonInfo, Target},
};

/// What is said of a program waits so long for code objects that are being read.
const LATE_CODE_PATIENCE: Duration = Duration::from_millis(100);

/// What symbols found out about a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramFacts {
    /// Why its Python functions have, or do not have, names.
    pub names: NameDiagnosis,
    /// Whether its perf map was refused, and what in it could not be used: ready to be shown.
    pub complaints: Vec<String>,
    /// Samples of it so far.
    pub samples: u64,
    /// Another process that wrote its perf map as well.
    pub rival: Option<Pid>,
}

impl Resolver {
    /// Takes in what has happened to a program. False: there are so many files in its mappings that some are left to be
    /// opened, and its mappings are to be sent again.
    pub fn apply(&mut self, event: &ProgramEvent<'_>) -> bool {
        let ProgramEvent { pid, image, change } = *event;
        match change {
            ProgramChange::Started { target, python, .. } => {
                self.start_program(image, target, python);
            }
            ProgramChange::Forked { from, child } => {
                if let Some(parent) = self.processes.get(&from) {
                    let process = parent.forked(pid, child);
                    self.processes.insert(image, process);
                }
            }
            ProgramChange::Replaced {
                before,
                since_boot,
                is_fresh,
            } => {
                // Only what is written to the perf map from now on is the new program's.
                if let Some(before) = self.processes.get(&before) {
                    let process = before.replaced(since_boot, is_fresh);
                    self.processes.insert(image, process);
                }
            }
            ProgramChange::Described { target, python } => match self.processes.get_mut(&image) {
                Some(process) => {
                    process.set_owner(target.uid);
                    process.python = python.clone();
                }
                None => self.start_program(image, target, python),
            },
            ProgramChange::Mapped {
                mappings,
                python,
                perf_map,
            } => return self.update(image, mappings, python, perf_map),
            ProgramChange::InterpreterFound { interpreter, .. } => {
                if let Some(process) = self.processes.get_mut(&image) {
                    let interpreter = Arc::clone(interpreter);
                    let codes = PythonCodes::new(process.pid, interpreter, &self.budgets);
                    process.codes = Some(codes);
                }
            }
            ProgramChange::Retired => self.retire(image),
            ProgramChange::Exited | ProgramChange::Expelled => {}
        }
        true
    }

    /// The beginning of its perf map is read at once, and those of its ancestors.
    fn start_program(&mut self, image: ImageId, target: &Target, python: &PythonInfo) {
        let known = |pid: Pid| {
            let mut processes = self.processes.values();
            processes.find(|it| it.pid == pid).map(Process::shared_map)
        };
        let process = Process::new(target, python.clone(), known, &self.budgets);
        self.processes.insert(image, process);
    }

    fn retire(&mut self, image: ImageId) {
        let Some(mut process) = self.processes.remove(&image) else {
            return;
        };
        let last_wait = Some(LATE_CODE_PATIENCE);
        process.name_late_code(&mut self.locations, &mut self.reader, last_wait);
        self.retired.insert(image, facts_of(&process));
    }

    /// What was found out so far about a program that goes on.
    pub fn facts(&self, image: ImageId) -> Option<ProgramFacts> {
        self.processes.get(&image).map(facts_of)
    }

    /// What there is to say of a program that was retired; once.
    pub fn take_retired(&mut self, image: ImageId) -> Option<ProgramFacts> {
        self.retired.remove(&image)
    }
}

fn facts_of(process: &Process) -> ProgramFacts {
    ProgramFacts {
        names: process.diagnosis(),
        complaints: process.complaints(),
        samples: process.counts.samples(),
        rival: process.rival(),
    }
}
