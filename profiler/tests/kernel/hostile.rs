//! Targets whose owner attacks: what they cost is bounded, and an honest process that is recorded beside them in the same
//! run keeps its samples and its names.
//!
//! The recordings are made in this very process, by the library: it takes several targets. How long the samples had to
//! wait is noted, not judged: that depends on the machine. What is judged is how much was done and kept.

use std::{fs, time::Duration};

use pyprof_bpf::{
    model::{Hz, Pid},
    process::Selector,
    profile::{Granularity, View, ViewFrame, ViewStack},
    session::{
        self, Progress, PythonFrom, PythonSource, RecordSettings, Remark, StopReason,
        SymbolProcess, Window,
    },
};
use tokio::sync::watch;

use super::{
    Python, Skip, Test, Verdict, compiled::compile, cpu_time, note, recording::record,
    refusals::in_own_tmp, running::Running, scratch, script, skip, status_field, workload,
};

pub(super) const TESTS: &[Test] = &[
    ("a_map_that_grows_without_end_harms_nobody", growing_map),
    (
        "a_map_that_is_written_backwards_harms_nobody",
        backwards_map,
    ),
    ("a_map_with_an_endless_line_harms_nobody", endless_line),
    (
        "a_map_that_is_swapped_all_the_time_harms_nobody",
        swapped_map,
    ),
    ("a_root_that_moves_all_the_time_harms_nobody", moving_root),
    ("files_whose_headers_lie_harm_nobody", hostile_files),
    ("mappings_up_to_the_limit_harm_nobody", many_mappings),
    ("thousands_of_files_with_code_harm_nobody", many_files),
    ("terabytes_of_code_harm_nobody", huge_text),
    ("a_fork_bomb_harms_nobody", fork_bomb),
    ("a_fork_bomb_that_is_followed_harms_nobody", followed_bomb),
    (
        "programs_that_replace_each_other_all_the_time_harm_nobody",
        exec_storm,
    ),
    ("function_names_without_end_harm_nobody", |python| {
        long_python(python, "long_names")
    }),
    ("file_names_without_end_harm_nobody", |python| {
        long_python(python, "long_files")
    }),
    ("line_tables_without_end_harm_nobody", |python| {
        long_python(python, "long_tables")
    }),
    ("code_objects_without_end_harm_nobody", |python| {
        long_python(python, "endless_code")
    }),
    ("perf_maps_of_many_processes_harm_nobody", |python| {
        attack_by(python, "maps_of_many", true)?.assert_harmless();
        Ok(())
    }),
    ("mappings_of_many_processes_harm_nobody", |python| {
        attack_by(python, "mappings_of_many", true)?.assert_harmless();
        Ok(())
    }),
    ("a_stack_without_an_end_is_cut_short", endless_stack),
    (
        "a_process_that_must_not_be_looked_at_is_recorded",
        undumpable,
    ),
];

/// Memory that a recording may need on top of what the process had before, whatever its targets do. `SECURITY.md` promises it.
const MEMORY_KIB_MAX: u64 = 512 * 1024;
/// Samples of the honest process by which it is judged.
const SAMPLES_MIN: u64 = 50;

/// How long is recorded, and what the honest process must have worked by then.
const RECORDED: Duration = Duration::from_secs(3);
const HONEST_WORK: Duration = Duration::from_millis(500);
/// A recording that has not ended by then never will.
const WATCHDOG: Duration = Duration::from_mins(10);

/// A recording of two processes.
struct Attack {
    recording: Window,
    hostile: Pid,
    honest: Pid,
    /// On top of what the process had before.
    peak_kib: u64,
}

/// Records a process that goes about it in this way, and an honest one.
fn attack(python: &Python, way: &str) -> Result<Attack, Skip> {
    attack_by(python, way, false)
}

/// The same; `family`: and all that they start.
fn attack_by(python: &Python, way: &str, family: bool) -> Result<Attack, Skip> {
    let mut command = python.perf();
    command.arg(script("hostile")).arg(way);
    let hostile = in_own_tmp(&command)?;
    let honest = Running::start(python.perf().arg(workload("chain")));
    let (hostile_pid, honest_pid) = (Pid(hostile.pid()), Pid(honest.pid()));
    let before_kib = memory_of_other_trials();
    let settings = settings(vec![hostile_pid, honest_pid], family);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let (progress, mut shown) = watch::channel(Progress::default());
    // So that there are samples of the honest one to judge by, also on a busy machine.
    let stop = async {
        // Sampling has begun.
        let _ = shown.changed().await;
        let had = cpu_time(honest.pid());
        tokio::time::sleep(RECORDED).await;
        while cpu_time(honest.pid()) < had + HONEST_WORK {
            tokio::time::sleep(RECORDED / 30).await;
        }
        StopReason::Interrupted
    };
    let recording = runtime.block_on(async {
        let symbols = SymbolProcess::start();
        let recording = session::record(settings, symbols, stop, progress);
        // A watchdog: far more than all of it takes on the busiest machine.
        tokio::time::timeout(WATCHDOG, recording)
            .await
            .expect("the recording ends when it is asked to")
    });
    let recording = recording.unwrap();
    let peak_kib = status_field(std::process::id(), "VmHWM").unwrap();
    Ok(Attack {
        recording,
        hostile: hostile_pid,
        honest: honest_pid,
        peak_kib: peak_kib.saturating_sub(before_kib),
    })
}

