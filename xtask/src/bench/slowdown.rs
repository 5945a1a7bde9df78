//! What being profiled costs the target.
//!
//! Two processes do the same work, nothing but calls, again and again: one of a stock
//! Python, one with `-X perf`. Each works alone and under each profiler, and all once
//! more in the reverse order (ABBA), so that a machine that slows down favours none of
//! them. Ratios are taken within one such turn; every turn has new processes.
//!
//! CPU time is what is compared. A profiler that stops its target, as py-spy does, takes
//! wall time from it besides.

use std::{fs, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};

use super::{
    Bench,
    table::Table,
    variants::{self, By, Kind, Profiler, RATES, Variant},
};
use crate::workload::Workload;

/// Turns of everything.
const TURNS: usize = 5;
/// Chunks of work in one half of a turn, of some 10 ms each,
const CHUNKS: &str = "100";
/// and to see whether a profiler works here.
const TRIAL_CHUNKS: &str = "30";
/// After its events are open, a profiler gets this long to finish its preparations,
const SETTLE: Duration = Duration::from_millis(600);
/// and one that opens none so long from its start.
const PEER_SETTLE: Duration = Duration::from_millis(1500);
/// Slowdown against perf that should do.
const GOAL: f64 = 1.01;
/// What the profilers write, one after the other.
const OUTPUT: &str = "target.folded";

const SECTION: &str = "The target: CPU time of nothing but calls, against stock Python unprofiled";
const PERF_SECTION: &str = "The target: the same, both on python -X perf";
const SAMPLE_SECTION: &str = "The target: the same, for each sample that is due";

/// CPU time of half of the work of one variant in one turn.
#[derive(Clone, Copy)]
struct Half {
    target: f64,
    /// The profiler's meanwhile.
    own: f64,
}

/// All of it.
struct Done<'v> {
    variant: &'v Variant,
    halves: Vec<Half>,
}

/// Fills in the sections.
pub(super) fn measure(bench: &Bench, table: &mut Table) -> Result<()> {
    let mut variants = variants::all(bench, &bench.folder.join(OUTPUT));
    variants.retain(|variant| match try_peer(bench, variant) {
        Ok(()) => true,
        Err(err) => {
            eprintln!("target: {} is left out: {err:#}", variant.label());
            false
        }
    });
    for turn in 0..TURNS {
        eprintln!("target: turn {} of {TURNS}", turn + 1);
        tell(&one_turn(bench, &variants)?, table);
    }
    Ok(())
}

/// Fails for a peer that records nothing here.
fn try_peer(bench: &Bench, variant: &Variant) -> Result<()> {
    if variant.is_peer() {
        let mut workload = variant.kind.start(bench, TRIAL_CHUNKS)?;
        work(bench, &mut workload, variant.profiler.as_ref())?;
        let written = fs::metadata(bench.folder.join(OUTPUT)).map_or(0, |file| file.len());
        ensure!(written > 0, "it recorded nothing");
    }
    Ok(())
}

fn one_turn<'v>(bench: &Bench, variants: &'v [Variant]) -> Result<Vec<Done<'v>>> {
    let mut stock = Kind::Stock.start(bench, CHUNKS)?;
    let mut trampolines = Kind::Trampolines.start(bench, CHUNKS)?;
    let begun = |variant| Done {
        variant,
        halves: Vec::new(),
    };
    let mut all: Vec<_> = variants.iter().map(begun).collect();
    for index in (0..all.len()).chain((0..all.len()).rev()) {
        let Done { variant, halves } = &mut all[index];
        let workload = match variant.kind {
            Kind::Stock => &mut stock,
            Kind::Trampolines => &mut trampolines,
        };
        match work(bench, workload, variant.profiler.as_ref()) {
            Ok(half) => halves.push(half),
            // What another's program does is no reason to throw away all the rest.
            Err(err) if variant.is_peer() => {
                eprintln!("target: {} failed: {err:#}", variant.label());
            }
            Err(err) => return Err(err),
        }
    }
    all.retain(|done| done.halves.len() == 2);
    Ok(all)
}

/// Rows of one turn.
fn tell(all: &[Done<'_>], table: &mut Table) {
    let unprofiled = |kind| {
        all.iter()
            .find(|done| done.variant.kind == kind && done.variant.profiler.is_none())
    };
    let Some(base) = unprofiled(Kind::Stock) else {
        return;
    };
    if let [first, second] = base.halves[..] {
        // What this machine can tell apart.
        let what = format!("{}, once more", base.variant.label());
        let ratio = second.target / first.target;
        table.add(SECTION, what, ratio, "x", None);
    }
    for done in all {
        let label = done.variant.label();
        if done.variant.kind != Kind::Stock || done.variant.profiler.is_some() {
            let ratio = done.target() / base.target();
            table.add(SECTION, &label, ratio, "x", None);
        }
        let Some(profiler) = &done.variant.profiler else {
            continue;
        };
        let microseconds = 1e6 / (done.target() * f64::from(profiler.hz));
        if let Some(alone) = unprofiled(done.variant.kind) {
            let added = (done.target() - alone.target()) * microseconds;
            let what = format!("{label}: added to the target");
            table.add(SAMPLE_SECTION, what, added, "us", None);
        }
        let what = format!("{label}: own CPU");
        table.add(SAMPLE_SECTION, what, done.own() * microseconds, "us", None);
    }
    for hz in RATES {
        let of = |by| {
            all.iter()
                .find(|done| done.variant.kind == Kind::Trampolines && done.variant.is_by(by, hz))
        };
        if let (Some(ours), Some(perf)) = (of(By::Ours), of(By::Perf)) {
            let what = format!("pyprof-bpf / perf record -g, {hz} Hz");
            let ratio = ours.target() / perf.target();
            table.add(PERF_SECTION, what, ratio, "x", Some(GOAL));
        }
    }
}

impl Done<'_> {
    fn target(&self) -> f64 {
        self.halves.iter().map(|half| half.target).sum()
    }

    fn own(&self) -> f64 {
        self.halves.iter().map(|half| half.own).sum()
    }
}

/// Half of the work of a turn, with a profiler on it if there is one.
fn work(bench: &Bench, workload: &mut Workload, profiler: Option<&Profiler>) -> Result<Half> {
    let Some(profiler) = profiler else {
        let target = go(workload)?;
        return Ok(Half { target, own: 0.0 });
    };
    bench.output(OUTPUT)?;
    let recorder = bench.start(&profiler.command, workload)?;
    if let By::Peer(_) = profiler.by {
        thread::sleep(PEER_SETTLE);
    } else {
        recorder.wait_until_attached()?;
        thread::sleep(SETTLE);
    }
    let before = recorder.cpu_seconds();
    let target = go(workload)?;
    let after = recorder.cpu_seconds();
    // One that had ended has no CPU time to tell: its exit says more.
    recorder.stop()?;
    let own = after? - before?;
    Ok(Half { target, own })
}

/// Has the work done; its CPU time.
fn go(workload: &mut Workload) -> Result<f64> {
    workload.say("go")?;
    midmean(&workload.line()?)
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
