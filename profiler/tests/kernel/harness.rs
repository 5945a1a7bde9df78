//! How a suite of trials is run, and what its trials have in common.

use std::{
    fmt::Display,
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Trial};

use super::{children::EndChildren, python::Python, recording::name_by_perf_maps};

/// A trial that cannot run here says why.
pub(super) type Verdict = Result<(), Skip>;

/// Why a trial cannot run here.
pub(super) struct Skip(String);

/// For `ok_or_else` and early returns.
pub(super) fn skip<T>(why: impl Display) -> Result<T, Skip> {
    Err(Skip(why.to_string()))
}

/// What each trial is called, what it does, and whether it needs an interpreter of its own.
pub(super) type Test = (&'static str, fn(&Python) -> Verdict);

/// Runs the trials that the command line names, one after the other; prints what was measured.
#[expect(clippy::print_stdout, reason = "what was measured is worth reading")]
pub(super) fn run(trials: Vec<Trial>) -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let conclusion = libtest_mimic::run(&arguments, trials);
    for line in NOTES.lock().unwrap_or_else(PoisonError::into_inner).iter() {
        println!("{line}");
    }
    conclusion.exit_code()
}

pub(super) fn for_each(pythons: &[Python], tests: &[Test]) -> Vec<Trial> {
    let pairs = pythons
        .iter()
        .flat_map(|python| tests.iter().map(move |test| (test, python)));
    pairs.map(|(test, python)| trial(*test, python)).collect()
}

pub(super) fn skipped<'a>(
    tests: impl IntoIterator<Item = &'a Test>,
    why: &'static str,
) -> Vec<Trial> {
    let tests = tests.into_iter();
    tests
        .map(|(name, _)| Trial::ignorable_test(*name, move || Ok(Completion::ignored_with(why))))
        .collect()
}

pub(super) fn trial((name, test): Test, python: &Python) -> Trial {
    named_trial(format!("{}::{name}", python.short()), test, python)
}

pub(super) fn named_trial(name: String, test: fn(&Python) -> Verdict, python: &Python) -> Trial {
    let python = python.clone();
    Trial::ignorable_test(name.clone(), move || {
        if !rustix::process::geteuid().is_root() {
            return Ok(Completion::ignored_with(
                "only root can load BPF programs everywhere",
            ));
        }
        *NOW.lock().unwrap_or_else(PoisonError::into_inner) = name;
        name_by_perf_maps(python.by_perf_maps || python.ours.is_some());
        let _end = EndChildren;
        match test(&python) {
            Ok(()) => Ok(Completion::Completed),
            Err(Skip(why)) => Ok(Completion::ignored_with(why)),
        }
    })
}

/// The trial that runs.
static NOW: Mutex<String> = Mutex::new(String::new());
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Keeps a measured number for the end of the output.
pub(super) fn note(text: impl Display) {
    let now = NOW.lock().unwrap_or_else(PoisonError::into_inner);
    let mut notes = NOTES.lock().unwrap_or_else(PoisonError::into_inner);
    notes.push(format!("{now}: {text}"));
}

/// A program from `workloads/`.
pub(super) fn workload(name: &str) -> PathBuf {
    let workloads = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .join("workloads");
    workloads.join(name).with_extension("py")
}

/// A folder for the files of one trial.
pub(super) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("a folder for temporary files")
}

/// Waits for something that comes soon, or never.
pub(super) fn eventually(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..1500 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("{what} did not happen within half a minute");
}

/// Waits until a process has used so much CPU time from now on. Samples go by that, and on a busy machine it takes long.
pub(super) fn let_work(pid: u32, time: Duration) {
    let until = cpu_time(pid) + time;
    for _ in 0..30_000 {
        if cpu_time(pid) >= until {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("the target did not work for {time:?} within ten minutes");
}

/// User and system time (proc_pid_stat(5)), which is counted in hundredths of a second.
pub(super) fn cpu_time(pid: u32) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, fields) = stat.rsplit_once(") ").unwrap();
    let ticks = fields.split(' ').skip(11).take(2);
    let ticks: u64 = ticks.map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// A number from a line of `/proc/PID/status`.
pub(super) fn status_field(pid: u32, field: &str) -> Option<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

/// How far a share of CPU time, measured by samples, may lie from the truth; a correct profiler fails once in a million.
///
/// A program runs in pieces: bursts of random length, cut further where the scheduler takes the CPU away. A clock
/// that samples with a steady beat meets a piece ⌊length × Hz⌋ or ⌈length × Hz⌉ times: its error has mean zero and a range
/// of one sample. By Hoeffding's inequality the error of any set of functions exceeds
/// `sqrt(pieces · ln(1 / risk) / 2)` samples with that risk; the total variation distance is the largest error
/// over the 2^k sets of k functions, so the risk is shared by them. With the 900 bursts of ten quiet seconds at 999 Hz
/// this is 0.9 %. A profiler that samples at random would need three times that.
pub(super) fn bound(pieces: f64, samples: f64, functions: f64) -> f64 {
    const RISK: f64 = 1e-6;
    let sets = functions.exp2();
    (pieces * (sets / RISK).ln() / 2.0).sqrt() / samples
}
