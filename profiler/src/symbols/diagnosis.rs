//! Why Python functions have, or do not have, names: from counts, by rules that can be read in a row.

use crate::process::PythonInfo;

use super::NameDiagnosis;

/// First CPython with trampolines of its own.
const OWN_TRAMPOLINES_SINCE: (u8, u8) = (3, 12);

/// First CPython that can be given some.
const TRAMPOLINES_SINCE: (u8, u8) = (3, 9);

/// Share of the interpreter's samples without any trampoline from which on functions count as missing. Below it, what
/// runs without trampolines is start-up, or another interpreter of the process.
const LATE_SHARE: f64 = 0.2;

/// What became of a process's perf map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapState {
    /// It was read.
    Ok,
    /// There is none.
    Missing,
    /// It must not be trusted.
    Refused,
    /// It should be readable, but was not.
    Unreadable,
}

/// What is known of a process after a recording, or so far.
#[derive(Clone, Copy, Debug)]
pub struct NameFacts<'a> {
    /// Its interpreter.
    pub python: &'a PythonInfo,
    /// The frames of its interpreter are read: they have names, whatever is in its perf map.
    pub frames_are_read: bool,
    /// Its perf map.
    pub map: MapState,
    /// It has its perf map open for writing ([`crate::process::perf_map_handle`]).
    pub map_is_open: bool,
    /// Frames in executable memory of no file that are trampolines, named or not.
    pub trampoline_frames: u64,
    /// Frames that the perf map gave the name of a Python function.
    pub named_frames: u64,
    /// Samples with a frame of the interpreter's evaluation loop (`_PyEval_EvalFrameDefault`).
    pub interpreter_samples: u64,
    /// Of these, the ones whose outermost evaluation loop was not called by a trampoline: functions that were running
    /// already when trampolines were switched on, or before.
    pub samples_without_outer_trampoline: u64,
}

/// Decides what to tell the user.
pub fn diagnose(facts: &NameFacts<'_>) -> NameDiagnosis {
    let NameFacts {
        python,
        frames_are_read,
        map,
        map_is_open,
        trampoline_frames,
        named_frames,
        ..
    } = *facts;
    if frames_are_read {
        return NameDiagnosis::Named;
    }
    // To an older CPython itself PYTHONPERFSUPPORT means nothing; who gives it trampolines opens its map first. A map
    // that only lies there may be that of an earlier process.
    let is_given_some = map_is_open || map == MapState::Refused;
    let asked = python.trampolines_asked
        && (python.version >= Some(OWN_TRAMPOLINES_SINCE) || is_given_some);
    if named_frames > 0 {
        let late = !asked && share_without_trampoline(facts) >= LATE_SHARE;
        return if late {
            NameDiagnosis::ActivatedLate
        } else {
            NameDiagnosis::Named
        };
    }
    let Some(version) = python.version else {
        // The map of another code generator, which needs no Python.
        return if map_is_open && map == MapState::Ok {
            NameDiagnosis::Named
        } else {
            NameDiagnosis::NotPython
        };
    };
    if python.jitdump && !map_is_open {
        return NameDiagnosis::JitDump;
    }
    if trampoline_frames > 0 {
        // A map that was read, and names none of them, is not theirs.
        return map_problem(map).unwrap_or(NameDiagnosis::MapUnreadable);
    }
    if version < TRAMPOLINES_SINCE {
        return NameDiagnosis::TooOld { version };
    }
    if asked {
        // Nothing is wrong with a process that ran no Python function.
        return map_problem(map).unwrap_or(NameDiagnosis::Named);
    }
    if map_is_open && facts.interpreter_samples > 0 {
        return NameDiagnosis::ActivatedLate;
    }
    NameDiagnosis::NotActivated
}

fn map_problem(map: MapState) -> Option<NameDiagnosis> {
    match map {
        MapState::Ok => None,
        MapState::Missing => Some(NameDiagnosis::MapMissing),
        MapState::Refused => Some(NameDiagnosis::MapRefused),
        MapState::Unreadable => Some(NameDiagnosis::MapUnreadable),
    }
}

