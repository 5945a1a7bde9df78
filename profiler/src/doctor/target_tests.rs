//! Every judgement on a process.

use super::*;
use crate::doctor::State;

fn refused(reason: &str) -> Obstacle {
    Obstacle {
        reason: reason.to_owned(),
        remedy: Remedy::PerfMap,
    }
}

/// A Python with trampolines since its start, and 12 functions so far.
fn well() -> Patient {
    Patient {
        pid: Pid(4242),
        ns_pid: 4242,
        uid: 1000,
        command: "python -X perf app.py".to_owned(),
        python: PythonInfo {
            version: Some((3, 12)),
            interpreter_files: vec!["/usr/lib/libpython3.12.so.1.0".to_owned()],
            trampolines_asked: true,
            jitdump: false,
        },
        halt: None,
        first_thread_has_ended: false,
        python_children: vec![],
        frames: FrameFacts::Refused(refused("it is another build")),
        map: MapFacts {
            path: "/proc/4242/root/tmp/perf-4242.map".to_owned(),
            state: MapState::Ok,
            refusal: String::new(),
            entries: 12,
            is_open: true,
            is_deleted: false,
            is_permission: false,
        },
        apart: vec![],
        files: FileLimits::default(),
    }
}

fn files_with(limit: FileLimit) -> FileLimits {
    ["a.so", "b.so"]
        .map(|name| (limit, name))
        .into_iter()
        .collect()
}

#[test]
fn a_process_in_good_health_lacks_nothing() {
    let mut patient = well();
    patient.frames = FrameFacts::Known(0x030c_01f0);
    for check in patient.checks() {
        assert_eq!(check.state, State::Ok, "{check:?}");
    }
    assert_eq!(patient.diagnosis(), NameDiagnosis::Named);
    // Nor does one without trampolines, whose frames are read.
    patient.map.is_open = false;
    patient.map.state = MapState::Missing;
    patient.python.trampolines_asked = false;
    for check in patient.checks() {
        assert_eq!(check.state, State::Ok, "{check:?}");
    }
    assert_eq!(patient.diagnosis(), NameDiagnosis::Named);
}

