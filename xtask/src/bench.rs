//! `cargo xtask bench`: what profiling costs, as ratios. It informs and never fails on
//! a time: machines differ.
//!
//! The target does a fixed amount of work (`workloads/work.py`) unprofiled, under this
//! profiler and under perf, in turns, so that a machine that slows down slows all
//! three; each ratio is taken within one turn.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Instant,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command, demo, folded, host,
    measure::{self, Row},
    pythons::{self, Python},
    workload::Workload,
};

/// Turns of each comparison.
const TURNS: usize = 5;
/// Chunks of work in a turn: some seconds.
const CHUNKS: &str = "500";
/// Sampling rates, with the aim for the target's slowdown.
const RATES: [(u32, f64); 2] = [(99, 1.02), (999, 1.06)];
/// Programs below `profiler/examples` that time a part by themselves and print JSON.
const EXAMPLES: [&str; 2] = ["perf_map_load", "unwind_table_build"];

/// The pieces, by name.
const PIECES: [(&str, &str); 3] = [
    (
        "target",
        "slowdown, own CPU and memory, time to start and to stop",
    ),
    ("bpf", "nanoseconds a frame in the kernel"),
    ("parts", "perf map and unwind table on their own"),
];

/// Runs the named pieces, or all.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let known = |name: &&str| PIECES.iter().any(|(piece, _)| piece == name);
    if names == ["list"] || !names.iter().all(known) {
        for (piece, about) in PIECES {
            println!("{piece:<8}{about}");
        }
        if names == ["list"] {
            return Ok(());
        }
        bail!("no such piece: {}", names.join(" "));
    }
    let wanted = |piece: &str| names.is_empty() || names.contains(&piece);
    if wanted("parts") {
        parts()?;
    }
    if wanted("target") || wanted("bpf") {
        if !host::is_root() {
            bail!(
                "measuring a running target needs root.\nRun: sudo env PATH=\"$PATH\" cargo xtask bench"
            );
        }
        let python = pythons::preferred()?;
        let bench = Bench {
            profiler: demo::release_build()?,
            python,
            folder: scratch()?,
        };
        if wanted("target") {
            bench.target()?;
        }
        if wanted("bpf") {
            bench.kernel_side()?;
        }
    }
    Ok(())
}

/// Examples and criterion benches of the profiler.
fn parts() -> Result<()> {
    for example in EXAMPLES {
        let source = host::workspace().join("profiler/examples").join(example);
        if source.with_extension("rs").is_file() {
            let mut cargo = Command::new("cargo");
            cargo.args([
                "run",
                "--quiet",
                "--release",
                "--package",
                "pyprof-bpf",
                "--example",
            ]);
            print!("{example}: ");
            command::run(cargo.arg(example).current_dir(host::workspace()))?;
        }
    }
    if host::workspace().join("profiler/benches").is_dir() {
        let mut cargo = Command::new("cargo");
        cargo.args(["bench", "--package", "pyprof-bpf"]);
        command::run(cargo.current_dir(host::workspace()))?;
    }
    Ok(())
}

/// A folder for what the profilers write.
fn scratch() -> Result<PathBuf> {
    let folder = host::target_dir().join("bench");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    Ok(folder)
}

/// Measures on running targets.
struct Bench {
    profiler: PathBuf,
    python: Python,
    folder: PathBuf,
}

/// One run of the work.
#[derive(Default)]
struct Turn {
    /// CPU time of the work itself.
    target_seconds: f64,
    /// CPU time of the profiler, all of its life.
    own_seconds: f64,
    /// CPU time of the profiler while the work went on.
    recording_seconds: f64,
    peak_mebibytes: f64,
    attach_seconds: f64,
    exit_seconds: f64,
}

impl Bench {
    /// Slowdown of the target at each rate, and the profiler's own costs.
    fn target(&self) -> Result<()> {
        let perf = host::which("perf");
        let mut rows: BTreeMap<String, Row> = BTreeMap::new();
        let mut enter = |what: String, unit, value, at_most| {
            let row = Row {
                what: what.clone(),
                unit,
                values: Vec::new(),
                at_most,
            };
            rows.entry(what).or_insert(row).values.push(value);
        };
        for turn in 0..TURNS {
            for (hz, aim) in RATES {
                eprintln!("turn {} of {TURNS}, {hz} Hz", turn + 1);
                let plain = self.work(None)?.target_seconds;
                let folded = self.folder.join("ours.folded");
                let ours = self.work(Some(&mut self.ours(hz, &folded)))?;
                let samples = folded::hottest(&fs::read_to_string(&folded)?).1;
                let each = |seconds: f64| 1e6 * seconds / samples.max(1) as f64;
                let (recording, whole) = (each(ours.recording_seconds), each(ours.own_seconds));
                let slowdown = ours.target_seconds / plain;
                enter(
                    format!("{hz} Hz: target, profiled / not"),
                    "x",
                    slowdown,
                    Some(aim),
                );
                enter(
                    format!("{hz} Hz: own CPU a sample, recording"),
                    "us",
                    recording,
                    None,
                );
                enter(
                    format!("{hz} Hz: own CPU a sample, all in all"),
                    "us",
                    whole,
                    None,
                );
                enter(
                    format!("{hz} Hz: peak memory"),
                    "MiB",
                    ours.peak_mebibytes,
                    None,
                );
                enter(
                    format!("{hz} Hz: start to sampling"),
                    "s",
                    ours.attach_seconds,
                    None,
                );
                enter(
                    format!("{hz} Hz: SIGINT to exit"),
                    "s",
                    ours.exit_seconds,
                    Some(1.0),
                );
                if let Some(perf) = &perf {
                    let theirs = self.work(Some(&mut self.perf(perf, hz)))?.target_seconds;
                    enter(
                        format!("{hz} Hz: target, perf / not"),
                        "x",
                        theirs / plain,
                        None,
                    );
                    let ratio = ours.target_seconds / theirs;
                    enter(
                        format!("{hz} Hz: target, profiled / perf"),
                        "x",
                        ratio,
                        None,
                    );
                }
            }
        }
        for row in rows.values() {
            println!("{row}");
        }
        Ok(())
    }

