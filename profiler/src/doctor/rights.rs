//! The capabilities, one by one, each with what it is for.

use rustix::thread::CapabilitySet;

use super::{Check, machine::Machine};
use crate::privilege::WANTED;

/// A capability and what it is for.
struct Right {
    name: &'static str,
    capability: CapabilitySet,
    purpose: &'static str,
    /// Nothing works without it.
    is_needed: bool,
}

const RIGHTS: [Right; 6] = [
    Right {
        name: "CAP_BPF",
        capability: CapabilitySet::BPF,
        purpose: "loads the BPF program",
        is_needed: true,
    },
    Right {
        name: "CAP_PERFMON",
        capability: CapabilitySet::PERFMON,
        purpose: "samples other processes, and reads their stacks",
        is_needed: true,
    },
    Right {
        name: "CAP_SYS_PTRACE",
        capability: CapabilitySet::SYS_PTRACE,
        purpose: "looks into processes of other users, and such as may not dump core",
        is_needed: false,
    },
    Right {
        name: "CAP_DAC_READ_SEARCH",
        capability: CapabilitySet::DAC_READ_SEARCH,
        purpose: "reads perf maps and programs that only their owner may read",
        is_needed: false,
    },
    Right {
        name: "CAP_SYSLOG",
        capability: CapabilitySet::SYSLOG,
        purpose: "names kernel functions (--kernel)",
        is_needed: false,
    },
    Right {
        name: "CAP_CHECKPOINT_RESTORE",
        capability: CapabilitySet::CHECKPOINT_RESTORE,
        purpose: "reads programs and libraries that were deleted or replaced while they run",
        is_needed: false,
    },
];

/// A line for each.
pub(super) fn checks(machine: &Machine) -> Vec<Check> {
    let mut held = machine.rights.effective;
    if held.contains(CapabilitySet::SYS_ADMIN) {
        // `bpf_capable`, `perfmon_capable` and `checkpoint_restore_ns_capable` (include/linux/capability.h).
        held |= CapabilitySet::BPF | CapabilitySet::PERFMON | CapabilitySet::CHECKPOINT_RESTORE;
    }
    if machine.rights.in_user_namespace {
        // The kernel asks for these in the first one (`capable`, `checkpoint_restore_ns_capable`).
        held &= CapabilitySet::SYS_PTRACE;
    }
    let names: Vec<&str> = RIGHTS
        .iter()
        .filter(|right| !held.contains(right.capability))
        .map(|right| right.name)
        .collect();
    let next = how_to_get(machine, &names);
    RIGHTS
        .iter()
        .map(
            |right| match (held.contains(right.capability), right.is_needed) {
                (true, _) => Check::ok(right.name, right.purpose),
                (false, true) => Check::missing(right.name, right.purpose, &*next),
                (false, false) => Check::limited(right.name, right.purpose, &*next),
            },
        )
        .collect()
}

/// The way to the missing ones that suits whoever asks.
fn how_to_get(machine: &Machine, missing: &[&str]) -> String {
    let Machine {
        rights,
        around,
        program,
        ..
    } = machine;
    if rights.in_user_namespace {
        return "run it as root of the machine, outside of this user namespace".to_owned();
    }
    if rights.euid == 0 {
        let options: Vec<String> = missing
            .iter()
            .map(|name| format!("--cap-add={}", name.trim_start_matches("CAP_")))
            .collect();
        return format!(
            "Docker or Podman: {}; systemd: AmbientCapabilities={}",
            options.join(" "),
            missing.join(" ")
        );
    }
    if around.no_new_privileges {
        return "start it from elsewhere: with no_new_privs, sudo and setcap do nothing here"
            .to_owned();
    }
    format!("as root: sudo {program}; or once, for good: sudo setcap {WANTED}+ep {program}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::{State, machine::tests::root};

    fn states(machine: &Machine) -> Vec<State> {
        checks(machine).iter().map(|check| check.state).collect()
    }

    #[test]
    fn two_are_needed_and_the_others_show_more() {
        use State::{Limited, Missing, Ok};
        assert_eq!(states(&root()), [Ok; 6]);
        let mut none = root();
        none.rights.effective = CapabilitySet::empty();
        assert_eq!(
            states(&none),
            [Missing, Missing, Limited, Limited, Limited, Limited]
        );
        let mut old = none.clone();
        old.rights.effective = CapabilitySet::SYS_ADMIN;
        assert_eq!(states(&old), [Ok, Ok, Limited, Limited, Limited, Ok]);
        let mut inside = root();
        inside.rights.in_user_namespace = true;
        assert_eq!(states(&inside)[..3], [Missing, Missing, Ok]);
    }

    #[test]
    fn the_next_step_suits_who_asks() {
        let next = |change: fn(&mut Machine)| {
            let mut machine = root();
            machine.rights.effective = CapabilitySet::all() - CapabilitySet::SYSLOG;
            change(&mut machine);
            let checks = checks(&machine);
            checks[4].next.join("\n")
        };
        let of_root = next(|_| ());
        assert!(of_root.contains("--cap-add=SYSLOG;"), "{of_root}");
        assert!(
            of_root.contains("AmbientCapabilities=CAP_SYSLOG"),
            "{of_root}"
        );
        let of_user = next(|machine| machine.rights.euid = 1000);
        assert!(of_user.contains("sudo setcap cap_bpf,"), "{of_user}");
        let confined = next(|machine| {
            machine.rights.euid = 1000;
            machine.around.no_new_privileges = true;
        });
        assert!(confined.contains("no_new_privs"), "{confined}");
        let inside = next(|machine| machine.rights.in_user_namespace = true);
        assert!(
            inside.contains("outside of this user namespace"),
            "{inside}"
        );
    }
}
