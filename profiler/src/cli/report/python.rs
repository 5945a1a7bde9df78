//! Python functions: how many have names, where these come from, and what to do where there are none.

use std::{collections::BTreeSet, fmt::Write as _};

use super::{
    super::{
        names::NameCase,
        text::{percent, visible},
    },
    who::{counted_processes, processes},
};
use crate::{
    profile::Quality,
    session::{PythonSource, Summary, TargetSummary},
    symbols::NameDiagnosis,
};

/// Advice is given where it concerns more than one of this number of samples.
const ADVICE_SHARE: u64 = 20;

pub(super) fn python_share(summary: &Summary, quality: &Quality) -> Option<String> {
    let frames = quality.python_named + quality.python_unnamed;
    if quality.python_named == 0
        && quality.freed + quality.unread + quality.ended + quality.past_limit == 0
    {
        // The advice says it all.
        return None;
    }
    let mut line = format!(
        "Python code in {} of the samples; {} of the Python frames seen have names",
        percent(quality.with_python, quality.samples),
        percent(quality.python_named, frames)
    );
    if let Some(source) = source(summary) {
        let _ = write!(line, ", {source}");
    }
    if quality.freed > 0 {
        // Writing to a `String` cannot fail.
        let _ = write!(
            line,
            "; {} were freed before they were read",
            percent(quality.freed, frames)
        );
    }
    if quality.unread > 0 {
        let _ = write!(
            line,
            "; {} were not read in time",
            percent(quality.unread, frames)
        );
    }
    if quality.ended > 0 {
        let _ = write!(
            line,
            "; {} were not read before their process ended",
            percent(quality.ended, frames)
        );
    }
    if quality.past_limit > 0 {
        let _ = write!(
            line,
            "; {} are shown as [too many different functions], as their process has more or longer names than are kept",
            percent(quality.past_limit, frames)
        );
    }
    if quality.with_foreign_jit > 0 {
        let _ = write!(
            line,
            "; {} of the samples have code of another compiler, without names",
            percent(quality.with_foreign_jit, quality.samples)
        );
    }
    Some(line)
}

/// Where the names come from, by the targets that have some.
fn source(summary: &Summary) -> Option<String> {
    let named = summary
        .targets
        .iter()
        .filter(|target| target.samples > 0 && target.names == NameDiagnosis::Named);
    let not_yet = "its interpreter had no frames when it was looked at".to_owned();
    let mut versions = BTreeSet::new();
    let (mut from_maps, mut reason) = (0, None);
    for target in named {
        match &target.source {
            PythonSource::Interpreter(version) => _ = versions.insert(version >> 16),
            PythonSource::Refused(obstacle) => {
                from_maps += 1;
                reason = Some(&obstacle.reason);
            }
            PythonSource::PerfMap => from_maps += 1,
            PythonSource::NotYet => {
                from_maps += 1;
                reason = reason.or(Some(&not_yet));
            }
        }
    }
    let versions: Vec<String> = versions
        .iter()
        .map(|version| format!("{}.{}", version >> 8, version & 0xff))
        .collect();
    let versions = versions.join(" and ");
    let why = reason.map(|why| format!(" ({})", visible(why)));
    Some(match (versions.is_empty(), from_maps) {
        (true, 0) => return None,
        (true, _) => format!("from perf maps{}", why.unwrap_or_default()),
        (false, 0) => format!("read from CPython {versions}'s own frames"),
        (false, maps) => format!(
            "read from CPython {versions}'s own frames, and of {} from perf maps",
            counted_processes(maps)
        ),
    })
}

/// The advice for the first target that needs some, and for how many others it holds. That a program is no Python is no
/// news where another one is, nor is a Python that was hardly met: each has its first moments without names.
pub(super) fn name_advice(summary: &Summary) -> Vec<String> {
    let is_python = |target: &&TargetSummary| target.names != NameDiagnosis::NotPython;
    let some_python = summary.targets.iter().any(|target| is_python(&target));
    let in_need: Vec<_> = summary
        .targets
        .iter()
        .filter(|target| !some_python || is_python(target))
        .filter_map(|target| {
            let case = NameCase::recorded(target, &summary.refusals, summary.follows);
            Some((target, case.advice()?.into_lines()))
        })
        .collect();
    let all: u64 = summary.targets.iter().map(|target| target.samples).sum();
    let theirs: u64 = in_need.iter().map(|(target, _)| target.samples).sum();
    let some_named = summary
        .targets
        .iter()
        .any(|target| target.names == NameDiagnosis::Named);
    if some_named && theirs * ADVICE_SHARE < all {
        return Vec::new();
    }
    let others = in_need.len().saturating_sub(1);
    let Some((target, mut lines)) = in_need.into_iter().next() else {
        return Vec::new();
    };
    if processes(summary) > 1
        && let Some(first) = lines.first_mut()
    {
        let more = match others {
            0 => String::new(),
            1 => " and another process".to_owned(),
            more => format!(" and {more} more processes"),
        };
        let label = visible(&target.label);
        *first = format!("{label} [{}]{more}: {first}", target.pid);
    }
    lines
}
