//! What being profiled costs the target.
//!
//! One process does the same work again and again: alone, under this profiler, under
//! perf, and once more in the reverse order (ABBA), so that neither the process's own
//! layout nor a machine that slows down favours one of them. Each ratio is taken within
//! one such turn.

use std::{path::Path, process::Command, thread, time::Duration};

use anyhow::{Context as _, Result};

use super::{Bench, table::Table};
use crate::{host, workload::Workload};

/// Turns of each comparison.
const TURNS: usize = 5;
/// Chunks of work of one kind in a turn, of about 10 ms each, in two halves.
const CHUNKS: &str = "100";
/// Sampling rates.
const RATES: [u32; 2] = [99, 999];
/// After its events are open, a profiler gets this long to finish its preparations.
const SETTLE: Duration = Duration::from_millis(600);
/// Slowdown against perf that should do.
const GOAL: f64 = 1.01;

const SECTION: &str = "The target: CPU time of the same work";

/// How the work is done.
#[derive(Clone, Copy)]
enum Kind {
    Plain,
    Ours,
    Perf,
}

/// One turn.
const ORDER: [Kind; 6] = [
    Kind::Plain,
    Kind::Ours,
    Kind::Perf,
    Kind::Perf,
    Kind::Ours,
    Kind::Plain,
];

/// What was measured of one kind.
#[derive(Clone, Copy, Default)]
struct Sums {
    /// CPU time of the work.
    target: f64,
    /// CPU time of the profiler meanwhile.
    own: f64,
}

/// Fills in the section.
pub(super) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let perf = host::which("perf");
    if perf.is_none() {
        eprintln!("target: there is no perf to compare with");
    }
    for turn in 0..TURNS {
        for hz in RATES {
            eprintln!("target: turn {} of {TURNS}, {hz} Hz", turn + 1);
            one_turn(bench, table, perf.as_deref(), hz)?;
        }
    }
    Ok(())
}

fn one_turn(bench: &Bench, table: &mut Table, perf: Option<&Path>, hz: u32) -> Result<()> {
    let mut workload = Workload::start(&bench.python, "work", &["--chunks", CHUNKS])?;
    let (mut plain, mut ours, mut theirs) = (Sums::default(), Sums::default(), Sums::default());
    for kind in ORDER {
        match (kind, perf) {
            (Kind::Plain, _) => plain.add(work(bench, &mut workload, None)?),
            (Kind::Ours, _) => {
                let mut profiler = bench.ours(hz);
                profiler.arg("--output").arg(bench.output("target.folded")?);
                ours.add(work(bench, &mut workload, Some(profiler))?);
            }
            (Kind::Perf, Some(perf)) => {
                let profiler = perf_record(bench, perf, hz);
                theirs.add(work(bench, &mut workload, Some(profiler))?);
            }
            (Kind::Perf, None) => {}
        }
    }
    let mut add = |what: &str, value: f64, unit, goal| {
        table.add(SECTION, format!("{hz} Hz: {what}"), value, unit, goal);
    };
    let samples = |sums: Sums| sums.target * f64::from(hz);
    add("profiled / not", ours.target / plain.target, "x", None);
    if perf.is_some() {
        let ratio = theirs.target / plain.target;
        add("perf record -g / not", ratio, "x", None);
        let ratio = ours.target / theirs.target;
        add("profiled / perf record -g", ratio, "x", Some(GOAL));
    }
    let added = 1e6 * (ours.target - plain.target) / samples(ours);
    add("added to the target, a sample", added, "us", None);
    if perf.is_some() {
        let added = 1e6 * (theirs.target - plain.target) / samples(theirs);
        add("added by perf record -g, a sample", added, "us", None);
    }
    let own = 1e6 * ours.own / samples(ours);
    add("own CPU meanwhile, a sample", own, "us", None);
    Ok(())
}

impl Sums {
    fn add(&mut self, other: Self) {
        self.target += other.target;
        self.own += other.own;
    }
}

/// perf with frame pointers, its cheapest way to stacks.
fn perf_record(bench: &Bench, perf: &Path, hz: u32) -> Command {
    let mut record = Command::new(perf);
    record.args(["record", "-q", "-e", "cpu-clock", "-g", "-F"]);
    record.arg(hz.to_string()).arg("-o");
    record.arg(bench.folder.join("perf.data"));
    record
}

/// Half of the work of a turn, with a profiler on it if there is one.
fn work(bench: &Bench, workload: &mut Workload, profiler: Option<Command>) -> Result<Sums> {
    let Some(profiler) = profiler else {
        workload.say("go")?;
        let target = midmean(&workload.line()?)?;
        return Ok(Sums { target, own: 0.0 });
    };
    let recorder = bench.start(&profiler, workload)?;
    recorder.wait_until_attached()?;
    thread::sleep(SETTLE);
    let before = recorder.cpu_seconds()?;
    workload.say("go")?;
    let target = midmean(&workload.line()?)?;
    let own = recorder.cpu_seconds()? - before;
    recorder.stop()?;
    Ok(Sums { target, own })
}

/// The sum of a JSON list of numbers, were all of them like the middle half: what a
/// machine does besides disturbs single chunks.
fn midmean(list: &str) -> Result<f64> {
    let numbers = list.trim_matches(['[', ']']).split(',');
    let mut numbers: Vec<f64> = numbers
        .map(|number| number.trim().parse())
        .collect::<Result<_, _>>()
        .with_context(|| format!("the workload printed no list of numbers: `{list}`"))?;
    numbers.sort_by(f64::total_cmp);
    let quarter = numbers.len() / 4;
    let middle = &numbers[quarter..numbers.len() - quarter];
    Ok(middle.iter().sum::<f64>() / middle.len() as f64 * numbers.len() as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disturbed_chunk_does_not_count() {
        let sum = midmean("[1.0, 1.0, 9.0, 1.0]").unwrap();
        assert!((sum - 4.0).abs() < 1e-9, "{sum}");
        assert!(midmean("").is_err());
    }
}
