//! Before 3.14 an interpreter takes no requests. It has a queue of calls to make, and one is put into that from outside.
//!
//! The call is of `PyRun_SimpleString`, its argument a line of source in memory that nobody uses. Nothing of the process is
//! run by us: no register is changed, no code written. It makes the call itself, between two instructions of Python, where
//! it would make any other.

use std::{thread::sleep, time::Duration};

use super::{
    ActivateError,
    interpreter::Found,
    memory::{ProcessMemory, WriteMemory as _},
    ring::{Call, Refused, Ring},
    stopped::while_stopped,
    unused::{Unused, unused_memory},
};
use crate::{
    model::{Avma, Pid},
    process::{ElfFile, Mapping, SymbolTable, Target, open_mapped},
};

/// Room for the line of source.
pub(super) const TEXT_BYTES: u64 = 192;
/// A lock that a thread holds is looked at so often, this far apart.
const TRIES: u32 = 20;
const BETWEEN_TRIES: Duration = Duration::from_millis(10);

/// A call that can be put into the queue of a process, and taken out again.
pub(super) struct Injection<'p> {
    pid: Pid,
    memory: &'p ProcessMemory,
    mappings: &'p [Mapping],
    found: &'p Found,
    call: Call,
    place: Unused,
}

impl<'p> Injection<'p> {
    /// Finds out what to call, and where to put its argument. Changes nothing.
    pub(super) fn plan(
        target: &Target,
        memory: &'p ProcessMemory,
        mappings: &'p [Mapping],
        found: &'p Found,
    ) -> Result<Self, ActivateError> {
        let pid = target.pid;
        let function = run_simple_string(pid, mappings, found);
        let function = function.ok_or_else(|| {
            ActivateError::unknown(pid, "it does not say where its PyRun_SimpleString is")
        })?;
        let place = unused_memory(target, mappings, memory, TEXT_BYTES)
            .ok_or(ActivateError::NoMemory { pid })?;
        let injection = Self {
            pid,
            memory,
            mappings,
            found,
            call: Call {
                function,
                argument: place.at,
            },
            place,
        };
        injection.ring()?;
        Ok(injection)
    }

    /// Puts the call in.
    pub(super) fn put(&self, source: &str) -> Result<(), ActivateError> {
        let mut text = source.as_bytes().to_vec();
        text.push(0);
        if text.len() as u64 > TEXT_BYTES {
            return Err(ActivateError::unknown(self.pid, "too long a path"));
        }
        let pid = self.pid;
        let ring = self.ring()?;
        let mut left = TRIES;
        loop {
            // Threads come and go: as they are while all stand still.
            let pushed = while_stopped(pid, || {
                if !self.memory.write(self.call.argument, &text) {
                    return Err(Refused::Implausible("its memory"));
                }
                let threads = self.found.threads(self.memory);
                let pushed = ring.push(self.call, &threads, &|at| self.is_code(at));
                if pushed.is_err() {
                    self.clean();
                }
                pushed
            });
            match pushed.map_err(|reason| ActivateError::NotStopped { pid, reason })? {
                Err(Refused::Locked) if left > 0 => left -= 1,
                Err(reason) => return Err(ActivateError::Queue { pid, reason }),
                Ok(()) => return Ok(()),
            }
            sleep(BETWEEN_TRIES);
        }
    }

    /// It is in the queue.
    pub(super) fn is_waiting(&self) -> bool {
        self.ring().is_ok_and(|ring| ring.has(self.call))
    }

    /// Has the threads look again.
    pub(super) fn remind(&self) {
        if let Ok(ring) = self.ring() {
            ring.remind();
        }
    }

    /// Takes it out, if it is still there and that can be done. Else it stays, and finds nothing to do.
    pub(super) fn withdraw(&self) {
        let Ok(ring) = self.ring() else {
            return;
        };
        for _ in 0..=TRIES {
            let done = while_stopped(self.pid, || {
                ring.withdraw(self.call, &|at| self.is_code(at))
            });
            match done {
                // Out before it was called, nobody has its argument.
                Ok(Ok(super::ring::Withdrawn::Yes)) => return self.clean(),
                Ok(Err(Refused::Locked)) => sleep(BETWEEN_TRIES),
                _ => return,
            }
        }
    }

    /// Leaves the memory as it was. Not while the call may still be made: it would read half of its argument.
    pub(super) fn clean(&self) {
        self.memory.write(self.place.at, &self.place.content);
    }

    fn ring(&self) -> Result<Ring<'_>, ActivateError> {
        let version = self.found.version.minor();
        Ring::of(self.memory, self.found.state, version).ok_or_else(|| {
            ActivateError::unknown(self.pid, "no queue of calls is known of this version")
        })
    }

    fn is_code(&self, at: u64) -> bool {
        let mut code = self.mappings.iter().filter(|mapping| mapping.executable);
        code.any(|mapping| mapping.contains(Avma(at)))
    }
}

/// The address of `int PyRun_SimpleString(const char *)` (Python/pythonrun.c), which every build exports.
fn run_simple_string(pid: Pid, mappings: &[Mapping], found: &Found) -> Option<u64> {
    let is_it = |mapping: &&Mapping| mapping.path() == Some(&found.path);
    let mapping = mappings.iter().find(is_it)?;
    let opened = open_mapped(pid, mapping).ok()?;
    let elf = ElfFile::parse(&opened.file).ok()?;
    let mut tables = [SymbolTable::Dynamic, SymbolTable::Full].into_iter();
    let stated = tables.find_map(|table| elf.symbols(table, ["PyRun_SimpleString"])[0])?;
    let function = found.bias.wrapping_add(stated.0);
    let mut code = mappings.iter().filter(|mapping| mapping.executable);
    code.any(|mapping| mapping.contains(Avma(function)) && mapping.path() == Some(&found.path))
        .then_some(function)
}