/// A recording of these processes that is ended from outside; `family`: and of all that they start.
pub(super) fn settings(pids: Vec<Pid>, family: bool) -> RecordSettings {
    RecordSettings {
        selector: Selector::Pids(pids),
        subprocesses: family,
        ring_bytes: None,
        frequency: Hz(999),
        duration: None,
        kernel_stacks: false,
        threads: false,
        granularity: Granularity::default(),
        python_from: PythonFrom::Auto,
        cross_check: false,
        bpf_stats: false,
    }
}

/// Gives back the memory that other trials in this process have freed, sets the peak to what is left, and says how much
/// that is, in KiB.
fn memory_of_other_trials() -> u64 {
    // SAFETY: it has no precondition; it concerns memory that was freed.
    unsafe { libc::malloc_trim(0) };
    fs::write("/proc/self/clear_refs", "5").unwrap();
    status_field(std::process::id(), "VmRSS").unwrap()
}

impl Attack {
    fn stacks(&self, pid: Pid) -> impl Iterator<Item = ViewStack<'_>> {
        let stacks = self.recording.profile.folded_view(View::Mixed);
        stacks.filter(move |stack| stack.pid == pid)
    }

    fn samples(&self, pid: Pid, is_such: impl Fn(&ViewStack<'_>) -> bool) -> u64 {
        let stacks = self.stacks(pid).filter(|stack| is_such(stack));
        stacks.map(|stack| stack.count).sum()
    }

    /// The honest process has its samples and names, nothing took more than it may, and nothing secret is shown.
    fn assert_harmless(self) -> Self {
        let summary = &self.recording.summary;
        let quality = &self.recording.profile.quality;
        let honest = self.samples(self.honest, |_| true);
        let named = self.samples(self.honest, |stack| has(stack, "foo"));
        let cut = self.samples(self.honest, |stack| {
            stack
                .frames
                .iter()
                .any(|frame| matches!(frame, ViewFrame::Truncated(_)))
        });
        note(format!(
            "longest tick {:.1?}, {:.1?} of CPU; peak {} MiB; {honest} samples of the honest process, {named} with its name, {cut} cut \
             short; {} of the hostile one; {} lost; {:?}, {} remarks",
            summary.longest_tick,
            summary.longest_tick_cpu,
            self.peak_kib / 1024,
            self.samples(self.hostile, |_| true),
            quality.lost(),
            summary.refusals,
            summary.remarks.len(),
        ));
        assert!(honest >= SAMPLES_MIN, "{honest} samples");
        assert!(named as f64 >= 0.98 * honest as f64, "{named} of {honest}");
        assert!(cut as f64 <= 0.02 * honest as f64, "{cut} of {honest}");
        assert!(self.peak_kib <= MEMORY_KIB_MAX, "{} KiB", self.peak_kib);
        assert!(100 * quality.lost() <= quality.samples, "{quality:?}");
        for refusal in &summary.refusals {
            assert!(!refusal.chars().any(char::is_control), "{refusal:?}");
        }
        let secret = self.samples(self.hostile, |stack| has(stack, "SECRET"));
        assert_eq!(secret, 0, "what was not to be read was shown");
        self
    }
}

fn has(stack: &ViewStack<'_>, function: &str) -> bool {
    stack.frames.iter().any(|frame| match frame {
        ViewFrame::Code(frame) => &*frame.name == function,
        _ => false,
    })
}

fn growing_map(python: &Python) -> Verdict {
    attack(python, "growing_map")?.assert_harmless();
    Ok(())
}

fn backwards_map(python: &Python) -> Verdict {
    attack(python, "backwards_map")?.assert_harmless();
    Ok(())
}

fn endless_line(python: &Python) -> Verdict {
    let attack = attack(python, "endless_line")?.assert_harmless();
    // As a line that is skipped, or once the file is as large as no map is.
    let refusals = &attack.recording.summary.refusals;
    let told = |words: &str| refusals.iter().any(|refusal| refusal.contains(words));
    assert!(
        told("not accepted") || told("not perf-map entries"),
        "{refusals:?}"
    );
    Ok(())
}

