//! Every way to end gives a whole file and leaves nothing in the kernel.

use std::time::Duration;

use aya::{maps::loaded_maps, programs::loaded_programs};
use rustix::process::Signal;

use super::{
    Python, Test, Verdict, eventually,
    recording::{Recorder, Recording, begin},
    running::{Running, signal},
    workload,
};

pub(super) const TESTS: &[Test] = &[
    ("ctrl_c_ends_it_well", interrupt),
    ("sigterm_ends_it_well", terminate),
    ("the_targets_exit_ends_it_well", exit),
    ("its_duration_ends_it_well", duration),
    ("a_backlog_at_the_end_is_in_the_file", backlog),
];

fn busy(python: &Python) -> Running {
    Running::start(python.perf().arg(workload("chain")))
}

/// Ends a recording in some way, and looks at what is left.
fn assert_ends_well(recorder: Recorder, stop: impl FnOnce(u32)) -> Recording {
    let (programs, maps) = (recorder.bpf_ids("prog_id:"), recorder.bpf_ids("map_id:"));
    assert!(
        !programs.is_empty() && !maps.is_empty(),
        "it holds {programs:?} and {maps:?} while it records"
    );
    std::thread::sleep(Duration::from_secs(1));
    stop(recorder.pid());
    let recording = recorder.end();
    recording.assert_done(10);
    assert_gone(&programs, &maps);
    recording
}

/// Nothing of these is left in the kernel, which frees them a moment after their last user.
pub(super) fn assert_gone(programs: &[u32], maps: &[u32]) {
    eventually("the removal of the BPF program and its maps", || {
        let programs_left = loaded_programs()
            .flatten()
            .any(|program| programs.contains(&program.id()));
        let maps_left = loaded_maps().flatten().any(|map| maps.contains(&map.id()));
        !programs_left && !maps_left
    });
}

fn interrupt(python: &Python) -> Verdict {
    let target = busy(python);
    assert_ends_well(begin(target.pid(), &["-F", "999"]), |pid| {
        signal(pid, Signal::INT);
    });
    Ok(())
}

fn terminate(python: &Python) -> Verdict {
    let target = busy(python);
    assert_ends_well(begin(target.pid(), &["-F", "999"]), |pid| {
        signal(pid, Signal::TERM);
    });
    Ok(())
}

fn exit(python: &Python) -> Verdict {
    let target = busy(python);
    let recording = assert_ends_well(begin(target.pid(), &["-F", "999"]), |_| drop(target));
    assert!(
        recording.report.contains("until the target exited"),
        "{}",
        recording.report
    );
    Ok(())
}

fn duration(python: &Python) -> Verdict {
    let target = busy(python);
    assert_ends_well(begin(target.pid(), &["-F", "999", "-d", "2"]), |_| ());
    Ok(())
}

/// A profiler that got no CPU for a while finds more samples in the ring buffer, when it ends, than it takes at a time.
/// Every sample that the kernel took is in the file or counted as lost.
fn backlog(python: &Python) -> Verdict {
    let target = busy(python);
    let options = ["-F", "9999", "-d", "1.5", "--bpf-stats"];
    // Which of the things that wait for it comes first when it goes on is a matter of chance.
    for _ in 0..4 {
        let recorder = begin(target.pid(), &options);
        std::thread::sleep(Duration::from_millis(500));
        signal(recorder.pid(), Signal::STOP);
        std::thread::sleep(Duration::from_millis(2200));
        signal(recorder.pid(), Signal::CONT);
        let recording = recorder.end();
        recording.assert_all_accounted_for();
    }
    Ok(())
}
