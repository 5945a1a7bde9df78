//! How good the samples are: whole stacks, losses, the rate that was reached.

use crate::{
    profile::{EndClass, Quality},
    session::Throttling,
    symbols::CrossCheck,
};

use super::super::text::{counted, grouped, percent, visible};

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
        EndClass::NoUserRegisters => "without user registers",
        EndClass::NativePart => "in native code only: their Python frames are whole",
        EndClass::PythonPart => "where the interpreter's frames could not be read",
        EndClass::NoFit => "where the order of Python and native frames is not known",
    }
}

pub(super) fn lost(quality: &Quality) -> Option<String> {
    if quality.lost() == 0 {
        return None;
    }
    let causes: Vec<String> = [
        (
            quality.ring_full,
            "as the sample buffer was full: use a lower --frequency",
        ),
        (quality.not_kept, "could not be kept"),
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

pub(super) fn throttled(throttling: &Throttling) -> String {
    let Throttling {
        throttle_records,
        max_sample_rate_before: before,
        max_sample_rate_after: after,
        effective_hz,
        is_even,
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
            "{}, less than asked{}",
            rate.unwrap_or_else(|| "fewer samples took place".to_owned()),
            if *is_even {
                ", in all processes alike: so it is where the machine or its host is busy; shares are right all the same"
            } else {
                ""
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
pub(super) fn cross_check(check: &CrossCheck) -> Vec<String> {
    let CrossCheck {
        compared,
        agreed,
        at_a_call,
        nameless,
        ref disagreements,
    } = *check;
    if compared == 0 {
        return vec![
            "cross-check: no sample has both interpreter frames and trampolines; start the target with python -X perf"
                .to_owned(),
        ];
    }
    let mut lines = vec![format!(
        "cross-check: interpreter frames and perf maps agree in {} of {} that have both; {} more at a call or return{}",
        percent(agreed, compared),
        counted(compared, "sample"),
        percent(at_a_call, compared),
        if nameless > 0 {
            format!("; in {} a name is missing", percent(nameless, compared))
        } else {
            String::new()
        }
    )];
    lines.extend(
        disagreements
            .iter()
            .map(|text| format!("  {}", visible(text))),
    );
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
