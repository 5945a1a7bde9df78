//! The report, case by case.

use super::*;
use crate::{
    model::{Hz, Pid},
    process::{
        Halt, PythonInfo,
        interpreter::{Obstacle, Remedy},
    },
    profile::{
        EndClass, Profile, Quality,
        testing::{Builder, python},
    },
    session::{
        PythonSource, SampledEvent, Spread, StopReason, TargetSummary, Throttling, Unsampled,
    },
    symbols::NameDiagnosis,
};

#[path = "report_held_tests.rs"]
mod held;

pub(super) fn target(names: NameDiagnosis) -> TargetSummary {
    TargetSummary {
        pid: Pid(4242),
        label: "app.py".to_owned(),
        command: "python app.py".to_owned(),
        samples: 2_970,
        python: PythonInfo {
            version: Some((3, 12)),
            interpreter_files: vec![],
            trampolines_asked: true,
            jitdump: false,
        },
        cpu_time: Duration::from_millis(29_800),
        source: PythonSource::PerfMap,
        names,
    }
}

fn recording(quality: Quality) -> Window {
    let mut recording = Window {
        profile: Profile::default(),
        summary: Summary {
            targets: vec![target(NameDiagnosis::Named)],
            roots: 1,
            follows: false,
            unsampled: Unsampled::default(),
            stop: StopReason::Duration,
            elapsed: Duration::from_secs(30),
            frequency: Hz(99),
            event: SampledEvent::Cycles,
            throttling: None,
            refusals: vec![],
            remarks: vec![],
            longest_tick: Duration::ZERO,
            cross_check: None,
            longest_tick_cpu: Duration::ZERO,
            bpf: None,
        },
    };
    recording.profile.quality = quality;
    recording
}

fn good() -> Quality {
    Quality {
        samples: 2_970,
        complete: 2_970,
        python_named: 9_000,
        with_python: 2_970,
        ..Quality::default()
    }
}

fn svg() -> Vec<(Destination, Format)> {
    vec![(Destination::File("app.svg".into()), Format::Svg)]
}

#[test]
fn only_a_picture_is_for_a_browser() {
    let file = |format| [(Destination::File("app.svg".into()), format)];
    let said = |files: &[_]| report_lines(&recording(good()), files)[0].clone();
    assert_eq!(
        said(&file(Format::Svg)),
        "wrote app.svg (open it in a browser)"
    );
    assert_eq!(said(&file(Format::Folded)), "wrote app.svg");
    assert_eq!(
        said(&[(Destination::Stdout, Format::Svg)]),
        "wrote standard output"
    );
}

#[test]
fn a_good_recording_needs_few_words() {
    assert_eq!(
        report_lines(&recording(good()), &svg()),
        [
            "wrote app.svg (open it in a browser)",
            "2,970 samples at 99 Hz (cycles) of pid 4242 (python app.py) in 30.0 s; CPU used: 29.80 s",
            "100 % of the stacks are complete",
            "Python code in 100 % of the samples; 100 % of the Python frames seen have names, from perf maps",
        ]
    );
}

#[test]
fn where_names_come_from_is_told() {
    use PythonSource::{Interpreter, PerfMap, Refused};
    let refused = || {
        Refused(Obstacle {
            reason: "it is a debug build".to_owned(),
            remedy: Remedy::PerfMap,
        })
    };
    for (sources, told) in [
        (
            vec![Interpreter(0x030d_00f0)],
            "read from CPython 3.13's own frames",
        ),
        (
            vec![
                Interpreter(0x030d_00f0),
                Interpreter(0x0308_0000),
                Interpreter(0x030d_05f0),
            ],
            "read from CPython 3.8 and 3.13's own frames",
        ),
        (
            vec![Interpreter(0x030d_00f0), refused()],
            "read from CPython 3.13's own frames, and of 1 process from perf maps",
        ),
        (vec![refused()], "from perf maps (it is a debug build)"),
        (vec![PerfMap], "from perf maps"),
    ] {
        let mut recording = recording(good());
        recording.summary.targets = sources
            .into_iter()
            .map(|source| TargetSummary {
                source,
                ..target(NameDiagnosis::Named)
            })
            .collect();
        let lines = report_lines(&recording, &svg());
        let told = format!("100 % of the Python frames seen have names, {told}");
        assert!(lines[3].ends_with(&told), "{lines:#?}");
    }
}

