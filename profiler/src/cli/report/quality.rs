//! How good the samples are: whole stacks, losses, the rate that was reached.

use std::fmt::Write as _;

use super::super::{
    names::NameCase,
    text::{counted, grouped, percent, visible},
};
use crate::{
    profile::{EndClass, Quality},
    session::{PythonSource, Spread, TargetSummary, Throttling},
    symbols::CrossCheck,
};

pub(super) fn stacks(quality: &Quality) -> Option<String> {
    if quality.samples == 0 {
        return None;
    }
    let mut parts = vec![format!(
        "{} of the stacks are complete",
        percent(quality.complete, quality.samples)
    )];
    if quality.guessed > 0 {
        parts.push(format!("{} with guessed callers", grouped(quality.guessed)));
    }
    let mut ends: Vec<_> = quality
        .incomplete
        .iter()
        .filter(|(end, count)| **count > 0 && **end != EndClass::NoFit)
        .collect();
    ends.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    let cut: u64 = ends.iter().map(|(_, count)| **count).sum();
    if cut > 0 {
        let causes: Vec<String> = ends
            .iter()
            .map(|(end, count)| format!("{} {}", grouped(**count), why_cut(**end)))
            .collect();
        parts.push(format!(
            "{} cut short ({})",
            grouped(cut),
            causes.join(", ")
        ));
    }
    if let Some(count) = quality.incomplete.get(&EndClass::NoFit) {
        parts.push(format!(
            "{} with all Python and native frames but not their order",
            grouped(*count)
        ));
    }
    Some(parts.join("; "))
}

/// Why stacks are cut short, to follow their number. No commas: they part one reason from the next.
const fn why_cut(end: EndClass) -> &'static str {
    match end {
        EndClass::Complete => "where nothing is missing",
        EndClass::NoRule => "in code without unwind information",
        EndClass::UnknownJit => "in code of an unknown JIT compiler",
        EndClass::NoMapping => "in code of no known mapping",
        EndClass::ReadFault => "where stack memory could not be read",
        EndClass::NotUp => "where the stack did not lead upwards",
        EndClass::DepthLimit => "with more frames than a sample can hold",
        EndClass::Unsupported => "where unwinding needs a register that is not known",
        EndClass::NoUserRegisters => "without usable user registers",
        EndClass::NativePart => "in native code only: their Python frames are whole",
        EndClass::PythonPart => "where the interpreter's frames could not be read",
        EndClass::NoFit => "where the order of Python and native frames is not known",
    }
}

pub(super) fn lost(quality: &Quality) -> Option<String> {
    if quality.lost() == 0 {
        return None;
    }
    let stacks = quality.too_many_stacks.values().sum();
    let causes: Vec<String> = [
        (
            quality.ring_full,
            "as the sample buffer was full: use a lower --frequency, or --realtime 1 if the machine has \
             more work than CPUs".to_owned(),
        ),
        (stacks, too_many_stacks(quality)),
        (
            quality.not_kept,
            "that were not unwound in time, or arrived damaged".to_owned(),
        ),
    ]
    .into_iter()
    .filter(|(count, _)| *count > 0)
    .map(|(count, cause)| format!("{} {cause}", grouped(count)))
    .collect();
    let all = quality.lost() + quality.samples;
    Some(format!(
        "lost {} ({}): {}",
        counted(quality.lost(), "sample"),
        percent(quality.lost(), all),
        causes.join(", ")
    ))
}

/// Which processes have more stacks than are kept.
fn too_many_stacks(quality: &Quality) -> String {
    let processes = &quality.too_many_stacks;
    let most = processes.iter().max_by_key(|(_, samples)| **samples);
    let most = most.map_or(0, |(pid, _)| pid.0);
    let whose = match processes.len() {
        1 => format!("process {most} has"),
        others => format!("{others} processes, {most} more than the others, have"),
    };
    format!("as {whose} too many different stacks: record for a shorter time")
}

pub(super) fn throttled(throttling: &Throttling) -> String {
    let Throttling {
        throttle_records,
        max_sample_rate_before: before,
        max_sample_rate_after: after,
        asked,
        effective_hz,
        spread,
    } = throttling;
    let mut causes = Vec::new();
    if *throttle_records > 0 {
        causes.push(counted(*throttle_records, "pause"));
    }
    if after < before {
        causes.push(format!("its limit went from {before} to {after} Hz"));
    }
    let rate = effective_hz.map(|hz| format!("about {hz:.0} Hz per busy CPU took place"));
    match (causes.as_slice(), rate) {
        ([], rate) => format!(
            "{}, less than the {} Hz asked for{}",
            rate.unwrap_or_else(|| "fewer samples took place".to_owned()),
            asked.0,
            match spread {
                _ if throttling.is_rate_high() =>
                    ": the rate may be higher than this machine can do; use a lower --frequency",
                Spread::Uneven => "",
                Spread::OneProcess =>
                    ": so it is where the machine or its host is busy; shares are right all the same",
                Spread::Even =>
                    ", in all processes alike: so it is where the machine or its host is busy; shares are right all the same",
            }
        ),
        (causes, None) => format!(
            "the kernel slowed sampling down ({}): use a lower --frequency",
            causes.join(", ")
        ),
        (causes, Some(rate)) => format!(
            "the kernel slowed sampling down ({}): {rate}; use a lower --frequency",
            causes.join(", ")
        ),
    }
}

/// How both ways to Python functions compared.
pub(super) fn cross_check(check: &CrossCheck, targets: &[TargetSummary]) -> Vec<String> {
    let CrossCheck {
        compared,
        agreed,
        at_a_call,
        nameless,
        outer_missing,
        ref disagreements,
    } = *check;
    if compared == 0 {
        return nothing_to_compare(targets);
    }
    let mut line = format!(
        "cross-check: interpreter frames and perf maps agree in {} of {} that have both; {} more at a call or return",
        percent(agreed, compared),
        counted(compared, "sample"),
        percent(at_a_call, compared),
    );
    if nameless > 0 {
        // Writing to a `String` cannot fail.
        let _ = write!(
            line,
            "; in {} a name is missing",
            percent(nameless, compared)
        );
    }
    if outer_missing > 0 {
        // Where all had them from their start, this is not the reason.
        let reason = if targets.iter().any(|it| !it.python.trampolines_asked) {
            ": trampolines were switched on after these had begun"
        } else {
            ""
        };
        let _ = write!(
            line,
            "; in {} only outer functions have no trampoline{reason}",
            percent(outer_missing, compared)
        );
    }
    let mut lines = vec![line];
    lines.extend(
        disagreements
            .iter()
            .map(|text| format!("  {}", visible(text))),
    );
    lines
}

/// Why no sample could be compared, and what to do.
fn nothing_to_compare(targets: &[TargetSummary]) -> Vec<String> {
    let has_frames = |it: &&TargetSummary| matches!(it.source, PythonSource::Interpreter(_));
    let Some(target) = targets.iter().find(has_frames) else {
        return vec!["cross-check: no sample has interpreter frames".to_owned()];
    };
    let finding = "cross-check: no sample has both interpreter frames and trampolines".to_owned();
    let steps = NameCase::recorded(target, &[], false).cross_check_steps();
    let steps = steps.into_iter().map(|step| format!("  {step}"));
    std::iter::once(finding).chain(steps).collect()
}

#[cfg(test)]
#[path = "quality_tests.rs"]
mod tests;
