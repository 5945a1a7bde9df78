//! What the profiler itself costs: CPU time, memory, the time to begin and to end.

use std::{thread, time::Duration};

use anyhow::Result;

use super::{
    Bench,
    recorder::{Ended, cpu_seconds},
    table::Table,
};
use crate::{pythons, workload::Workload};

/// Times everything is measured.
const TURNS: usize = 3;
/// Sampling rate.
const HZ: u32 = 999;
/// A recording goes on for so long before its start-up counts as over,
const BEFORE: Duration = Duration::from_secs(2);
/// and then for so long.
const STEADY: Duration = Duration::from_secs(10);
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
            let (ended, steady) = record(bench, &workload, STEADY)?;
            let samples = ended.bpf("samples")?.max(1.0);
            let mut add = |what: &str, value, unit, goal| {
                table.add(SECTION, format!("{name}: {what}"), value, unit, goal);
            };
            let (own, goal) = (1e6 * steady, Some(SAMPLE_GOAL));
            add("CPU a sample, steady", own, "us", goal);
            let all_in = 1e6 * ended.cpu_seconds / samples;
            add("CPU a sample, all in (12 s)", all_in, "us", None);
            let besides = 1e3 * (ended.cpu_seconds - steady * samples);
            add("CPU besides samples", besides, "ms", None);
            let first = first_sample_ms(&ended)?;
            add("start to first sample", first, "ms", Some(BEGIN_GOAL));
            let stop = 1e3 * ended.exit_seconds;
            add("SIGINT to exit, file written", stop, "ms", Some(END_GOAL));
            let goal = (name == "demo").then_some(MEMORY_GOAL);
            add("peak memory", ended.peak_mebibytes, "MiB", goal);
        }
    }
    let python = match pythons::environment(&bench.python) {
        Ok(path) => bench.python.at(path),
        Err(err) => {
            eprintln!("profiler: numpy is left out: {err:#}");
            return Ok(());
        }
    };
    for turn in 0..TURNS {
        eprintln!("profiler: turn {} of {TURNS}, numpy", turn + 1);
        let workload = Workload::start(&python, "numpy_blas", &[])?;
        let (ended, _) = record(bench, &workload, Duration::ZERO)?;
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

/// Samples, and sends SIGINT. Gives the CPU seconds that a sample took in the last
/// `steady` of it: without start-up, the last names, and the file.
fn record(bench: &Bench, workload: &Workload, steady: Duration) -> Result<(Ended, f64)> {
    let mut profiler = bench.ours(HZ);
    profiler.args(["--bpf-stats", "--output"]);
    profiler.arg(bench.output("user-side.svg")?);
    let recorder = bench.start(&profiler, workload)?;
    recorder.wait_until_attached()?;
    thread::sleep(BEFORE);
    let own = recorder.cpu_seconds()?;
    let target = cpu_seconds(workload.pid())?;
    thread::sleep(steady);
    let own = recorder.cpu_seconds()? - own;
    // Samples of a clock that counts the target's CPU time.
    let samples = (cpu_seconds(workload.pid())? - target) * f64::from(HZ);
    Ok((recorder.stop()?, own / samples.max(1.0)))
}
