//! A perf map that grows to a million entries while it is read.

use std::collections::BTreeSet;

use super::{
    Python, Test, Verdict, note,
    recording::{begin, record},
    running::Running,
    script, workload,
};

pub(super) const TESTS: &[Test] = &[("a_million_entries_that_come_during_the_recording", million)];

/// What a map of this size may take, beyond what any recording does.
const MAP_KIB_MAX: u64 = 150 * 1024;

fn million(python: &Python) -> Verdict {
    let small = Running::start(python.perf().arg(workload("chain")));
    let base = record(small.pid(), &["-F", "999", "-d", "1"]).peak_rss_kib;
    drop(small);

    let mut target = Running::start(python.perf().arg(script("million_entries")));
    let recorder = begin(target.pid(), &["-F", "999"]);
    target.say("go on");
    let called: BTreeSet<String> = target
        .rest()
        .split_whitespace()
        .map(str::to_owned)
        .collect();
    let recording = recorder.end();
    recording.assert_done(500);

    let beyond = recording.peak_rss_kib.saturating_sub(base);
    note(format!(
        "{} samples; peak {} MiB, of which {} MiB are due to the map",
        recording.samples(),
        recording.peak_rss_kib / 1024,
        beyond / 1024
    ));
    assert!(
        base > 0 && beyond <= MAP_KIB_MAX,
        "{beyond} KiB more than {base} KiB"
    );

    // Code that the program put into memory by itself, in between a million others.
    let leaves = recording
        .stacks
        .iter()
        .filter_map(|stack| stack.frames.last());
    let seen: BTreeSet<String> = leaves
        .filter(|name| name.starts_with("entry_"))
        .cloned()
        .collect();
    note(format!("{} of {} entries seen", seen.len(), called.len()));
    assert!(seen.is_subset(&called), "{:?}", seen.difference(&called));
    assert!(2 * seen.len() > called.len(), "{seen:?} of {called:?}");

    // Functions that Python made after all of them.
    for number in 0..10 {
        let late = format!("late_{number}");
        assert!(
            recording.count(|stack| stack.python().ends_with(&[&late, "spin"])) > 0,
            "no {late}"
        );
    }
    let nameless = recording.count(|stack| stack.has("[code without a name]"));
    assert_eq!(nameless, 0, "{}", recording.report);
    Ok(())
}
