//! Shares of the CPU time are the true ones.

use std::{collections::BTreeMap, process::Stdio};

use super::{
    Python, Test, Verdict, bound, note,
    recording::{Recording, pyprof, remove_map_of_launched},
    scratch, workload,
};

pub(super) const TESTS: &[Test] = &[("shares_of_cpu_time_are_true", truth)];

const WORK: [&str; 3] = ["spin_a", "spin_b", "spin_c"];

fn truth(python: &Python) -> Verdict {
    let files = scratch();
    let file = files.path().join("truth.folded");
    let output = pyprof()
        .args(["record", "-F", "999", "--output"])
        .arg(&file)
        .arg("--")
        .args([python.path.as_os_str(), workload("truth").as_os_str()])
        .args(["--seconds", "10"])
        .stderr(Stdio::piped())
        .output()
        .unwrap();
    let recording = Recording::of(&output, &file);
    remove_map_of_launched(&recording);
    recording.assert_done(1000).assert_none_lost();
    let said = String::from_utf8(output.stdout).unwrap();
    let (own, inclusive) = said
        .split_once("\"inclusive\"")
        .unwrap_or_else(|| panic!("{said}"));
    // What is booked is the time below level1, so this is the whole.
    let all = recording.count(|stack| stack.has("level1")) as f64;

    let measured_own =
        |name: &str| recording.count(|stack| stack.python().last() == Some(&name)) as f64 / all;
    let distance = distance(&shares(own), measured_own);
    let limit = bound(
        value(&said, "pieces").unwrap(),
        all,
        WORK.len() as f64 + 1.0,
    );
    note(format!(
        "{all} samples, self shares {:.2} % from the truth, bound {:.2} %",
        100.0 * distance,
        100.0 * limit
    ));
    assert!(
        distance <= limit,
        "{distance} > {limit}\n{said}{}",
        recording.report
    );

    for (name, true_share) in shares(inclusive) {
        let error = (recording.count(|stack| stack.has(&name)) as f64 / all - true_share).abs();
        assert!(
            error <= limit,
            "{name}: {error} > {limit}\n{said}{}",
            recording.report
        );
    }
    Ok(())
}

/// Total variation distance, with one more function for all that is not named.
fn distance(truth: &BTreeMap<String, f64>, measured: impl Fn(&str) -> f64) -> f64 {
    let mut errors: Vec<f64> = truth
        .iter()
        .map(|(name, share)| measured(name) - share)
        .collect();
    errors.push(-errors.iter().sum::<f64>());
    errors.iter().map(|error| error.abs()).sum::<f64>() / 2.0
}

/// The functions of one part of the program's JSON.
fn shares(json: &str) -> BTreeMap<String, f64> {
    let names = (1..=10)
        .map(|level| format!("level{level}"))
        .chain(WORK.map(str::to_owned));
    names
        .filter_map(|name| Some((name.clone(), value(json, &name)?)))
        .collect()
}

/// The number behind a key.
fn value(json: &str, key: &str) -> Option<f64> {
    let (_, rest) = json.split_once(&format!("\"{key}\": "))?;
    rest.split([',', '}']).next()?.trim().parse().ok()
}
