//! When names of Python functions are missing, the report says why.

use std::process::Command;

use super::{
    Python, Test, Verdict, python, recording::record, running::Running, script, skip, workload,
};

pub(super) const TESTS: &[Test] = &[
    ("no_names_because_trampolines_are_off", not_activated),
    ("few_names_because_trampolines_came_late", activated_late),
    ("no_names_because_of_perf_jit", perf_jit),
    ("no_names_because_python_is_too_old", too_old),
];

/// The report on a second of this.
fn report(command: &mut Command) -> String {
    let target = Running::start(command);
    let recording = record(target.pid(), &["-F", "999", "-d", "1.5"]);
    recording.assert_done(50);
    recording.report
}

fn assert_says(report: &str, words: &[&str]) {
    for word in words {
        assert!(report.contains(word), "no \"{word}\" in\n{report}");
    }
}

fn not_activated(python: &Python) -> Verdict {
    let report = report(python.plain().arg(workload("chain")));
    assert_says(
        &report,
        &[
            "was started without perf support",
            "-X perf",
            "PYTHONPERFSUPPORT=1",
        ],
    );
    Ok(())
}

fn activated_late(python: &Python) -> Verdict {
    let report = report(python.plain().arg(script("late")));
    assert_says(&report, &["switched on late"]);
    Ok(())
}

fn perf_jit(python: &Python) -> Verdict {
    if python.version < (3, 13) {
        return skip("perf_jit came with CPython 3.13");
    }
    let target = Running::start(
        python
            .plain()
            .args(["-X", "perf_jit"])
            .arg(workload("chain")),
    );
    let dump = target.root(&format!("/tmp/jit-{}.dump", target.pid()));
    let recording = record(target.pid(), &["-F", "999", "-d", "1.5"]);
    let _ = std::fs::remove_file(dump);
    assert_says(&recording.assert_done(50).report, &["perf_jit", "jitdump"]);
    Ok(())
}

fn too_old(_: &Python) -> Verdict {
    let Some(old) = python::too_old() else {
        return skip("there is no CPython before 3.12");
    };
    let report = report(old.plain().arg(workload("chain")));
    let (major, minor) = old.version;
    if old.version >= (3, 9) {
        let without = format!("CPython {major}.{minor} has no trampolines of its own");
        let command =
            format!("`pyprof-bpf record --python-from perf-map -- python{major}.{minor} app.py`");
        assert_says(&report, &[&without, &command]);
    } else {
        let without = format!("CPython {major}.{minor} has no trampolines of its own");
        assert_says(&report, &[&without, "omit --python-from"]);
    }
    Ok(())
}