fn swapped_map(python: &Python) -> Verdict {
    attack(python, "swapped_map")?.assert_harmless();
    Ok(())
}

fn moving_root(python: &Python) -> Verdict {
    attack(python, "moving_root")?.assert_harmless();
    Ok(())
}

fn hostile_files(python: &Python) -> Verdict {
    let attack = attack(python, "hostile_files")?.assert_harmless();
    // Their code ran, and each sample of it is counted under a name made of the file's.
    for file in ["python3.12", "many_sections", "endless_name", "frames"] {
        let is_in = |stack: &ViewStack<'_>| {
            stack.frames.iter().any(|frame| match frame {
                ViewFrame::Code(frame) => frame.module.as_deref() == Some(file),
                _ => false,
            })
        };
        let samples = attack.samples(attack.hostile, is_in);
        assert!(samples > 0, "no sample in {file}");
    }
    Ok(())
}

fn many_mappings(python: &Python) -> Verdict {
    let attack = attack(python, "many_mappings")?.assert_harmless();
    let remarks = &attack.recording.summary.remarks;
    let left_out = remarks.iter().find_map(|remark| match remark {
        Remark::MappingsLeftOut(count) => Some(*count),
        _ => None,
    });
    assert!(left_out.is_some_and(|count| count > 10_000), "{remarks:?}");
    Ok(())
}

fn many_files(python: &Python) -> Verdict {
    attack(python, "many_files")?.assert_harmless();
    Ok(())
}

fn huge_text(python: &Python) -> Verdict {
    attack(python, "huge_text")?.assert_harmless();
    Ok(())
}

fn fork_bomb(python: &Python) -> Verdict {
    attack(python, "fork_bomb")?.assert_harmless();
    Ok(())
}

fn followed_bomb(python: &Python) -> Verdict {
    let attack = attack_by(python, "fork_bomb", true)?.assert_harmless();
    let summary = &attack.recording.summary;
    let processes = summary.targets.len() as u64 + summary.unsampled.processes;
    note(format!("{processes} processes"));
    assert!(processes > 20, "{processes}");
    Ok(())
}

fn exec_storm(python: &Python) -> Verdict {
    let attack = attack_by(python, "exec_storm", true)?.assert_harmless();
    // What the one program calls its code is not what the other one's is called.
    let count = |caller, code| {
        attack.samples(attack.hostile, |stack| {
            has(stack, caller) && has(stack, code)
        })
    };
    let right = count("as_first", "first") + count("as_second", "second");
    let wrong = count("as_first", "second") + count("as_second", "first");
    let images = attack.recording.summary.targets.iter();
    let images = images.filter(|it| it.pid == attack.hostile).count();
    note(format!("{right} right in {images} programs"));
    assert!(right > 20 && images > 5, "{right} in {images}");
    assert_eq!(wrong, 0);
    Ok(())
}

/// What the interpreter says of its code is long, or does not end. Perf maps are not asked for.
fn long_python(python: &Python, way: &str) -> Verdict {
    let attack = attack(python, way)?.assert_harmless();
    let sources = attack.recording.summary.targets.iter();
    let is_read = sources
        .filter(|target| target.pid == attack.hostile)
        .any(|target| matches!(target.source, PythonSource::Interpreter(_)));
    if !is_read {
        return skip("the frames of this interpreter are not read");
    }
    // It has its samples as well, each of them with what there was time to read.
    let hostile = attack.samples(attack.hostile, |_| true);
    assert!(hostile >= SAMPLES_MIN, "{hostile} samples");
    Ok(())
}

fn endless_stack(_: &Python) -> Verdict {
    let directory = scratch();
    let program = directory.path().join("cycle");
    compile("cycle.c", &["-fasynchronous-unwind-tables"], &program)?;
    let target = Running::start(&mut std::process::Command::new(program));
    let recording = record(target.pid(), &["-F", "999", "-d", "1"]);
    recording.assert_done(50);
    let words = "with more frames than a sample can hold";
    assert!(recording.report.contains(words), "{}", recording.report);
    let deepest = recording.stacks.iter().map(|stack| stack.frames.len());
    note(format!(
        "{} samples, {:?} frames",
        recording.samples(),
        deepest.max()
    ));
    Ok(())
}

fn undumpable(python: &Python) -> Verdict {
    let attack = attack(python, "undumpable")?.assert_harmless();
    let all = attack.samples(attack.hostile, |_| true);
    let named = attack.samples(attack.hostile, |stack| has(stack, "work"));
    assert!(all > 0 && 10 * named >= 9 * all, "{named} of {all}");
    Ok(())
}