fn share_without_trampoline(facts: &NameFacts<'_>) -> f64 {
    if facts.interpreter_samples == 0 {
        return 0.0;
    }
    facts.samples_without_outer_trampoline as f64 / facts.interpreter_samples as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `-X perf` and CPython's version say; no jitdump.
    fn python(version: Option<(u8, u8)>, trampolines_asked: bool) -> PythonInfo {
        PythonInfo {
            version,
            interpreter_files: Vec::new(),
            trampolines_asked,
            jitdump: false,
        }
    }

    /// A process that was sampled 100 times in the interpreter and has no names.
    fn nameless(python: &PythonInfo, map: MapState) -> NameFacts<'_> {
        NameFacts {
            python,
            frames_are_read: false,
            map,
            map_is_open: false,
            trampoline_frames: 0,
            named_frames: 0,
            interpreter_samples: 100,
            samples_without_outer_trampoline: 100,
        }
    }

    #[test]
    fn without_names_the_cause_is_told() {
        use MapState::{Missing, Ok, Refused, Unreadable};
        use NameDiagnosis as D;
        let (old, new) = (Some((3, 11)), Some((3, 12)));
        let too_old = D::TooOld { version: (3, 8) };
        // version, asked at start, trampolines on stacks, map open, map, diagnosis
        let table = [
            (None, false, 0, false, Missing, D::NotPython),
            (None, false, 0, true, Ok, D::Named),
            (None, false, 0, false, Ok, D::NotPython),
            (Some((3, 8)), false, 0, false, Missing, too_old),
            (Some((3, 8)), true, 0, false, Missing, too_old),
            (Some((3, 9)), false, 0, false, Missing, D::NotActivated),
            (old, false, 0, false, Missing, D::NotActivated),
            (old, true, 0, false, Missing, D::NotActivated),
            (old, true, 0, false, Ok, D::NotActivated),
            (old, true, 0, true, Ok, D::Named),
            (old, true, 0, false, Refused, D::MapRefused),
            (old, false, 0, true, Ok, D::ActivatedLate),
            (old, false, 9, true, Refused, D::MapRefused),
            (old, true, 9, false, Missing, D::MapMissing),
            (new, false, 0, false, Missing, D::NotActivated),
            (new, false, 0, false, Ok, D::NotActivated),
            (new, false, 0, true, Ok, D::ActivatedLate),
            (new, false, 9, false, Missing, D::MapMissing),
            (new, true, 9, false, Missing, D::MapMissing),
            (new, true, 0, false, Missing, D::MapMissing),
            (new, true, 9, true, Refused, D::MapRefused),
            (new, true, 9, true, Unreadable, D::MapUnreadable),
            (new, true, 9, true, Ok, D::MapUnreadable),
            (new, true, 0, true, Ok, D::Named),
            (Some((3, 15)), false, 0, false, Missing, D::NotActivated),
        ];
        for row in table {
            let (version, asked, trampoline_frames, map_is_open, map, expected) = row;
            let python = python(version, asked);
            let facts = NameFacts {
                map_is_open,
                trampoline_frames,
                ..nameless(&python, map)
            };
            assert_eq!(diagnose(&facts), expected, "{row:?}");
        }
    }

    #[test]
    fn names_with_many_stacks_that_have_no_trampoline_mean_late_activation() {
        // asked at start, samples without an outer trampoline of 100, diagnosis
        let table = [
            (false, 0, NameDiagnosis::Named),
            (false, 19, NameDiagnosis::Named),
            (false, 20, NameDiagnosis::ActivatedLate),
            (false, 100, NameDiagnosis::ActivatedLate),
            (true, 100, NameDiagnosis::Named),
        ];
        for row in table {
            let (asked, samples_without_outer_trampoline, expected) = row;
            for version in [(3, 9), (3, 12)] {
                let python = python(Some(version), asked);
                let facts = NameFacts {
                    map_is_open: true,
                    named_frames: 50,
                    trampoline_frames: 50,
                    samples_without_outer_trampoline,
                    ..nameless(&python, MapState::Ok)
                };
                assert_eq!(diagnose(&facts), expected, "{row:?} {version:?}");
            }
        }
    }

    #[test]
    fn a_jitdump_explains_missing_names_unless_there_is_a_map() {
        let python = PythonInfo {
            jitdump: true,
            ..python(Some((3, 13)), true)
        };
        let facts = NameFacts {
            trampoline_frames: 9,
            ..nameless(&python, MapState::Missing)
        };
        assert_eq!(diagnose(&facts), NameDiagnosis::JitDump);
        // The map of an earlier process with this pid.
        let facts = NameFacts {
            map: MapState::Ok,
            ..facts
        };
        assert_eq!(diagnose(&facts), NameDiagnosis::JitDump);
        let facts = NameFacts {
            named_frames: 9,
            ..facts
        };
        assert_eq!(diagnose(&facts), NameDiagnosis::Named);
    }

    #[test]
    fn names_count_even_if_no_interpreter_was_recognised() {
        let python = python(None, false);
        let facts = NameFacts {
            named_frames: 1,
            interpreter_samples: 0,
            ..nameless(&python, MapState::Ok)
        };
        assert_eq!(diagnose(&facts), NameDiagnosis::Named);
    }
}
