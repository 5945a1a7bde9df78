//! What is said at the end of a recording. The lines are made by pure functions; one function prints.

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    io::{self, Write as _},
    time::Duration,
};

use super::{
    names::{advice, short_command},
    settings::Destination,
    text::{clip, counted, cpu_seconds, grouped, percent, seconds, visible},
};
use crate::{
    model::Pid,
    output::Format,
    profile::{EndClass, Quality},
    session::{
        BpfStats, PythonSource, Recording, Remark, SampledEvent, StopReason, Summary,
        TargetSummary, Throttling,
    },
    symbols::{CrossCheck, NameDiagnosis},
};

/// Processes that are named in the report.
const BUSIEST: usize = 3;

/// Advice is given when it is for more than one in so many samples.
const ADVICE_SHARE: u64 = 20;

/// More lines than these are not read.
const LINES_MAX: usize = 8;

/// Prints lines to standard error. What cannot be printed is given up: there is nobody to tell.
pub(crate) fn print(lines: &[String]) {
    let mut stderr = io::stderr().lock();
    for line in lines {
        let _ = writeln!(stderr, "{line}");
    }
}

/// The report on a recording whose result is in `files`: at most eight lines.
pub(crate) fn report_lines(recording: &Recording, files: &[(Destination, Format)]) -> Vec<String> {
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
pub(crate) fn title(recording: &Recording) -> String {
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
fn busiest(recording: &Recording) -> Option<String> {
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

/// `app.py [4242]`.
fn named(summary: &Summary, pid: Pid) -> String {
    let target = summary.targets.iter().find(|target| target.pid == pid);
    let label = target.map_or_else(|| "process".to_owned(), |target| visible(&target.label));
    format!("{label} [{pid}]")
}

/// The recording in one line, below that heading.
pub(crate) fn subtitle(recording: &Recording) -> String {
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
pub(crate) fn notes(recording: &Recording) -> Vec<String> {
    let (summary, quality) = (&recording.summary, &recording.profile.quality);
    let mut lines = Vec::new();
    lines.extend(stacks(quality));
    lines.extend(lost(quality));
    lines.extend(summary.throttling.as_ref().map(throttled));
    lines.extend(python_share(summary, quality));
    lines.extend(summary.cross_check.iter().flat_map(cross_check));
    lines.extend(name_advice(summary));
    lines.extend(summary.remarks.iter().map(remark));
    lines
}

/// The lines for a recording without samples.
pub(crate) fn nothing_to_draw(recording: &Recording) -> Vec<String> {
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
            "{watched}, but the kernel took no samples of it ({}); nothing to draw",
            rate(summary)
        )
    } else {
        format!("{watched}: this profiler samples running code; nothing to draw")
    };
    let mut lines = vec![first];
    lines.extend(summary.remarks.iter().map(remark));
    lines
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

fn stacks(quality: &Quality) -> Option<String> {
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
        .filter(|(_, count)| **count > 0)
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
    Some(parts.join("; "))
}

/// Why stacks are cut short, to follow their number. No commas: they part one reason from the next.
const fn why_cut(end: EndClass) -> &'static str {
    match end {
        EndClass::Complete => "where nothing is missing",
        EndClass::NoRule => "in code without unwind information",
        EndClass::UnknownJit => "in code of an unknown JIT compiler",
        EndClass::NoMapping => "in code that was not known yet",
        EndClass::ReadFault => "where stack memory could not be read",
        EndClass::NotUp => "where the stack did not lead upwards",
        EndClass::DepthLimit => "with more frames than a sample can hold",
        EndClass::Unsupported => "where unwinding needs a register that is not known",
        EndClass::NoUserRegisters => "without user registers",
        EndClass::NativePart => "in native code only: their Python frames are whole",
        EndClass::PythonPart => "in the interpreter's frames, which could not be read",
        EndClass::NoFit => "in native code that did not fit the Python frames",
    }
}

fn lost(quality: &Quality) -> Option<String> {
    if quality.lost() == 0 {
        return None;
    }
    let causes: Vec<String> = [
        (
            quality.ring_full,
            "ring buffer full: this machine was too busy",
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

fn throttled(throttling: &Throttling) -> String {
    let Throttling {
        throttle_records,
        max_sample_rate_before: before,
        max_sample_rate_after: after,
        effective_hz,
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
            "{}, less than asked: the machine or its host was too busy; shares are right all the same",
            rate.unwrap_or_else(|| "fewer samples took place".to_owned())
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

fn remark(remark: &Remark) -> String {
    match remark {
        Remark::MappingsLeftOut(count) => format!(
            "{} not followed: too many in one process; stacks through them break off",
            counted(*count, "mapping")
        ),
        Remark::KernelNamesHidden => {
            "kernel functions have no names: that takes CAP_SYSLOG, or kernel.kptr_restrict = 0 and \
             kernel.perf_event_paranoid = 1"
                .to_owned()
        }
        Remark::SharedPerfMap { pid, rival, frames } => format!(
            "{} have two names each: pid {rival} writes the same /tmp/perf-PID.map as pid {pid}, whose pid it has in its \
             own container; give each a /tmp of its own",
            counted(*frames, "frame")
        ),
        Remark::NotPermitted(count) => format!(
            "{} could not be looked into, and {} not recorded: that takes sudo or CAP_SYS_PTRACE",
            if *count == 1 { "1 process".to_owned() } else { format!("{} processes", grouped(*count)) },
            if *count == 1 { "was" } else { "were" }
        ),
        Remark::KernelStacksFailed(count) => {
            format!("the kernel's part of {} could not be read", counted(*count, "stack"))
        }
        Remark::NoRoomForRows(count) => {
            format!("stacks through {} break off: too large, or too many", counted(*count, "file"))
        }
        Remark::FilesOutOfReach(names) => {
            let more = if names.len() > 1 { ", …" } else { "" };
            format!(
                "stacks break off in {} ({}{more}): deleted since, or out of reach; reading on takes CAP_CHECKPOINT_RESTORE",
                counted(names.len() as u64, "file"),
                names.first().map(|name| clip(&visible(name), 40)).unwrap_or_default()
            )
        }
        Remark::CannotFollow => {
            "child processes were not followed: this kernel has no BTF (CONFIG_DEBUG_INFO_BTF), or \
             forbids tracepoints"
                .to_owned()
        }
        Remark::TooManyProcesses(count) => {
            format!(
                "child processes beyond 4,096 at a time were not recorded ({})",
                grouped(*count)
            )
        }
        Remark::EventsLost(count) => {
            format!(
                "{} of processes were lost, the sample buffer being full: some may lack names",
                counted(*count, "event")
            )
        }
        Remark::ChildrenNotRecorded(pids) => {
            let shown: Vec<String> = pids.iter().take(3).map(ToString::to_string).collect();
            let more = if pids.len() > 3 { ", …" } else { "" };
            let what = if pids.len() == 1 {
                "a child process that ran Python was"
            } else {
                "child processes that ran Python were"
            };
            format!("{what} not recorded (pid {}{more}): -s records them too", shown.join(", "))
        }
    }
}

fn python_share(summary: &Summary, quality: &Quality) -> Option<String> {
    let frames = quality.python_named + quality.python_unnamed;
    if quality.python_named == 0 && quality.freed + quality.unread == 0 {
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
            "; {} could not be read before the process ended: this machine was too busy",
            percent(quality.unread, frames)
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
            PythonSource::Refused(why) => {
                from_maps += 1;
                reason = Some(why);
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

/// How both ways to Python functions compared.
fn cross_check(check: &CrossCheck) -> Vec<String> {
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

/// The advice for the first target that needs some, and for how many others it holds. That a program is no Python is no
/// news where another one is, nor is a Python that was hardly met: each has its first moments without names.
fn name_advice(summary: &Summary) -> Vec<String> {
    let is_python = |target: &&TargetSummary| target.names != NameDiagnosis::NotPython;
    let some_python = summary.targets.iter().any(|target| is_python(&target));
    let in_need: Vec<_> = summary
        .targets
        .iter()
        .filter(|target| !some_python || is_python(target))
        .filter_map(|target| {
            let lines = advice(target, &summary.refusals, summary.follows);
            (!lines.is_empty()).then_some((target, lines))
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

/// The targets in a few words.
fn who(summary: &Summary) -> String {
    let sampled = summary.targets.iter().find(|target| target.samples > 0);
    let others = summary.unsampled.processes + idle(summary);
    let without = match others {
        0 => String::new(),
        more => format!(" and {} without samples", grouped(more)),
    };
    match (sampled.or(summary.targets.first()), processes(summary)) {
        (Some(target), 0) if others == 1 => {
            format!("pid {} ({})", target.pid, short_command(target))
        }
        (_, 0) => match others {
            0 => "no process".to_owned(),
            others => counted_processes(others),
        },
        (Some(target), 1) => {
            format!("pid {} ({}){without}", target.pid, short_command(target))
        }
        (_, several) => format!("{}{without}", counted_processes(several)),
    }
}

fn counted_processes(number: u64) -> String {
    match number {
        1 => "1 process".to_owned(),
        more => format!("{} processes", grouped(more)),
    }
}

/// Processes with samples: one that ran several programs counts once.
fn processes(summary: &Summary) -> u64 {
    let sampled = summary.targets.iter().filter(|target| target.samples > 0);
    let pids: BTreeSet<Pid> = sampled.map(|target| target.pid).collect();
    pids.len() as u64 + summary.unsampled.untold
}

/// Processes that were asked for and have no samples.
fn idle(summary: &Summary) -> u64 {
    let pids: BTreeSet<Pid> = summary.targets.iter().map(|target| target.pid).collect();
    let sampled = summary.targets.iter().filter(|target| target.samples > 0);
    let sampled: BTreeSet<Pid> = sampled.map(|target| target.pid).collect();
    pids.difference(&sampled).count() as u64
}

fn how_long(summary: &Summary) -> String {
    let time = seconds(summary.elapsed);
    match summary.stop {
        StopReason::TargetExited if summary.roots > 1 => {
            format!("until all of them had exited after {time}")
        }
        StopReason::TargetExited => format!("until the target exited after {time}"),
        StopReason::Interrupted | StopReason::Duration => format!("in {time}"),
    }
}

fn rate(summary: &Summary) -> String {
    let event = match summary.event {
        SampledEvent::Cycles => "cycles",
        SampledEvent::CpuClock => "cpu-clock",
    };
    format!("{} ({event})", summary.frequency)
}

fn cpu_time(summary: &Summary) -> Duration {
    let told: Duration = summary.targets.iter().map(|target| target.cpu_time).sum();
    told + summary.unsampled.cpu_time
}

#[cfg(test)]
#[path = "report_tests.rs"]
mod tests;
