//! What a sample costs in the kernel, by the kernel's own clock, both ways to Python
//! functions: trampolines that the native walk passes (`-X perf`), and the frames of an
//! interpreter as it is.
//!
//! `--bpf-stats` has the kernel measure each run of the BPF program, for whichever
//! process it interrupts. Most runs on another CPU than the target's end at once: what
//! these take is measured with a target that sleeps, and taken off. The measuring itself
//! adds 20 to 40 ns to each run, which stay in the figures of a sample.
//!
//! The price of one Python frame is a slope: `chain`, `recursion` and `distinct` differ
//! in depth only. `recursion` is 200 calls of one function, `distinct` one call of each
//! of 200: for these every code object is another.

use std::fs;

use anyhow::{Context as _, Result};

use super::{Bench, table::Table};
use crate::{folded, workload::Workload};

/// Times everything is measured.
const TURNS: usize = 3;
/// Seconds of each recording.
const SECONDS: &str = "4";
/// Workloads, the shallow one first.
const WORKLOADS: [&str; 4] = ["chain", "recursion", "distinct", "demo"];
/// Those that a slope leads to, with the goal for interpreter frames in nanoseconds.
const SLOPES: [(&str, &str, f64); 2] = [
    (
        "recursion",
        "one Python frame more, of the same function",
        40.0,
    ),
    (
        "distinct",
        "one Python frame more, of another function",
        80.0,
    ),
];

const FILTERED: &str = "In the kernel, 999 Hz: the BPF program";
const TRAMPOLINES: &str =
    "In the kernel, 999 Hz: trampolines (python -X perf, --python-from perf-map)";
const INTERPRETER: &str =
    "In the kernel, 999 Hz: interpreter frames (python as it is, --python-from interpreter)";

/// Where Python functions come from.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Trampolines,
    Interpreter,
}

/// The sums of one recording.
struct Sums {
    runs: f64,
    nanoseconds: f64,
    samples: f64,
    /// To the BPF program: a trampoline is one too.
    native: f64,
    /// The interpreter's, also those that it makes for itself.
    entries: f64,
    /// In the result, whichever way they came there.
    python: f64,
}

/// A workload as a point: its depth, and what a sample of it took.
struct Point {
    name: &'static str,
    python: f64,
    nanoseconds: f64,
}

/// Fills in the sections.
pub(super) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    for turn in 0..TURNS {
        eprintln!("kernel side: turn {} of {TURNS}", turn + 1);
        // It waits for a line that never comes.
        let idle = record(bench, Way::Trampolines, "work")?;
        let filtered_ns = idle.nanoseconds / idle.runs.max(1.0);
        let what = "a run for another process (filtered out)";
        table.add(FILTERED, what, filtered_ns, "ns", None);
        for way in [Way::Trampolines, Way::Interpreter] {
            one_way(bench, table, way, filtered_ns)?;
        }
    }
    Ok(())
}

fn one_way(bench: &Bench, table: &mut Table, way: Way, filtered_ns: f64) -> Result<()> {
    let section = way.section();
    let mut points = Vec::new();
    for name in WORKLOADS {
        let sums = record(bench, way, name)?;
        let samples = sums.samples.max(1.0);
        let filtered = (sums.runs - sums.samples).max(0.0) * filtered_ns;
        let nanoseconds = sums.nanoseconds - filtered;
        let mut add = |what: &str, value, unit, goal| {
            table.add(section, format!("{name}: {what}"), value, unit, goal);
        };
        add("native frames a sample", sums.native / samples, "", None);
        add("Python frames a sample", sums.python / samples, "", None);
        let microseconds = nanoseconds / samples / 1e3;
        add("BPF a sample", microseconds, "us", way.sample_goal(name));
        match way {
            Way::Trampolines => {
                let a_frame = nanoseconds / sums.native.max(1.0);
                add("BPF a native frame", a_frame, "ns", frame_goal(name));
            }
            Way::Interpreter => add("entries read a sample", sums.entries / samples, "", None),
        }
        points.push(Point {
            name,
            python: sums.python / samples,
            nanoseconds: nanoseconds / samples,
        });
    }
    let Some((shallow, others)) = points.split_first() else {
        return Ok(());
    };
    for (name, what, goal) in SLOPES {
        let Some(deep) = others.iter().find(|point| point.name == name) else {
            continue;
        };
        let slope = (deep.nanoseconds - shallow.nanoseconds) / (deep.python - shallow.python);
        let goal = (way == Way::Interpreter).then_some(goal);
        table.add(section, what, slope, "ns", goal);
    }
    Ok(())
}

/// Nanoseconds a native frame that should do.
fn frame_goal(name: &str) -> Option<f64> {
    ["chain", "recursion"].contains(&name).then_some(110.0)
}

impl Way {
    fn section(self) -> &'static str {
        match self {
            Self::Trampolines => TRAMPOLINES,
            Self::Interpreter => INTERPRETER,
        }
    }

    /// Microseconds a sample that should do.
    fn sample_goal(self, name: &str) -> Option<f64> {
        match (self, name) {
            (Self::Interpreter, "chain") => Some(3.0),
            (Self::Interpreter, "recursion") => Some(18.0),
            _ => None,
        }
    }

    fn start(self, bench: &Bench, name: &str) -> Result<Workload> {
        match self {
            Self::Trampolines => Workload::start(&bench.python, name, &[]),
            Self::Interpreter => Workload::start_stock(&bench.python, name, &[]),
        }
    }

    fn option(self) -> &'static str {
        match self {
            Self::Trampolines => "--python-from=perf-map",
            Self::Interpreter => "--python-from=interpreter",
        }
    }
}

fn record(bench: &Bench, way: Way, name: &str) -> Result<Sums> {
    let workload = way.start(bench, name)?;
    let output = bench.output("kernel-side.folded")?;
    let mut profiler = bench.ours(999);
    profiler.args(["--bpf-stats", way.option(), "--duration", SECONDS]);
    profiler.arg("--output").arg(&output);
    let ended = bench.start(&profiler, &workload)?.wait()?;
    let samples = ended.bpf("samples")?;
    let python = if samples < 1.0 {
        0.0 // an idle target leaves no file
    } else {
        let text = fs::read_to_string(&output)
            .with_context(|| format!("cannot read {}", output.display()))?;
        folded::python_frames(&text) as f64
    };
    Ok(Sums {
        runs: ended.bpf("runs")?,
        nanoseconds: ended.bpf("run_time_ns")?,
        native: ended.bpf("frames")?,
        entries: ended.bpf("python_frames")?,
        samples,
        python,
    })
}
