//! Windows of one engine: each has what was sampled in it, together they have everything.
//!
//! The engine runs in this very process: no command has windows yet.

use std::{
    collections::{BTreeMap, BTreeSet},
    thread::sleep,
    time::{Duration, Instant},
};

use pyprof_bpf::{
    model::Pid,
    profile::{View, ViewFrame},
    session::{Engine, RecordSettings, StopReason, SymbolProcess, Window},
};

use super::{Python, Test, Verdict, note, running::Running, script};

pub(super) const TESTS: &[Test] = &[
    (
        "windows_of_a_churning_process_tree_have_every_sample_once",
        churning,
    ),
    ("a_window_has_what_ran_in_it_and_nothing_else", phases),
];

/// How many windows there are; `PYPROF_TEST_WINDOWS` is another number.
const WINDOWS: usize = 60;
/// How long each is.
const LENGTH: Duration = Duration::from_millis(100);
/// What a window may lack of a function that ran all the time, or have of one that did not: names that come late.
const LATE: f64 = 0.02;

fn settings(pid: u32) -> RecordSettings {
    RecordSettings {
        // The kernel's own number of samples.
        bpf_stats: true,
        ..super::hostile::settings(vec![Pid(pid)], true)
    }
}

/// Has the engine tick as often as a recording does, until the time is over.
fn run_for(engine: &mut Engine, time: Duration) {
    let until = Instant::now() + time;
    let mut ticks = 0;
    while Instant::now() < until {
        engine.tick();
        ticks += 1;
        if ticks % 100 == 0 {
            engine.slow_tick();
        }
        sleep(Duration::from_millis(5));
    }
}

/// Windows of this length, one after the other; the last one is ended by a stop.
fn windows(pid: u32, count: usize, length: Duration) -> Vec<Window> {
    let mut engine = Engine::start(settings(pid), SymbolProcess::start(), &|| true).unwrap();
    let mut windows = Vec::new();
    for _ in 1..count {
        run_for(&mut engine, length);
        windows.push(engine.cut());
    }
    run_for(&mut engine, length);
    windows.push(engine.stop(StopReason::Interrupted));
    windows
}

/// Samples by Python functions, outermost first; `None` for those without.
fn by_functions(windows: &[Window]) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    for window in windows {
        for stack in window.profile.folded_view(View::Python) {
            let names = stack.frames.iter().filter_map(|frame| match frame {
                ViewFrame::Code(frame) if frame.file.is_some() => Some(&*frame.name),
                _ => None,
            });
            *counts
                .entry(names.collect::<Vec<_>>().join(";"))
                .or_insert(0) += stack.count;
        }
    }
    counts
}

fn churning(python: &Python) -> Verdict {
    let count = std::env::var("PYPROF_TEST_WINDOWS").map_or(WINDOWS, |it| it.parse().unwrap());
    let target = Running::start(python.plain().arg(script("churn")));
    let many = windows(target.pid(), count, LENGTH);
    let one = windows(target.pid(), 1, LENGTH * count as u32);
    for (what, windows) in [("many windows", &many), ("one window", &one)] {
        let sum = |each: fn(&Window) -> u64| windows.iter().map(each).sum::<u64>();
        let samples = sum(|it| it.profile.quality.samples);
        let lost = sum(|it| it.profile.quality.lost());
        let counted = sum(|it| it.summary.bpf.unwrap().samples);
        let programs = sum(|it| it.summary.targets.iter().map(|it| it.samples).sum());
        let of_programs = sum(|it| it.summary.targets.len() as u64);
        let unlisted = sum(|it| it.summary.unsampled.unlisted);
        let complete = sum(|it| it.profile.quality.complete);
        let late = sum(|it| it.profile.quality.unread);
        note(format!(
            "{what}: {samples} samples and {lost} lost of {counted} in {}; {programs} of {of_programs} programs, {unlisted} not \
             listed; {complete} complete, {late} Python frames not read in time",
            windows.len()
        ));
        assert_eq!(samples + lost, counted, "{what}");
        assert_eq!(programs, samples, "{what}: of all programs");
        assert!(complete as f64 > 0.95 * samples as f64, "{what}");
    }
    let (many, one) = (by_functions(&many), by_functions(&one));
    let all = |counts: &BTreeMap<String, u64>| counts.values().sum::<u64>() as f64;
    let (all_many, all_one) = (all(&many), all(&one));
    let functions: BTreeSet<&String> = many.keys().chain(one.keys()).collect();
    for functions in functions {
        let share = |counts: &BTreeMap<String, u64>, all| {
            counts.get(functions).copied().unwrap_or_default() as f64 / all
        };
        let (a, b) = (share(&many, all_many), share(&one, all_one));
        if a.max(b) > 0.01 {
            note(format!(
                "{functions}: {:.1} % and {:.1} %",
                100.0 * a,
                100.0 * b
            ));
        }
        // How the two CPUs are shared by so many processes is chance: some percent.
        assert!((a - b).abs() < 0.1, "{functions}: {a} and {b}");
    }
    Ok(())
}

/// A function that runs in the first window only is in the first window only.
fn phases(python: &Python) -> Verdict {
    let mut target = Running::start(python.plain().arg(script("phases")));
    let mut engine =
        Engine::start(settings(target.pid()), SymbolProcess::start(), &|| true).unwrap();
    let mut windows = Vec::new();
    for _ in 0..3 {
        run_for(&mut engine, 5 * LENGTH);
        windows.push(engine.cut());
        // It says when it has come to the next function, and the samples until then belong to a window of their own.
        target.say("next");
        assert_eq!(target.line(), "changed");
        let between = engine.cut();
        assert!(between.summary.elapsed < windows[0].summary.elapsed);
    }
    for (number, window) in windows.iter().enumerate() {
        let counts = by_functions(std::slice::from_ref(window));
        let all = counts.values().sum::<u64>();
        let own = format!("phase_{number}");
        let of_own: u64 = counts
            .iter()
            .filter(|(functions, _)| functions.contains(&own))
            .map(|(_, count)| count)
            .sum();
        note(format!("{own}: {of_own} of {all}"));
        assert!(all > 50, "{counts:?}");
        assert!(of_own as f64 > (1.0 - LATE) * all as f64, "{counts:?}");
        let target = &window.summary.targets[0];
        assert_eq!(target.samples, all);
        assert!(target.cpu_time < 2 * window.summary.elapsed);
    }
    Ok(())
}