#[test]
fn functions_that_were_freed_are_told_of() {
    let mut quality = good();
    (quality.python_unnamed, quality.freed) = (1_000, 1_000);
    let lines = report_lines(&recording(quality), &svg());
    let told = "90.0 % of the Python frames seen have names, from perf maps; 10.0 % were freed before they were read";
    assert!(lines[3].ends_with(told), "{lines:#?}");
}

#[test]
fn every_way_to_lose_or_shorten_a_sample_has_its_words() {
    let quality = Quality {
        samples: 1_000,
        complete: 973,
        guessed: 3,
        ring_full: 20,
        not_kept: 4,
        too_many_stacks: [(Pid(77), 6)].into(),
        incomplete: [
            (EndClass::ReadFault, 5),
            (EndClass::NoRule, 15),
            (EndClass::NoFit, 7),
            (EndClass::NotUp, 0),
        ]
        .into(),
        ..Quality::default()
    };
    let mut recording = recording(quality);
    recording.summary.throttling = Some(Throttling {
        throttle_records: 12,
        max_sample_rate_before: 100_000,
        max_sample_rate_after: 50_000,
        effective_hz: Some(61.7),
        asked: Hz(99),
        spread: Spread::Even,
    });
    assert_eq!(
        report_lines(&recording, &[])[1..],
        [
            "97.3 % of the stacks are complete; 3 with guessed callers; 20 cut short \
             (15 in code without unwind information, 5 where stack memory could not be read); \
             7 with all Python and native frames but not their order",
            "lost 30 samples (2.9 %): 20 as the sample buffer was full: use a lower --frequency, or --realtime 1 \
             if the machine has more work than CPUs, \
             6 as process 77 has too many different stacks: record for a shorter time, \
             4 that were not unwound in time, or arrived damaged",
            "the kernel slowed sampling down (12 pauses, its limit went from 100000 to 50000 Hz): \
             about 62 Hz per busy CPU took place; use a lower --frequency",
        ]
    );
}