#[test]
fn frames_of_the_interpreter_are_judged_by_what_is_known_of_it() {
    use State::{Limited, Ok};
    for (frames, state, word) in [
        (
            FrameFacts::Known(0x030c_01f0),
            Ok,
            "CPython 3.12.1, with lines",
        ),
        (
            FrameFacts::Known(0x030a_0000),
            Ok,
            "CPython 3.10, with lines",
        ),
        (FrameFacts::NoPython, Ok, "no Python"),
        (
            FrameFacts::Refused(refused("another build")),
            Limited,
            "another build",
        ),
        (
            FrameFacts::NotYet("no thread runs".to_owned()),
            Limited,
            "no thread runs",
        ),
    ] {
        let patient = Patient { frames, ..well() };
        let checks = patient.checks();
        let check = checks.iter().find(|check| check.name == "Python frames");
        let check = check.unwrap();
        assert_eq!(check.state, state, "{check:?}");
        assert!(check.finding.contains(word), "no {word:?} in {check:?}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn each_thing_is_judged_by_itself() {
    use State::{Limited, Ok};
    type Change = fn(&mut Patient);
    let table: &[(&str, Change, State, &str)] = &[
        ("process", |_| (), Ok, "app.py, of user 1000"),
        ("namespaces", |_| (), Ok, "ours"),
        ("state", |_| (), Ok, "it can run"),
        (
            "state",
            |p| p.first_thread_has_ended = true,
            Ok,
            "its first thread has ended",
        ),
        (
            "state",
            |p| p.halt = Some(Halt::Stopped),
            Limited,
            "stopped by a signal (SIGSTOP",
        ),
        (
            "state",
            |p| p.halt = Some(Halt::Frozen("/sys/fs/cgroup/web".into())),
            Limited,
            "control group /sys/fs/cgroup/web",
        ),
        (
            "perf map",
            |p| {
                p.map.state = MapState::Refused;
                p.frames = FrameFacts::Known(0x030c_01f0);
            },
            Ok,
            "not read, and not needed",
        ),
        (
            "namespaces",
            |p| {
                p.apart = vec![Space::Pid, Space::Mount, Space::User];
                p.ns_pid = 7;
            },
            Ok,
            "pids (it is 7 there), mounts",
        ),
        (
            "Python",
            |_| (),
            Ok,
            "CPython 3.12, shared library: /usr/lib/libpython3.12",
        ),
        (
            "Python",
            |p| p.python.interpreter_files = vec!["/usr/bin/python3.12".to_owned()],
            Ok,
            "static: /usr/bin/python3.12",
        ),
        ("Python", |p| p.python.version = None, Limited, "no CPython"),
        ("trampolines", |_| (), Ok, "since its start"),
        (
            "trampolines",
            |p| p.python.trampolines_asked = false,
            Ok,
            "while it ran",
        ),
        ("trampolines", |p| p.map.is_open = false, Ok, "asked for"),
        ("trampolines", |p| p.python.version = None, Ok, "no Python"),
        (
            "trampolines",
            |p| {
                p.map.is_open = false;
                p.python.trampolines_asked = false;
            },
            Limited,
            "off",
        ),
        (
            "trampolines",
            |p| {
                p.map.is_open = false;
                p.python.version = Some((3, 7));
            },
            Limited,
            "none: CPython 3.7 cannot have any",
        ),
        (
            "trampolines",
            |p| {
                p.map.is_open = false;
                p.python.version = Some((3, 8));
                p.frames = FrameFacts::Known(0x0308_12f0);
            },
            Ok,
            "none: CPython 3.8 cannot have any; not needed",
        ),
        (
            "perf map",
            |_| (),
            Ok,
            "12 entries: /proc/4242/root/tmp/perf-4242.map",
        ),
        ("perf map", |p| p.map.is_deleted = true, Ok, "is deleted"),
        (
            "perf map",
            |p| p.map.state = MapState::Missing,
            Limited,
            "there is no",
        ),
        (
            "perf map",
            |p| {
                p.map.state = MapState::Refused;
                p.map.refusal = "it is a FIFO, not a regular file".to_owned();
            },
            Limited,
            "not read: it is a FIFO",
        ),
        (
            "perf map",
            |p| p.map.state = MapState::Unreadable,
            Limited,
            "not read",
        ),
        (
            "files",
            |p| p.files = files_with(FileLimit::OutOfReach),
            Limited,
            "2 (a.so, …) deleted or out of reach: stacks break off",
        ),
        (
            "files",
            |p| p.files = files_with(FileLimit::Unreadable),
            Limited,
            "2 (a.so, …) neither to be opened nor to be read",
        ),
        (
            "files",
            |p| p.files = files_with(FileLimit::Loaded),
            Limited,
            "2 (a.so, …) not to be opened, read from memory",
        ),
        (
            "files",
            |p| p.files = files_with(FileLimit::Changed),
            Limited,
            "2 (a.so, …) replaced by other code",
        ),
    ];
    for (name, change, state, word) in table {
        let mut patient = well();
        change(&mut patient);
        let checks = patient.checks();
        let check = checks.iter().find(|check| check.name == *name).unwrap();
        assert_eq!(check.state, *state, "{check:?}");
        assert!(check.finding.contains(word), "no {word:?} in {check:?}");
        let has_step = check.next.iter().any(|step| !step.is_empty());
        assert_eq!(has_step, *state != Ok, "{check:?}");
    }
}

#[test]
fn the_map_of_an_earlier_process_names_nothing() {
    let mut patient = well();
    patient.map.is_open = false;
    patient.python.trampolines_asked = false;
    assert_eq!(patient.diagnosis(), NameDiagnosis::NotActivated);
    patient.map.is_open = true;
    assert_eq!(patient.diagnosis(), NameDiagnosis::Named);
    patient.map.state = MapState::Refused;
    patient.python.trampolines_asked = true;
    assert_eq!(patient.diagnosis(), NameDiagnosis::MapRefused);
}

#[test]
fn who_cannot_be_looked_into_is_told_in_two_parts() {
    let gone = Patient::refused(&TargetError::NoSuchProcess { pid: Pid(7) });
    assert_eq!(gone.state, State::Missing);
    assert_eq!(gone.finding, "there is no process 7");
    assert!(gone.next[0].contains("pgrep"), "{gone:?}");
    let closed = Patient::refused(&TargetError::NotPermitted {
        pid: Pid(7),
        owner: " of user 1000".to_owned(),
    });
    assert!(
        closed.finding.ends_with("process 7 of user 1000"),
        "{closed:?}"
    );
    assert!(closed.next[0].contains("sudo"), "{closed:?}");
}

#[test]
fn children_that_run_python_are_named_where_the_process_does_not() {
    let mut patient = well();
    patient.python.version = None;
    assert!(patient.interpreter().next[0].starts_with("if it starts Python"));
    patient.python_children = (8..12).map(Pid).collect();
    let step = &patient.interpreter().next[0];
    assert!(
        step.contains("(pid 8, 9, 10, …)") && step.contains("-s"),
        "{step}"
    );
}

/// Colons in what a process or the system says do not move the border between finding and step.
#[test]
fn every_refusal_has_a_finding_and_a_step() {
    let comm = "a: b".to_owned();
    let pid = Pid(7);
    for error in [
        TargetError::NoSuchProcess { pid },
        TargetError::Thread {
            pid,
            process: Pid(6),
            comm: comm.clone(),
        },
        TargetError::KernelThread {
            pid,
            comm: comm.clone(),
        },
        TargetError::Zombie {
            pid,
            comm,
            parent: Pid(1),
        },
        TargetError::Ourselves { pid },
        TargetError::NotPermitted {
            pid,
            owner: String::new(),
        },
        TargetError::Proc {
            path: "/proc/7/status".to_owned(),
            source: std::io::Error::other("a: b: c"),
        },
    ] {
        let check = Patient::refused(&error);
        assert!(
            check.state == State::Missing && !check.next[0].is_empty(),
            "{check:?}"
        );
        assert_eq!(
            error.to_string(),
            format!("{}: {}", check.finding, check.next[0])
        );
        assert!(check.finding.contains('7'), "{check:?}");
    }
}
