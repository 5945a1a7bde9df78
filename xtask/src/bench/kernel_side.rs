//! What a sample costs in the kernel, by the kernel's own clock.
//!
//! `--bpf-stats` has the kernel measure each run of the BPF program, for whichever
//! process it interrupts. Most runs on another CPU than the target's end at once: what
//! these take is measured with a target that sleeps, and taken off. The measuring itself
//! adds 20 to 40 ns to each run, which stay in the figures of a sample.

use anyhow::Result;

use super::{Bench, table::Table};
use crate::workload::Workload;

/// Times everything is measured.
const TURNS: usize = 3;
/// Seconds of each recording.
const SECONDS: &str = "4";
/// Workloads, with whether the goal is for them.
const WORKLOADS: [(&str, bool); 3] = [("chain", true), ("recursion", true), ("demo", false)];
/// Nanoseconds a frame that should do.
const FRAME_GOAL: f64 = 110.0;

const SECTION: &str = "In the kernel: the BPF program, 999 Hz";

/// The sums of one recording.
struct Sums {
    runs: f64,
    nanoseconds: f64,
    samples: f64,
    frames: f64,
}

/// Fills in the section.
pub(super) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    for turn in 0..TURNS {
        eprintln!("kernel side: turn {} of {TURNS}", turn + 1);
        // It waits for a line that never comes.
        let idle = record(bench, "work")?;
        let filtered_ns = idle.nanoseconds / idle.runs.max(1.0);
        let what = "a run for another process (filtered out)";
        table.add(SECTION, what, filtered_ns, "ns", None);

        let mut points = Vec::new();
        for (name, has_goal) in WORKLOADS {
            let sums = record(bench, name)?;
            let (samples, frames) = (sums.samples.max(1.0), sums.frames.max(1.0));
            let filtered = (sums.runs - sums.samples).max(0.0) * filtered_ns;
            let nanoseconds = sums.nanoseconds - filtered;
            let goal = has_goal.then_some(FRAME_GOAL);
            let frames_a_sample = frames / samples;
            let mut add = |what: &str, value, unit, goal| {
                table.add(SECTION, format!("{name}: {what}"), value, unit, goal);
            };
            add("frames a sample", frames_a_sample, "", None);
            add("BPF a frame", nanoseconds / frames, "ns", goal);
            add("BPF a sample", nanoseconds / samples / 1e3, "us", None);
            points.push((frames_a_sample, nanoseconds / samples));
        }
        // chain and recursion differ in depth only: the line through both.
        if let [(few, shallow), (many, deep), ..] = points[..] {
            let slope = (deep - shallow) / (many - few);
            let what = "one frame more (chain to recursion)";
            table.add(SECTION, what, slope, "ns", None);
            let what = "a sample of no frames (the same line)";
            table.add(SECTION, what, shallow - few * slope, "ns", None);
        }
    }
    Ok(())
}

fn record(bench: &Bench, name: &str) -> Result<Sums> {
    let workload = Workload::start(&bench.python, name, &[])?;
    let mut profiler = bench.ours(999);
    profiler.args(["--bpf-stats", "--duration", SECONDS, "--output"]);
    profiler.arg(bench.output("kernel-side.folded")?);
    let ended = bench.start(&profiler, &workload)?.wait()?;
    Ok(Sums {
        runs: ended.bpf("runs")?,
        nanoseconds: ended.bpf("run_time_ns")?,
        samples: ended.bpf("samples")?,
        frames: ended.bpf("frames")?,
    })
}