    /// The kernel's own account of the BPF programs' run time.
    fn kernel_side(&self) -> Result<()> {
        for name in ["demo", "recursion"] {
            let workload = Workload::start(&self.python, name, &["--seconds", "60"])?;
            let folded = self.folder.join("bpf.folded");
            let mut record = Command::new(&self.profiler);
            record
                .args([
                    "record",
                    "--bpf-stats",
                    "--duration",
                    "5",
                    "--frequency",
                    "999",
                    "--pid",
                ])
                .arg(workload.pid().to_string())
                .arg("--output")
                .arg(folded);
            let done = record.output().context("cannot start the profiler")?;
            let said = [done.stdout, done.stderr].concat();
            let said = String::from_utf8_lossy(&said);
            let Some(line) = said.lines().find_map(|line| line.strip_prefix("bpf: ")) else {
                bail!("the profiler printed no `bpf:` line: {}", said.trim_end());
            };
            let number = |key: &str| {
                let word = line
                    .split(' ')
                    .find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
                measure::leading_number(word.unwrap_or_default()) as f64
            };
            let nanoseconds = number("run_time_ns");
            let row = |what: &str, unit, value| Row {
                what: format!("{name}: {what}"),
                unit,
                values: vec![value],
                at_most: None,
            };
            println!(
                "{}",
                row("BPF a frame", "ns", nanoseconds / number("frames").max(1.0))
            );
            println!(
                "{}",
                row(
                    "BPF a sample",
                    "us",
                    nanoseconds / 1e3 / number("samples").max(1.0)
                )
            );
            println!(
                "{}",
                row(
                    "BPF a run",
                    "us",
                    nanoseconds / 1e3 / number("runs").max(1.0)
                )
            );
        }
        Ok(())
    }

    /// This profiler, without its target yet.
    fn ours(&self, hz: u32, output: &Path) -> Command {
        let mut record = Command::new(&self.profiler);
        record.args([
            "record",
            "--quiet",
            "--frequency",
            &hz.to_string(),
            "--output",
        ]);
        record.arg(output);
        record
    }

    /// perf with frame pointers, its cheapest way to stacks.
    fn perf(&self, perf: &Path, hz: u32) -> Command {
        let mut record = Command::new(perf);
        record.args([
            "record",
            "-q",
            "-e",
            "cpu-clock",
            "-g",
            "-F",
            &hz.to_string(),
            "-o",
        ]);
        record.arg(self.folder.join("perf.data"));
        record
    }

    /// Does the work once, with a profiler on it if there is one (its command lacks only
    /// the target).
    fn work(&self, profiler: Option<&mut Command>) -> Result<Turn> {
        let mut workload = Workload::start(&self.python, "work", &["--chunks", CHUNKS])?;
        let mut turn = Turn::default();
        let mut running: Option<Child> = None;
        if let Some(profiler) = profiler {
            profiler.args(["--pid", &workload.pid().to_string()]);
            profiler.stdout(Stdio::null()).stderr(Stdio::null());
            let start = Instant::now();
            let child = profiler
                .spawn()
                .with_context(|| format!("cannot start `{}`", command::shown(profiler)))?;
            let child = running.insert(child);
            turn.attach_seconds = measure::wait_until_attached(child, start)?;
        }
        let own = |child: &Option<Child>| match child {
            Some(child) => measure::cpu_seconds(child.id()),
            None => Ok(0.0),
        };
        let before = own(&running)?;
        workload.say("go")?;
        turn.target_seconds = sum(&workload.line()?)?;
        turn.recording_seconds = own(&running)? - before;
        if let Some(mut child) = running {
            turn.peak_mebibytes = measure::peak_mebibytes(child.id())?;
            let before = measure::children_cpu_seconds()?;
            let (status, seconds) = measure::interrupt(&mut child)?;
            // The profiler is the only child that was waited for in between, but for the
            // shell that sent the signal.
            turn.own_seconds = measure::children_cpu_seconds()? - before;
            turn.exit_seconds = seconds;
            // perf passes the signal on to itself when it is done.
            if status.code().is_some_and(|code| code != 0) {
                bail!("the profiler ended with {status}");
            }
        }
        Ok(turn)
    }
}

/// The sum of a JSON list of numbers.
fn sum(list: &str) -> Result<f64> {
    let numbers = list.trim_matches(['[', ']']).split(',');
    numbers
        .map(|number| number.trim().parse::<f64>())
        .sum::<std::result::Result<f64, _>>()
        .with_context(|| format!("the workload printed no list of numbers: `{list}`"))
}
