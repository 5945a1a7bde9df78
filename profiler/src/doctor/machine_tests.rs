//! Every judgement on a machine.

use super::*;
use crate::doctor::State;

/// Root on a machine where all is well.
pub(in crate::doctor) fn root() -> Machine {
    Machine {
        rights: Facts::of_root(),
        around: Surroundings::default(),
        btf: true,
        pmu: true,
        rates: Some(RateLimits {
            max_sample_rate: 100_000,
            cpu_time_max_percent: 25,
        }),
        kptr_restrict: Some(1),
        limits: Limits {
            locked_memory: Some(64 << 10),
            open_files: Some(524_288),
        },
        tried: Tried::Works(Probed {
            clock: Clock::CpuClock,
            follows: true,
        }),
        program: "pyprof-bpf".to_owned(),
    }
}

/// Nobody on that machine.
fn nobody() -> Machine {
    let mut machine = root();
    machine.rights.euid = 65534;
    machine.rights.effective = CapabilitySet::empty();
    machine.tried = Tried::No;
    machine
}

/// The one check of that name.
fn check(machine: &Machine, name: &str) -> Check {
    let checks = machine.checks();
    let mut found = checks.into_iter().filter(|check| check.name == name);
    let check = found.next().unwrap_or_else(|| panic!("no {name}"));
    assert_eq!(found.next(), None, "{name} is there once");
    check
}

#[test]
fn root_on_a_usual_machine_lacks_nothing() {
    for check in root().checks() {
        assert_eq!(check.state, State::Ok, "{check:?}");
    }
}

#[test]
fn what_is_not_ok_says_what_to_do() {
    let mut poor = nobody();
    poor.btf = false;
    poor.rights.kernel = Some((5, 4));
    poor.rights.lockdown = Lockdown::Confidentiality;
    poor.rights.in_user_namespace = true;
    poor.rights.perf_event_paranoid = Some(4);
    poor.kptr_restrict = Some(2);
    poor.limits.open_files = Some(1024);
    poor.rates = Some(RateLimits {
        max_sample_rate: 50,
        cpu_time_max_percent: 25,
    });
    poor.around = Surroundings {
        container: Some("Docker".to_owned()),
        inner_pids: true,
        filtered: true,
        no_new_privileges: true,
        proc_hides: Some("hidepid=2".to_owned()),
    };
    for machine in [poor, nobody(), root()] {
        for check in machine.checks() {
            let has_step = check.next.iter().any(|step| !step.is_empty());
            assert_eq!(has_step, check.state != State::Ok, "{check:?}");
            assert!(!check.finding.is_empty() && !check.finding.contains('\n'));
        }
    }
}

