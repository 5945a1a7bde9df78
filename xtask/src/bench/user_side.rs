//! What the profiler itself costs: CPU time, memory, the time to begin and to end.
//!
//! A long recording less a short one is what the samples between them cost, without
//! start-up, names and file.

use std::{thread, time::Duration};

use anyhow::Result;

use super::{Bench, recorder::Ended, table::Table};
use crate::{pythons, workload::Workload};

/// Times everything is measured.
const TURNS: usize = 3;
/// Length of the two recordings.
const SHORT: Duration = Duration::from_secs(2);
const LONG: Duration = Duration::from_secs(12);
/// CPU time for a sample, in microseconds, that should do.
const SAMPLE_GOAL: f64 = 10.0;
/// The same for memory in MiB, and for times in milliseconds.
const MEMORY_GOAL: f64 = 64.0;
const BEGIN_GOAL: f64 = 300.0;
const END_GOAL: f64 = 300.0;

const SECTION: &str = "The profiler itself: 999 Hz, flame graph written";

/// Fills in the section.
pub(super) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    for turn in 0..TURNS {
        for name in ["demo", "chain"] {
            eprintln!("profiler: turn {} of {TURNS}, {name}", turn + 1);
            let workload = Workload::start(&bench.python, name, &[])?;
            let short = record(bench, &workload, SHORT)?;
            let long = record(bench, &workload, LONG)?;
            let samples = [short.bpf("samples")?, long.bpf("samples")?];
            let cpu = [short.cpu_seconds, long.cpu_seconds];
            let steady = (cpu[1] - cpu[0]) / (samples[1] - samples[0]);
            let all_in = cpu[1] / samples[1];
            let mut add = |what: &str, value, unit, goal| {
                table.add(SECTION, format!("{name}: {what}"), value, unit, goal);
            };
            add(
                "CPU a sample, steady",
                1e6 * steady,
                "us",
                Some(SAMPLE_GOAL),
            );
            add("CPU a sample, all in (12 s)", 1e6 * all_in, "us", None);
            let besides = cpu[0] - steady * samples[0];
            add("CPU besides samples", 1e3 * besides, "ms", None);
            for ended in [&short, &long] {
                let first = first_sample_ms(ended)?;
                add("start to first sample", first, "ms", Some(BEGIN_GOAL));
            }
            let stop = 1e3 * long.exit_seconds;
            add("SIGINT to exit, file written", stop, "ms", Some(END_GOAL));
            let goal = (name == "demo").then_some(MEMORY_GOAL);
            add("peak memory", long.peak_mebibytes, "MiB", goal);
        }
    }
    let python = match pythons::environment(&bench.python) {
        Ok(path) => bench.python.at(path),
        Err(err) => {
            eprintln!("profiler: numpy is left out: {err:#}");
            return Ok(());
        }
    };
    for _ in 0..TURNS {
        let workload = Workload::start(&python, "numpy_blas", &[])?;
        let ended = record(bench, &workload, SHORT)?;
        let peak = ended.peak_mebibytes;
        table.add(SECTION, "numpy_blas: peak memory", peak, "MiB", None);
        let first = first_sample_ms(&ended)?;
        let what = "numpy_blas: start to first sample";
        table.add(SECTION, what, first, "ms", Some(BEGIN_GOAL));
    }
    Ok(())
}

/// From the start of the profiler's process to the moment of its first sample.
fn first_sample_ms(ended: &Ended) -> Result<f64> {
    Ok((ended.bpf("first_sample_ns")? - ended.spawned_ns as f64) / 1e6)
}

/// Samples for so long, then sends SIGINT.
fn record(bench: &Bench, workload: &Workload, length: Duration) -> Result<Ended> {
    let mut profiler = bench.ours(999);
    profiler.args(["--bpf-stats", "--output"]);
    profiler.arg(bench.output("user-side.svg")?);
    let recorder = bench.start(&profiler, workload)?;
    recorder.wait_until_attached()?;
    thread::sleep(length);
    recorder.stop()
}
