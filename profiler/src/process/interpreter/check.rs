//! Is the interpreter of a process known, and surely so?
//!
//! A layout comes from a table (up to 3.12) or from the process itself (since 3.13). Either may be wrong: distributions,
//! forks and debug builds change structures and keep the version. So it is tried out on the running process before it is
//! believed.

use super::{
    ADDRESS_END, ImpossibleOffset, Interpreter, Misfit, NotLocated, ReadMemory, Runtime,
    code_type::is_type,
    debug_offsets::{DebugOffsets, ROWS, Row},
    frame::Frame,
    locate,
    offsets::built_in,
    refusal::{Refusal, Version},
    self_check::{Demands, NotYet, Verdict, try_out},
    threads::list_threads,
};
use crate::{
    model::Pid,
    process::{Mapping, PythonInfo, file_name},
};

/// Frames of each thread among which a code object is looked for.
const FRAMES_SEARCHED_MAX: usize = 64;

/// What became of looking for the interpreter of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Examined {
    /// It is known, and was tried out.
    Known(Box<Interpreter>),
    /// That cannot be told now: ask again, when the process has run for a while.
    NotYet(NotYet),
    /// It is not known, and asking again will not help while the process runs this program.
    Refused(Refusal),
    /// It runs no Python.
    NoPython,
}

/// Finds the interpreter of a process, and tries it out.
///
/// `memory` is that of the process ([`Memory::open`](super::Memory::open)), `mappings` are its executable ones, and
/// `python` is what [`inspect`](crate::process::inspect) said of it. Reads the symbols of the interpreter's file the first
/// time that one is met, which takes a millisecond, and some hundred words of memory, which takes 100 to 300 µs; where a
/// layout does not fit, some milliseconds more. The process runs on meanwhile, and nothing is changed in it.
pub fn examine(
    pid: Pid,
    memory: &dyn ReadMemory,
    mappings: &[Mapping],
    python: &PythonInfo,
) -> Examined {
    let Some(version) = python.version else {
        return if is_pypy(mappings) {
            Examined::Refused(Refusal::PyPy)
        } else {
            Examined::NoPython
        };
    };
    if version < (3, 8) {
        return Examined::Refused(Refusal::TooOld(Version::of_minor(version)));
    }
    let runtimes = match locate(pid, mappings, python) {
        Ok(runtimes) => runtimes,
        Err(NotLocated::NotMapped) => return Examined::NotYet(NotYet::Gone),
        Err(NotLocated::NotLoaded { .. }) => return Examined::NotYet(NotYet::NotInitialised),
        Err(reason) => return Examined::Refused(reason.into()),
    };
    let examined = runtimes
        .iter()
        .map(|runtime| examine_runtime(memory, runtime));
    examined
        .max_by_key(says_most)
        .unwrap_or(Examined::NotYet(NotYet::NotInitialised))
}

/// Of several interpreters in a process one is in use. Of the others only this can be said: they are not initialised.
fn says_most(examined: &Examined) -> u8 {
    match examined {
        Examined::NoPython => 0,
        Examined::NotYet(NotYet::NotInitialised) => 1,
        Examined::Refused(_) => 2,
        Examined::NotYet(_) => 3,
        Examined::Known(_) => 4,
    }
}

/// `libpypy3.10-c.so`, or a `pypy3.10` that has it built in.
fn is_pypy(mappings: &[Mapping]) -> bool {
    let paths = mappings.iter().filter_map(Mapping::path);
    paths.map(file_name).any(|name| {
        let name = name.strip_prefix("lib").unwrap_or(&name);
        name.starts_with("pypy")
    })
}

/// The same for one interpreter that was located.
pub(super) fn examine_runtime(memory: &dyn ReadMemory, runtime: &Runtime) -> Examined {
    let version = Version(
        runtime
            .version_hex
            .unwrap_or(Version::of_minor(runtime.version).0),
    );
    match runtime.version {
        minor if minor < (3, 8) => Examined::Refused(Refusal::TooOld(version)),
        (3, minor @ ..=12) => examine_built_in(memory, runtime, minor, version),
        _ => examine_described(memory, runtime, version),
    }
}

fn examine_built_in(
    memory: &dyn ReadMemory,
    runtime: &Runtime,
    minor: u8,
    version: Version,
) -> Examined {
    let code_type = runtime.code_type.unwrap_or_default();
    let Some(interpreter) = built_in(minor, runtime.runtime, code_type, version.0) else {
        return Examined::Refused(Refusal::TooOld(version));
    };
    let demands = if version.is_prerelease() {
        Demands::FitsForSure
    } else {
        Demands::Fits
    };
    judge(memory, interpreter, demands)
        .unwrap_or_else(|misfit| Examined::Refused(Refusal::Foreign { version, misfit }))
}

