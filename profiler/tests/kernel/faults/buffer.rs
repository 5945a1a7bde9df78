//! Samples that come faster than they are read.

use std::{thread::sleep, time::Duration};

use rustix::process::Signal;

use super::{
    Python, Test, Verdict, busy, let_work, note,
    recording::{WHOLE, begin, number_before, record},
    running::{Running, signal},
    workload,
};

pub(super) const TESTS: &[Test] = &[
    ("what_a_small_ring_buffer_loses_is_counted", too_small),
    (
        "a_ring_buffer_too_small_for_one_sample_says_so",
        smaller_than_a_sample,
    ),
    (
        "a_profiler_that_gets_no_cpu_for_seconds_loses_nothing",
        starved,
    ),
    (
        "a_starved_profiler_with_a_small_ring_buffer_keeps_what_is_in_it",
        starved_and_small,
    ),
];

fn too_small(python: &Python) -> Verdict {
    let target = busy(python);
    let options = [
        "-F",
        "4999",
        "-d",
        "2",
        "--bpf-stats",
        "--ring-bytes",
        "4096",
    ];
    let recording = record(target.pid(), &options);
    recording.assert_done(10).assert_whole(WHOLE);
    let lost = recording.assert_all_accounted_for();
    assert!(lost > 0, "nothing was lost: this shows nothing");
    assert!(
        recording.report.contains("sample buffer was full"),
        "{}",
        recording.report
    );
    Ok(())
}

fn smaller_than_a_sample(python: &Python) -> Verdict {
    let target = Running::start(python.perf().arg(workload("recursion")));
    let options = ["-F", "999", "-d", "2", "--ring-bytes", "4096"];
    let recording = record(target.pid(), &options);
    let report = &recording.report;
    // Not quite every stack is that deep.
    if recording.samples() == 0 {
        assert_eq!(recording.status.code(), Some(3), "{report}");
        assert!(
            report.contains("samples were lost; nothing to draw"),
            "{report}"
        );
        assert!(!recording.has_file);
    } else {
        recording.assert_done(1);
        let lost = report.lines().find_map(|line| line.strip_prefix("lost "));
        let lost = lost.and_then(|line| number_before(line, " sample"));
        assert!(lost > Some(recording.samples()), "{report}");
    }
    Ok(())
}

/// Starts to record, takes the CPU from the profiler for three seconds, and lets it end.
fn starve(target: u32, options: &[&str]) -> super::recording::Recording {
    let recorder = begin(target, options);
    let_work(target, Duration::from_millis(300));
    signal(recorder.pid(), Signal::STOP);
    sleep(Duration::from_secs(3));
    let_work(target, Duration::from_millis(300));
    signal(recorder.pid(), Signal::CONT);
    let_work(target, Duration::from_millis(300));
    signal(recorder.pid(), Signal::INT);
    recorder.end()
}

fn starved(python: &Python) -> Verdict {
    let target = Running::start(python.perf().arg(workload("recursion")));
    let recording = starve(target.pid(), &["-F", "99", "--bpf-stats"]);
    recording
        .assert_done(50)
        .assert_whole(WHOLE)
        .assert_none_lost();
    assert_eq!(recording.assert_all_accounted_for(), 0);
    Ok(())
}

fn starved_and_small(python: &Python) -> Verdict {
    let target = busy(python);
    let options = ["-F", "1999", "--bpf-stats", "--ring-bytes", "65536"];
    let recording = starve(target.pid(), &options);
    recording.assert_done(50).assert_whole(WHOLE);
    let lost = recording.assert_all_accounted_for();
    note(format!("{} kept", recording.samples()));
    assert!(lost > 0, "nothing was lost: this shows nothing");
    Ok(())
}