/// State of the named check after a change to root's machine, and a word of what it says.
#[test]
#[expect(clippy::too_many_lines, reason = "a table of all cases")]
fn each_thing_is_judged_by_itself() {
    use State::{Limited, Missing, Ok};
    type Change = fn(&mut Machine);
    let table: &[(&str, Change, State, &str)] = &[
        (
            "kernel",
            |m| m.rights.kernel = Some((5, 8)),
            Ok,
            "Linux 5.8 on x86_64",
        ),
        (
            "kernel",
            |m| m.rights.kernel = Some((5, 7)),
            Missing,
            "Linux 5.7",
        ),
        (
            "kernel",
            |m| m.rights.kernel = None,
            Limited,
            "cannot be read",
        ),
        (
            "kernel",
            |m| m.rights.machine = "aarch64".to_owned(),
            Missing,
            "aarch64",
        ),
        ("BTF", |m| m.btf = false, Limited, "cannot be followed"),
        (
            "BTF",
            |m| {
                m.btf = false;
                m.rights.kernel = Some((5, 10));
            },
            Missing,
            "which Linux before 5.15 needs",
        ),
        (
            "lockdown",
            |m| m.rights.lockdown = Lockdown::Integrity,
            Ok,
            "does not matter",
        ),
        (
            "lockdown",
            |m| m.rights.lockdown = Lockdown::Confidentiality,
            Missing,
            "may not read memory",
        ),
        (
            "user namespace",
            |m| m.rights.in_user_namespace = true,
            Missing,
            "do not count",
        ),
        (
            "unprivileged BPF",
            |m| m.rights.unprivileged_bpf_disabled = Some(0),
            Ok,
            "= 0",
        ),
        (
            "unprivileged BPF",
            |m| m.rights.unprivileged_bpf_disabled = None,
            Ok,
            "cannot be read",
        ),
        (
            "perf_event_paranoid",
            |m| m.rights.perf_event_paranoid = Some(3),
            Ok,
            "3, ",
        ),
        (
            "perf_event_paranoid",
            |m| m.rights.perf_event_paranoid = None,
            Missing,
            "no perf events",
        ),
        (
            "perf_event_paranoid",
            |m| {
                m.rights.perf_event_paranoid = Some(3);
                m.rights.effective -= CapabilitySet::SYS_ADMIN;
                m.tried = Tried::Fails("refused".to_owned());
            },
            Missing,
            "root alone",
        ),
        (
            "sampling rate",
            |m| {
                m.rates = Some(RateLimits {
                    max_sample_rate: 98,
                    cpu_time_max_percent: 25,
                });
            },
            Limited,
            "at most 98 Hz",
        ),
        ("sampling rate", |_| (), Ok, "up to 100000 Hz"),
        ("CPU counter", |_| (), Ok, "cpu-clock"),
        (
            "CPU counter",
            |m| {
                m.tried = Tried::Works(Probed {
                    clock: Clock::Cycles,
                    follows: true,
                });
            },
            Ok,
            "cycles",
        ),
        ("CPU counter", |m| m.tried = Tried::No, Ok, "cycles"),
        ("BPF and events", |_| (), Ok, "load"),
        (
            "BPF and events",
            |m| {
                m.tried = Tried::Works(Probed {
                    clock: Clock::CpuClock,
                    follows: false,
                });
            },
            Limited,
            "does not tell of child processes",
        ),
        (
            "BPF and events",
            |m| m.tried = Tried::Fails("bpf is forbidden\n  do this".to_owned()),
            Missing,
            "bpf is forbidden",
        ),
        ("kernel names", |_| (), Ok, "shown"),
        (
            "kernel names",
            |m| m.kptr_restrict = Some(2),
            Limited,
            "from everybody",
        ),
        (
            "kernel names",
            |m| m.kptr_restrict = None,
            Limited,
            "hidden",
        ),
        (
            "kernel names",
            |m| m.rights.effective -= CapabilitySet::SYSLOG,
            Limited,
            "hidden",
        ),
        (
            "kernel names",
            |m| {
                m.rights.effective -= CapabilitySet::SYSLOG;
                m.rights.perf_event_paranoid = Some(1);
                m.kptr_restrict = Some(0);
            },
            Ok,
            "shown",
        ),
        (
            "locked memory",
            |m| m.rights.kernel = Some((5, 10)),
            Ok,
            "CAP_SYS_RESOURCE lifts",
        ),
        (
            "locked memory",
            |m| {
                m.rights.kernel = Some((5, 10));
                m.rights.effective -= CapabilitySet::SYS_RESOURCE;
            },
            Limited,
            "64 KiB",
        ),
        (
            "open files",
            |m| m.limits.open_files = Some(1024),
            Limited,
            "at most 1024",
        ),
        (
            "open files",
            |m| m.limits.open_files = None,
            Ok,
            "any number",
        ),
        (
            "container",
            |m| m.around.container = Some("LXC".to_owned()),
            Ok,
            "LXC",
        ),
        (
            "container",
            |m| m.around.inner_pids = true,
            Limited,
            "a pid namespace",
        ),
        (
            "system calls",
            |m| m.around.filtered = true,
            Ok,
            "go through",
        ),
        (
            "system calls",
            |m| {
                m.around.filtered = true;
                m.tried = Tried::No;
            },
            Limited,
            "may be refused",
        ),
        (
            "/proc",
            |m| m.around.proc_hides = Some("hidepid=2".to_owned()),
            Ok,
            "passes",
        ),
        (
            "/proc",
            |m| m.around.proc_hides = Some("subset=pid".to_owned()),
            Limited,
            "settings",
        ),
        (
            "/proc",
            |m| {
                m.around.proc_hides = Some("hidepid=2".to_owned());
                m.rights.effective -= CapabilitySet::SYS_PTRACE;
            },
            Limited,
            "do not show",
        ),
    ];
    for (name, change, state, word) in table {
        let mut machine = root();
        change(&mut machine);
        let check = check(&machine, name);
        assert_eq!(check.state, *state, "{check:?}");
        assert!(check.finding.contains(word), "no {word:?} in {check:?}");
    }
}

#[test]
fn what_does_not_concern_a_machine_is_not_mentioned() {
    let names: Vec<&str> = nobody().checks().iter().map(|check| check.name).collect();
    for name in [
        "lockdown",
        "user namespace",
        "locked memory",
        "system calls",
        "BPF and events",
    ] {
        assert!(!names.contains(&name), "{name}");
    }
}

/// Reading works for whoever runs the tests, whatever it finds.
#[test]
fn this_machine_can_be_looked_at() {
    let machine = Machine::read("pyprof-bpf".to_owned());
    assert!(machine.rights.kernel.is_some());
    assert!(machine.checks().len() > 10);
}
