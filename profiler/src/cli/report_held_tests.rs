//! What is said of processes that cannot run.

use super::*;

#[test]
fn a_process_that_cannot_run_is_said_to_be_held_and_how_to_let_it_go() {
    let mut held = recording(Quality::default());
    held.summary.targets[0].cpu_time = Duration::ZERO;
    for (halt, words) in [
        (Halt::Stopped, &["SIGSTOP", "`kill -CONT 4242`"][..]),
        (Halt::Traced(Some(Pid(9))), &["tracer", "pid 9"]),
        (
            Halt::Frozen("/sys/fs/cgroup/web\u{1b}".into()),
            &["/sys/fs/cgroup/web\\", "freezer.state", "docker unpause"],
        ),
        (
            Halt::FrozenAndStopped("/sys/fs/cgroup/web\u{1b}".into()),
            &["THAWED", "SIGSTOP", "`kill -CONT 4242`"],
        ),
    ] {
        held.summary.remarks = vec![Remark::Halted {
            pid: Pid(4242),
            halt,
            others: 0,
        }];
        let lines = nothing_to_draw(&held);
        assert!(
            lines[0].ends_with("it cannot run; nothing to draw"),
            "{lines:?}"
        );
        for word in words {
            assert!(lines[1].contains(word), "no {word:?} in {lines:?}");
        }
        assert!(!lines[1].contains("more)") && !lines[1].contains('\u{1b}'));
    }
}

#[test]
fn of_several_processes_that_cannot_run_it_is_said_of_all_and_of_some_only_of_these() {
    let mut held = recording(Quality::default());
    held.summary.roots = 3;
    held.summary.targets = (1..=3)
        .map(|pid| TargetSummary {
            pid: Pid(pid),
            samples: 0,
            cpu_time: Duration::ZERO,
            ..target(NameDiagnosis::Named)
        })
        .collect();
    let mut said = |others| {
        held.summary.remarks = vec![Remark::Halted {
            pid: Pid(1),
            halt: Halt::Stopped,
            others,
        }];
        nothing_to_draw(&held)
    };
    let all = said(2);
    assert!(all[0].contains(": none of them can run;"), "{all:?}");
    assert!(all[1].contains("(so are 2 more)"), "{all:?}");
    let two = said(1);
    assert!(two[0].contains("samples running code"), "{two:?}");
    assert!(two[1].contains("(so is 1 more)"), "{two:?}");
    held.summary.roots = 2;
    held.summary.targets.pop();
    held.summary.remarks = vec![Remark::Halted {
        pid: Pid(1),
        halt: Halt::Stopped,
        others: 1,
    }];
    let both = nothing_to_draw(&held);
    assert!(both[0].contains(": neither of them can run;"), "{both:?}");
}
