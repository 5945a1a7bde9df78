//! Which message comes when.

use super::*;

fn user(effective: CapabilitySet) -> Facts {
    Facts {
        euid: 1000,
        effective,
        ..Facts::of_root()
    }
}

fn of_user(uid: u32) -> Wish {
    Wish {
        target_uid: Some(uid),
    }
}

/// The message; each must fit the five lines a person reads.
fn message(facts: &Facts, wish: Wish) -> String {
    let obstacle = check(facts, wish, "pyprof-bpf --pid 4242").unwrap_err();
    let text = obstacle.to_string();
    assert!(text.lines().count() <= 5, "{text}");
    // The command to copy is as long as it must be.
    let prose = text.lines().filter(|line| !line.contains("setcap"));
    assert!(prose.map(str::len).all(|len| len <= 140), "{text}");
    text
}

#[test]
fn root_may_do_everything() {
    assert_eq!(check(&Facts::of_root(), of_user(1000), ""), Ok(()));
}

#[test]
fn an_ordinary_user_is_told_both_ways() {
    let text = message(&user(CapabilitySet::empty()), of_user(1000));
    assert!(text.contains("CAP_PERFMON and CAP_BPF"), "{text}");
    assert!(text.contains("sudo pyprof-bpf --pid 4242"), "{text}");
    assert!(text.contains("sudo setcap cap_bpf,"), "{text}");
    assert!(text.contains("kernel.perf_event_paranoid = 2"), "{text}");
    assert!(text.contains("unprivileged_bpf_disabled = 2"), "{text}");
}

#[test]
fn a_program_with_file_capabilities_needs_no_root() {
    let enough = CapabilitySet::BPF | CapabilitySet::PERFMON;
    assert_eq!(check(&user(enough), of_user(1000), ""), Ok(()));
    let more = enough | CapabilitySet::SYS_PTRACE;
    assert_eq!(check(&user(more), of_user(33), ""), Ok(()));
    let text = message(&user(enough), of_user(33));
    assert!(text.contains("CAP_SYS_PTRACE missing"), "{text}");
    assert!(!text.contains("perf_event_paranoid"), "{text}");
}

#[test]
fn the_old_capability_stands_for_the_new_ones() {
    assert_eq!(
        check(&user(CapabilitySet::SYS_ADMIN), Wish::default(), ""),
        Ok(())
    );
}

#[test]
fn one_missing_capability_is_named_alone() {
    let text = message(&user(CapabilitySet::BPF), Wish::default());
    assert!(text.contains(": CAP_PERFMON missing"), "{text}");
}

#[test]
fn root_in_a_container_is_not_told_to_use_sudo() {
    let facts = Facts {
        effective: CapabilitySet::KILL,
        ..Facts::of_root()
    };
    let text = message(&facts, Wish::default());
    assert!(text.contains("--cap-add=BPF"), "{text}");
    assert!(!text.contains("sudo"), "{text}");
}

#[test]
fn root_of_a_user_namespace_is_not_root() {
    let facts = Facts {
        in_user_namespace: true,
        ..Facts::of_root()
    };
    let text = message(&facts, Wish::default());
    assert!(text.contains("user namespace"), "{text}");
}

#[test]
fn each_missing_feature_has_its_own_message() {
    let old = Facts {
        kernel: Some((5, 4)),
        ..Facts::of_root()
    };
    assert!(message(&old, Wish::default()).contains("Linux 5.4"));
    let locked = Facts {
        lockdown: Lockdown::Confidentiality,
        ..Facts::of_root()
    };
    assert!(message(&locked, Wish::default()).contains("confidentiality"));
    let arm = Facts {
        machine: "aarch64".to_owned(),
        ..Facts::of_root()
    };
    assert!(message(&arm, Wish::default()).contains("aarch64"));
}