fn examine_described(memory: &dyn ReadMemory, runtime: &Runtime, stated: Version) -> Examined {
    let Some(offsets) = DebugOffsets::read(memory, runtime.runtime) else {
        return Examined::NotYet(NotYet::Gone);
    };
    if !offsets.has_cookie() {
        return Examined::Refused(Refusal::NoDescription(stated));
    }
    let damaged = |version, fault| Examined::Refused(Refusal::Damaged { version, fault });
    let version = match offsets.version() {
        Ok(hex) => Version(hex),
        Err(fault) => return damaged(stated, fault),
    };
    if runtime.version_hex.is_some_and(|hex| hex != version.0) {
        return Examined::Refused(Refusal::NoDescription(stated));
    }
    let lay_out =
        |row: &Row| offsets.layout(row, runtime.runtime, runtime.code_type.unwrap_or_default());
    let own = ROWS.iter().find(|row| row.version == version.minor());
    if let Some(row) = own.filter(|_| !version.is_prerelease()) {
        return match lay_out(row) {
            Ok(interpreter) => judge(memory, interpreter, Demands::Fits)
                .unwrap_or_else(|misfit| Examined::Refused(Refusal::Foreign { version, misfit })),
            Err(fault) => damaged(version, fault),
        };
    }
    examine_unknown(memory, version, own.into_iter().chain(&ROWS), lay_out)
}

/// Of a version that is not known, or may still change, each row is tried; what its own or the newest says is told.
fn examine_unknown<'r>(
    memory: &dyn ReadMemory,
    version: Version,
    rows: impl Iterator<Item = &'r Row>,
    lay_out: impl Fn(&Row) -> Result<Interpreter, ImpossibleOffset>,
) -> Examined {
    let (mut not_yet, mut first_reason) = (None, None);
    for row in rows {
        let reason = match lay_out(row).map(|it| judge(memory, it, Demands::FitsForSure)) {
            Ok(Ok(known @ Examined::Known(_))) => return known,
            Ok(Ok(other)) => {
                not_yet.get_or_insert(other);
                continue;
            }
            Ok(Err(misfit)) => misfit.to_string(),
            Err(fault) => fault.to_string(),
        };
        first_reason.get_or_insert(reason);
    }
    let reason = first_reason.unwrap_or_default();
    not_yet.unwrap_or(Examined::Refused(Refusal::Unknown { version, reason }))
}

/// Tries a layout out, after looking for `PyCode_Type` where its address is not known.
fn judge(
    memory: &dyn ReadMemory,
    mut interpreter: Interpreter,
    demands: Demands,
) -> Result<Examined, Misfit> {
    if interpreter.code.code_type == 0
        && let Some(code_type) = find_code_type(memory, &interpreter)
    {
        interpreter.code.code_type = code_type;
        interpreter.frames.code_type = code_type;
    }
    match try_out(memory, &interpreter, demands) {
        Verdict::Fits => Ok(Examined::Known(Box::new(interpreter))),
        Verdict::NotYet(reason) => Ok(Examined::NotYet(reason)),
        // Without a frame there is nothing to find it by.
        Verdict::Misfit(_) if interpreter.code.code_type == 0 => {
            Ok(Examined::NotYet(NotYet::NoFrames))
        }
        Verdict::Misfit(misfit) => Err(misfit),
    }
}

/// The type of what the frames run, if that is the type of code objects: for files without symbols.
fn find_code_type(memory: &dyn ReadMemory, interpreter: &Interpreter) -> Option<u64> {
    let mut threads = Vec::new();
    // What was found before a list led astray will do.
    let _ = list_threads(memory, &interpreter.frames, &mut threads);
    threads.iter().find_map(|thread| {
        let mut next = thread.frame;
        (0..FRAMES_SEARCHED_MAX).find_map(|_| {
            let frame = Frame::read(memory, &interpreter.frames, next)?;
            next = frame.previous;
            let type_at = frame
                .code
                .checked_add(u64::from(interpreter.code.object_type))?;
            let found = memory.u64(type_at).filter(|&found| found < ADDRESS_END)?;
            is_type(memory, &interpreter.code, found, b"code\0").then_some(found)
        })
    })
}

#[cfg(test)]
#[path = "check_tests.rs"]
mod tests;
