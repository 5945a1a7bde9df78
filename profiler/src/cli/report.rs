//! What is said at the end of a recording. The lines are made by pure functions; one function prints.

mod limits;
mod python;
mod quality;
mod remark;
mod who;

use std::{
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use self::{
    python::{name_advice, python_share},
    quality::{cross_check, lost, stacks, throttled},
    remark::{is_about_targets, remark},
    who::{cpu_time, how_long, named, rate, watched_processes, who},
};
use super::{
    missing_names,
    settings::Destination,
    text::{counted, cpu_seconds, percent, seconds, visible},
};
use crate::{
    output::Format,
    session::{BpfStats, Remark, Summary, Window},
};

/// Processes that are named in the report.
const BUSIEST: usize = 3;

/// More lines than these are not read.
pub(crate) const LINES_MAX: usize = 8;

/// Prints lines to standard error, with whatever is in them visible. What cannot be printed is given up: there is nobody
/// to tell.
pub(crate) fn print(lines: &[String]) {
    let mut stderr = io::stderr().lock();
    for line in lines.iter().flat_map(|line| line.lines()) {
        let _ = writeln!(stderr, "{}", visible(line));
    }
}

/// The report on a recording whose result is in `files`: at most eight lines.
pub(crate) fn report_lines(recording: &Window, files: &[(Destination, Format)]) -> Vec<String> {
    let summary = &recording.summary;
    let mut lines = Vec::with_capacity(LINES_MAX);
    lines.extend(wrote(files));
    lines.push(format!(
        "{} at {} of {} {}; CPU used: {}",
        counted(recording.profile.quality.samples, "sample"),
        rate(summary),
        who(summary),
        how_long(summary),
        cpu_seconds(cpu_time(summary))
    ));
    lines.extend(busiest(recording));
    lines.extend(notes(recording));
    // The most important ones come first.
    lines.truncate(LINES_MAX);
    lines
}

/// For `--bpf-stats`: one line that a script can read; `first_sample_ns` is on `CLOCK_MONOTONIC`.
pub(crate) fn bpf_line(bpf: &BpfStats) -> String {
    let BpfStats {
        runs,
        run_time_ns,
        frames,
        python_frames,
        samples,
        stack_copies,
        verified_instructions,
        first_sample,
    } = *bpf;
    let verified = verified_instructions.unwrap_or(0);
    let first_sample_ns = first_sample.map_or(0, |ktime| ktime.0);
    format!(
        "bpf: runs={runs} run_time_ns={run_time_ns} frames={frames} python_frames={python_frames} \
         samples={samples} stack_copies={stack_copies} first_sample_ns={first_sample_ns} \
         verified_instructions={verified}"
    )
}

/// The targets in one line, for the heading of a picture.
pub(crate) fn title(recording: &Window) -> String {
    match recording.profile.samples_by_process().as_slice() {
        [(first, _), _, ..] => format!(
            "{}: {} and others",
            who(&recording.summary),
            named(&recording.summary, *first)
        ),
        _ => who(&recording.summary),
    }
}

/// Of several processes, those with the most samples.
fn busiest(recording: &Window) -> Option<String> {
    let samples = recording.profile.samples_by_process();
    if samples.len() < 2 {
        return None;
    }
    let all: u64 = samples.iter().map(|(_, count)| count).sum();
    let shown = samples.iter().take(BUSIEST).map(|(pid, count)| {
        let name = named(&recording.summary, *pid);
        format!("{name} {}", percent(*count, all))
    });
    let mut line = format!("most samples: {}", shown.collect::<Vec<_>>().join(", "));
    if let Some(more) = samples.len().checked_sub(BUSIEST).filter(|more| *more > 0) {
        // Writing to a `String` cannot fail.
        let _ = write!(line, "; and {more} more");
    }
    Some(line)
}

/// The recording in one line, below that heading.
pub(crate) fn subtitle(recording: &Window) -> String {
    let (summary, quality) = (&recording.summary, &recording.profile.quality);
    format!(
        "{} at {} in {}, {} of the stacks complete",
        counted(quality.samples, "sample"),
        rate(summary),
        seconds(summary.elapsed),
        percent(quality.complete, quality.samples)
    )
}

/// What a reader of the picture must know about its quality.
pub(crate) fn notes(recording: &Window) -> Vec<String> {
    let (summary, quality) = (&recording.summary, &recording.profile.quality);
    let mut lines = Vec::new();
    lines.extend(stacks(quality));
    lines.extend(lost(quality));
    lines.extend(summary.throttling.as_ref().map(throttled));
    let remarks = summary.remarks.iter();
    let (on_targets, others): (Vec<_>, Vec<_>) = remarks.partition(|it| is_about_targets(it));
    // What was not recorded at all comes before what has no names.
    lines.extend(on_targets.into_iter().map(remark));
    lines.extend(python_share(summary, quality));
    lines.extend(missing_names::native(quality));
    let check = summary.cross_check.iter();
    lines.extend(check.flat_map(|it| cross_check(it, &summary.targets)));
    lines.extend(name_advice(summary));
    lines.extend(others.into_iter().map(remark));
    lines
}

/// The lines for a recording without samples.
pub(crate) fn nothing_to_draw(recording: &Window) -> Vec<String> {
    let summary = &recording.summary;
    let lost = recording.profile.quality.lost();
    let used = cpu_seconds(cpu_time(summary));
    let watched = format!("{} used {used} of CPU {}", who(summary), how_long(summary));
    let first = if lost > 0 {
        format!(
            "{watched}, but all {} were lost; nothing to draw",
            counted(lost, "sample")
        )
    } else if cpu_time(summary) > two_periods(summary) {
        format!(
            "{watched}, but no sample of it was taken ({}); nothing to draw",
            rate(summary)
        )
    } else if let Some(held) = held(summary) {
        // The remark says by what, and what to do.
        let none_can = match held {
            1 => "it cannot",
            2 => "neither of them can",
            _ => "none of them can",
        };
        format!("{watched}: {none_can} run; nothing to draw")
    } else {
        format!("{watched}: this profiler samples running code; nothing to draw")
    };
    let mut lines = vec![first];
    lines.extend(summary.remarks.iter().map(remark));
    lines
}

/// The number of processes, where none of them can run.
fn held(summary: &Summary) -> Option<u64> {
    let held = summary.remarks.iter().find_map(|remark| match remark {
        Remark::Halted { others, .. } => Some(others + 1),
        _ => None,
    })?;
    (held >= watched_processes(summary).max(summary.roots as u64)).then_some(held)
}

/// CPU time within which no sample need be taken.
fn two_periods(summary: &Summary) -> Duration {
    Duration::from_secs(2) / summary.frequency.0.max(1)
}

fn wrote(files: &[(Destination, Format)]) -> Option<String> {
    match files {
        [] => None,
        [(svg @ Destination::File(_), Format::Svg)] => {
            Some(format!("wrote {svg} (open it in a browser)"))
        }
        files => {
            let names: Vec<String> = files.iter().map(|(file, _)| file.to_string()).collect();
            Some(format!("wrote {}", names.join(", ")))
        }
    }
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