#[test]
fn missing_names_are_explained_case_by_case() {
    let too_old = NameDiagnosis::TooOld { version: (3, 8) };
    for (names, words) in [
        (
            NameDiagnosis::NotPython,
            &["no CPython was found", "native stacks"][..],
        ),
        (too_old, &["native stacks", "omit --python-from"]),
        (
            NameDiagnosis::NotActivated,
            &[
                "CPython 3.12 was started without",
                "`python -X perf`",
                "PYTHONPERFSUPPORT=1",
                "sys.activate_stack_trampoline(\"perf\")",
            ],
        ),
        (
            NameDiagnosis::ActivatedLate,
            &["switched on late", "called with one"],
        ),
        (NameDiagnosis::JitDump, &["perf_jit", "jitdump", "-X perf"]),
        (NameDiagnosis::MapMissing, &["perf-PID.map", "there is no"]),
        (
            NameDiagnosis::MapRefused,
            &["was refused", "it is a symbolic link"],
        ),
        (
            NameDiagnosis::MapUnreadable,
            &["of no use", "symbolic link"],
        ),
    ] {
        let mut recording = recording(good());
        recording.summary.targets = vec![target(names)];
        recording.summary.refusals = vec!["it is a symbolic link\x1b[2J".to_owned()];
        let lines = report_lines(&recording, &svg());
        let text = lines.join("\n");
        for word in words {
            assert!(text.contains(word), "{names:?}: no {word:?} in\n{text}");
        }
        assert!(lines.len() <= LINES_MAX, "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
}

/// `-X perf` would be no help there.
#[test]
fn cpython_before_3_12_gets_the_commands_that_help_there() {
    for (names, words) in [
        (
            NameDiagnosis::NotActivated,
            &[
                "CPython 3.11 has no trampolines of its own",
                "`pyprof-bpf record --python-from perf-map -- python3.11 app.py`",
                "`python3.11 -m pyprof_trampoline app.py`",
                "installed by `python3.11 -m pip`",
                "`import pyprof_trampoline; pyprof_trampoline.activate()`",
                "-I, -E and -S",
            ][..],
        ),
        (
            NameDiagnosis::ActivatedLate,
            &[
                "switched on late",
                "`pyprof-bpf record --python-from perf-map -- python3.11 app.py`",
            ],
        ),
    ] {
        let mut recording = recording(good());
        let mut old = target(names);
        old.python.version = Some((3, 11));
        recording.summary.targets = vec![old];
        let lines = report_lines(&recording, &svg());
        let text = lines.join("\n");
        for word in words {
            assert!(text.contains(word), "{names:?}: no {word:?} in\n{text}");
        }
        assert!(!text.contains("-X perf"), "{text}");
        assert!(
            lines.len() <= LINES_MAX && lines.iter().all(|line| line.len() <= 125),
            "{text}"
        );
    }
}

#[test]
fn the_report_never_exceeds_eight_lines() {
    let quality = Quality {
        complete: 1,
        ring_full: 1,
        python_unnamed: 1,
        ..good()
    };
    let mut recording = recording(quality);
    recording.summary.targets = vec![
        target(NameDiagnosis::NotActivated),
        TargetSummary {
            pid: Pid(4243),
            ..target(NameDiagnosis::NotActivated)
        },
    ];
    recording.summary.throttling = Some(Throttling {
        throttle_records: 1,
        max_sample_rate_before: 1,
        max_sample_rate_after: 1,
        effective_hz: None,
        asked: Hz(99),
        spread: Spread::Even,
    });
    let lines = report_lines(&recording, &svg());
    assert_eq!(lines.len(), LINES_MAX, "{lines:#?}");
    let advised = lines
        .iter()
        .any(|line| line.starts_with("app.py [4242] and another process: "));
    assert!(advised, "{lines:#?}");
}

#[test]
fn an_idle_target_is_told_from_a_failure() {
    let mut idle = recording(Quality::default());
    idle.summary.elapsed = Duration::from_secs(5);
    idle.summary.targets[0].cpu_time = Duration::ZERO;
    assert_eq!(
        nothing_to_draw(&idle),
        [
            "pid 4242 (python app.py) used 0.00 s of CPU in 5.0 s: this profiler samples running code; nothing to draw"
        ]
    );
    assert!(
        nothing_to_draw(&recording(Quality::default()))[0].contains("no sample of it was taken")
    );
    idle.summary.remarks = vec![Remark::ChildrenNotRecorded(vec![Pid(7), Pid(8)])];
    assert_eq!(
        nothing_to_draw(&idle)[1],
        "child processes that ran Python were not recorded (pid 7, 8): -s records them too"
    );
}

#[test]
fn a_target_that_exited_is_said_to_have_done_so() {
    let mut short = recording(good());
    short.summary.stop = StopReason::TargetExited;
    short.summary.elapsed = Duration::from_millis(1_500);
    let lines = report_lines(&short, &[]);
    assert!(lines[0].contains("target exited after 1.5 s"), "{lines:?}");
}

#[test]
fn a_hostile_command_line_does_not_reach_the_terminal() {
    let mut recording = recording(good());
    recording.summary.targets[0].command = "python \x1b]0;title\x07 a\nb".to_owned();
    let text = report_lines(&recording, &svg()).concat() + &title(&recording);
    assert!(!text.chars().any(char::is_control), "{text:?}");
}

#[test]
fn the_subtitle_fits_one_line() {
    assert_eq!(
        subtitle(&recording(good())),
        "2,970 samples at 99 Hz (cycles) in 30.0 s, 100 % of the stacks complete"
    );
}

/// A recording of so many processes, the later ones with more samples.
fn several(processes: u32) -> Window {
    let mut builder = Builder::new(false);
    let mut recording = recording(good());
    recording.summary.targets.clear();
    for number in 1..=processes {
        builder.add_with(&[python("f", "/m.py")], u64::from(number), |sample| {
            sample.pid = Pid(number);
        });
        recording.summary.targets.push(TargetSummary {
            pid: Pid(number),
            label: "gunicorn: worker\u{1b}[31m".to_owned(),
            ..target(NameDiagnosis::Named)
        });
    }
    recording.profile = builder.finish();
    recording
}

#[test]
fn of_several_processes_the_busiest_are_named() {
    let lines = report_lines(&several(5), &svg());
    assert!(lines[1].contains(" of 5 processes in 30.0 s"), "{lines:#?}");
    assert_eq!(
        lines[2],
        "most samples: gunicorn: worker\\x1b[31m [5] 33.3 %, gunicorn: worker\\x1b[31m [4] 26.7 %, \
         gunicorn: worker\\x1b[31m [3] 20.0 %; and 2 more"
    );
    assert!(lines.len() <= LINES_MAX);
    assert_eq!(
        title(&several(2)),
        "2 processes: gunicorn: worker\\x1b[31m [2] and others"
    );
    assert!(!report_lines(&several(3), &[])[1].contains("more"));
    assert!(
        !report_lines(&several(1), &[])
            .iter()
            .any(|line| line.contains("most samples"))
    );
    let mut exited = several(2);
    exited.summary.stop = StopReason::TargetExited;
    assert!(report_lines(&exited, &[])[0].contains("until the target exited"));
    exited.summary.roots = 2;
    assert!(report_lines(&exited, &[])[0].contains("until all of them had exited"));
}

#[test]
fn a_shell_among_pythons_needs_no_advice() {
    let mut recording = several(2);
    recording.summary.targets[0].names = NameDiagnosis::NotPython;
    assert_eq!(name_advice(&recording.summary), [""; 0]);
    recording.summary.targets[1].names = NameDiagnosis::NotPython;
    let advice = name_advice(&recording.summary).concat();
    assert!(
        advice.contains("no CPython was found") && advice.contains("and another process: "),
        "{advice}"
    );
}

#[test]
fn a_process_that_was_hardly_met_needs_no_advice() {
    let mut recording = several(2);
    recording.summary.targets[0].names = NameDiagnosis::NotActivated;
    for (samples, advised) in [(10, false), (1_000, true)] {
        recording.summary.targets[0].samples = samples;
        let advice = name_advice(&recording.summary);
        assert_eq!(!advice.is_empty(), advised, "{advice:?}");
    }
    recording.summary.targets.truncate(1);
    recording.summary.targets[0].samples = 10;
    assert!(!name_advice(&recording.summary).is_empty());
}

#[test]
fn processes_are_counted_once_and_those_without_samples_apart() {
    let mut recording = several(2);
    recording.summary.targets.push(TargetSummary {
        pid: Pid(2),
        ..target(NameDiagnosis::NotPython)
    });
    recording.summary.unsampled = Unsampled {
        processes: 1_500,
        cpu_time: Duration::from_secs(40),
        ..Unsampled::default()
    };
    let lines = report_lines(&recording, &[]);
    assert!(
        lines[0].contains(" of 2 processes and 1,500 without samples in "),
        "{lines:?}"
    );
    // Three times 29.8 s and the others.
    assert!(lines[0].ends_with("CPU used: 129.40 s"), "{lines:?}");
}

#[test]
fn names_that_are_missing_have_their_reason() {
    let text = |quality: Quality| notes(&recording(quality)).join("\n");
    let unread = Quality {
        python_unnamed: 1_000,
        unread: 1_000,
        ..good()
    };
    let said = text(unread.clone());
    assert!(said.contains("10.0 % were not read in time"), "{said}");
    assert!(!said.contains("ended"), "{said}");
    let past_limit = Quality {
        unread: 0,
        past_limit: 1_000,
        ..unread.clone()
    };
    let said = text(past_limit);
    assert!(
        said.contains("90.0 % of the Python frames seen have names")
            && said.contains("10.0 % are shown as [too many different functions]"),
        "{said}"
    );
    let ended = Quality {
        unread: 0,
        ended: 1_000,
        ..unread
    };
    let said = text(ended);
    assert!(
        said.contains("10.0 % were not read before their process ended"),
        "{said}"
    );
    let foreign = Quality {
        with_foreign_jit: 297,
        ..good()
    };
    let said = text(foreign);
    assert!(
        said.contains("100 % of the Python frames seen have names")
            && said.contains("10.0 % of the samples have code of another compiler"),
        "{said}"
    );
}

#[test]
fn a_recording_without_samples_says_what_is_known_of_it() {
    let said = |quality: Quality, cpu_time| {
        let mut empty = recording(quality);
        empty.summary.targets[0].cpu_time = cpu_time;
        nothing_to_draw(&empty).concat()
    };
    let lost = Quality {
        ring_full: 7,
        ..Quality::default()
    };
    let busy = Duration::from_secs(5);
    assert!(said(lost, busy).contains("all 7 samples were lost"));
    assert!(said(Quality::default(), busy).contains("no sample of it was taken"));
    let idle = said(Quality::default(), Duration::ZERO);
    assert!(idle.contains("samples running code"), "{idle}");
}
