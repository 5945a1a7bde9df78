//! Every remark in words.

use std::time::Duration;

use super::*;
use crate::{model::Pid, process::FileLimit, session::Limit};

#[test]
fn processes_that_may_not_be_looked_into_are_counted() {
    for (count, words) in [
        (1, "1 process could not"),
        (2_000, "2,000 processes could not"),
    ] {
        let line = remark(&Remark::NotPermitted(count));
        assert!(
            line.contains(words) && line.contains("CAP_SYS_PTRACE"),
            "{line}"
        );
    }
}

#[test]
fn groups_are_named_with_their_owners() {
    let group = NamedGroup {
        path: "/sys/fs/cgroup/user.slice/docker-ab.scope\u{1b}".into(),
        owner: Some(1000),
    };
    let ignored = remark(&Remark::GroupsIgnored(vec![group.clone(), group.clone()]));
    assert!(
        ignored.contains("docker-ab.scope\\x1b of user 1000")
            && ignored.contains("1 such group more")
            && ignored.contains("--cgroup"),
        "{ignored}"
    );
    let rootless = remark(&Remark::Rootless(group));
    assert!(
        rootless.starts_with("recorded: control group "),
        "{rootless}"
    );
}

/// Every remark in words: a sentence that fits a line, without anything that a terminal acts on.
#[test]
fn every_remark_has_its_sentence() {
    let remarks = [
        (Remark::MappingsLeftOut(2), "2 mappings not followed"),
        (Remark::KernelNamesHidden, "CAP_SYSLOG"),
        (Remark::KernelStacksFailed(1), "part of 1 stack "),
        (Remark::Limit(Limit::Rows(3)), "3 files"),
        (
            Remark::SharedPerfMap {
                pid: Pid(1),
                rival: Pid(2),
                frames: 3,
            },
            "3 frames",
        ),
        (Remark::NotPermitted(1), "1 process "),
        (
            Remark::Files(FileLimit::Loaded, vec!["a\u{1b}".to_owned()]),
            "1 file ",
        ),
        (Remark::ChildrenNotRecorded(vec![Pid(3)]), "(pid 3)"),
        (Remark::CannotFollow, "BTF"),
        (Remark::EventsLost(6), "6 events"),
        (
            Remark::Undersampled {
                pid: Pid(7),
                cpu_time: Duration::from_secs(8),
                samples: 0,
                others: 1,
            },
            "pid 7 used 8.00 s of CPU and has 0 samples (so it is with 1 more)",
        ),
    ];
    for (said, words) in remarks {
        let line = remark(&said);
        assert!(line.contains(words), "no {words:?} in {line:?}");
        assert!(!line.chars().any(char::is_control), "{line:?}");
        assert!(
            !line.ends_with('.') && line.chars().count() < 180,
            "{line:?}"
        );
    }
}
