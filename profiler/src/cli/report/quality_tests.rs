//! Stacks, the rate, and the comparison of both ways to Python functions, in words.

use super::*;
use crate::{model::Hz, symbols::NameDiagnosis};

#[test]
fn every_end_of_a_stack_has_words_of_its_own() {
    let ends = [
        EndClass::NoRule,
        EndClass::UnknownJit,
        EndClass::NoMapping,
        EndClass::ReadFault,
        EndClass::NotUp,
        EndClass::DepthLimit,
        EndClass::Unsupported,
        EndClass::NoUserRegisters,
        EndClass::NativePart,
        EndClass::PythonPart,
    ];
    let quality = Quality {
        samples: 100,
        complete: 100 - ends.len() as u64,
        incomplete: ends.iter().map(|end| (*end, 1)).collect(),
        ..Quality::default()
    };
    let line = stacks(&quality).expect("there are samples");
    let (_, causes) = line.split_once(" cut short (").expect("some are cut short");
    let causes: std::collections::BTreeSet<&str> =
        causes.trim_end_matches(')').split(", ").collect();
    assert_eq!(causes.len(), ends.len(), "{causes:?}");
}

/// A process whose interpreter's frames were read.
fn target(version: (u8, u8), trampolines_asked: bool) -> TargetSummary {
    let mut target = super::super::tests::target(NameDiagnosis::Named);
    target.python.version = Some(version);
    target.python.trampolines_asked = trampolines_asked;
    target.source = PythonSource::Interpreter(0x030c_01f0);
    target
}

#[test]
fn both_ways_to_python_functions_are_compared() {
    let check = CrossCheck {
        compared: 2_000,
        agreed: 1_990,
        at_a_call: 8,
        nameless: 1,
        outer_missing: 0,
        disagreements: vec!["after 1 equal frames (a): interpreter b; perf map c\x1b".to_owned()],
    };
    let text = cross_check(&check, &[target((3, 12), true)]).join("\n");
    let words = "agree in 99.5 % of 2,000 samples that have both; 0.4 % more at a call or return; in 0.1 % a name is missing";
    assert!(
        text.contains(words) && text.contains("interpreter b; perf map c"),
        "{text}"
    );
    assert!(!text.contains('\x1b'), "{text}");
    let check = CrossCheck {
        compared: 100,
        outer_missing: 100,
        ..CrossCheck::default()
    };
    for (asked, late) in [(false, true), (true, false)] {
        let text = cross_check(&check, &[target((3, 12), asked)]).join("\n");
        let words = "in 100 % only outer functions have no trampoline";
        assert!(text.contains(words), "{text}");
        let words = "trampolines were switched on after these had begun";
        assert_eq!(text.contains(words), late, "{text}");
    }
}

#[test]
fn a_cross_check_without_trampolines_says_how_that_python_gets_some() {
    for (version, words, wrong) in [
        ((3, 12), "-X perf", "pyprof_trampoline"),
        (
            (3, 11),
            "record --cross-check -- python3.11 app.py",
            "-X perf",
        ),
        ((3, 11), "python3.11 -m pyprof_trampoline", "-X perf"),
        ((3, 8), "CPython 3.8 cannot have trampolines", "-X perf"),
    ] {
        let mut target = target(version, false);
        let check = CrossCheck::default();
        let text = cross_check(&check, std::slice::from_ref(&target)).join("\n");
        assert!(text.contains("no sample has both"), "{text}");
        assert!(text.contains(words), "{text}");
        assert!(!text.contains(wrong), "{text}");
        // Without interpreter frames, trampolines are not what is missing.
        target.source = PythonSource::NotYet;
        let text = cross_check(&check, &[target]).join("\n");
        assert!(text.contains("no sample has interpreter frames"), "{text}");
        assert!(!text.contains(words), "{text}");
    }
}

#[test]
fn the_cause_of_too_few_samples_is_what_it_can_be() {
    // asked, limit, spread, whether all processes lack samples alike, whether shares are right, whether the rate is named
    for (asked, limit, spread, alike, right, high) in [
        (99, 100_000, Spread::Even, true, true, false),
        (99, 100_000, Spread::OneProcess, false, true, false),
        (99, 100_000, Spread::Uneven, false, false, false),
        (10_000, 100_000, Spread::OneProcess, false, true, false),
        (20_000, 100_000, Spread::OneProcess, false, false, true),
        (100_000, 100_000, Spread::Even, false, false, true),
        (900, 1_000, Spread::Even, false, false, true),
        (100_000, 100_000, Spread::Uneven, false, false, true),
    ] {
        let text = throttled(&Throttling {
            throttle_records: 0,
            max_sample_rate_before: limit,
            max_sample_rate_after: limit,
            effective_hz: Some(60.2),
            asked: Hz(asked),
            spread,
        });
        let words =
            format!("about 60 Hz per busy CPU took place, less than the {asked} Hz asked for");
        assert!(text.starts_with(&words), "{text}");
        assert!(!text.contains("kernel"), "{text}");
        assert_eq!(text.contains("in all processes alike"), alike, "{text}");
        assert_eq!(text.contains("shares are right"), right, "{text}");
        assert_eq!(text.contains("use a lower --frequency"), high, "{text}");
    }
}
