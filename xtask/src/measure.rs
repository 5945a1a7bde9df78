//! What the kernel says about a process, and rows of a table of ratios.

use std::{
    fmt, fs,
    process::{Child, Command, ExitStatus},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::command;

/// Units of the times in `/proc/PID/stat` per second: 100 on every Linux architecture
/// that this program is built for.
const TICKS_PER_SECOND: f64 = 100.0;

/// CPU time of all live threads of a process, in seconds, to the nanosecond.
pub(crate) fn cpu_seconds(pid: u32) -> Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut nanoseconds = 0;
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        // A thread may end between the listing and the look at it.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        nanoseconds += leading_number(&text);
    }
    Ok(nanoseconds as f64 / 1e9)
}

/// CPU time of the children that this process has waited for, in seconds, to 10 ms.
pub(crate) fn children_cpu_seconds() -> Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat").context("cannot read /proc/self/stat")?;
    // Field 3 is the first one behind the name in parentheses; 16 and 17 are wanted.
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let ticks: u64 = fields
        .split_whitespace()
        .skip(13)
        .take(2)
        .map(leading_number)
        .sum();
    Ok(ticks as f64 / TICKS_PER_SECOND)
}

/// The most memory that a process has held, in MiB.
pub(crate) fn peak_mebibytes(pid: u32) -> Result<f64> {
    let path = format!("/proc/{pid}/status");
    let status = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    Ok(leading_number(line.unwrap_or_default()) as f64 / 1024.0)
}

/// Waits until a profiler has opened its perf events; gives the seconds since `start`.
pub(crate) fn wait_until_attached(profiler: &mut Child, start: Instant) -> Result<f64> {
    while start.elapsed() < Duration::from_secs(20) {
        if let Some(status) = profiler.try_wait()? {
            bail!("the profiler ended before it sampled: {status}");
        }
        if perf_events(profiler.id()) > 0 {
            return Ok(start.elapsed().as_secs_f64());
        }
        thread::sleep(Duration::from_millis(2));
    }
    bail!("the profiler had opened no perf event after 20 s")
}

/// Open perf events of a process.
fn perf_events(pid: u32) -> usize {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else {
        return 0;
    };
    let links = entries
        .flatten()
        .filter_map(|entry| fs::read_link(entry.path()).ok());
    links
        .filter(|link| link.to_string_lossy().contains("[perf_event]"))
        .count()
}

/// Sends SIGINT and waits; gives the status and the seconds that it took.
pub(crate) fn interrupt(child: &mut Child) -> Result<(ExitStatus, f64)> {
    let start = Instant::now();
    let signal = format!("kill -INT {}", child.id());
    command::run(Command::new("sh").args(["-c", &signal]))?;
    let status = child.wait().context("cannot wait for the profiler")?;
    Ok((status, start.elapsed().as_secs_f64()))
}

/// The number that a text begins with, blanks aside; 0 if there is none.
pub(crate) fn leading_number(text: &str) -> u64 {
    let text = text.trim_start();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    text[..end].parse().unwrap_or(0)
}

/// A row of the table: repeated measurements of one thing, against what it should be.
pub(crate) struct Row {
    pub(crate) what: String,
    pub(crate) unit: &'static str,
    pub(crate) values: Vec<f64>,
    /// The largest median that meets the aim; `None` where there is no aim.
    pub(crate) at_most: Option<f64>,
}

impl Row {
    /// The middle value, and the extremes; `None` without values.
    fn spread(&self) -> Option<(f64, f64, f64)> {
        let mut sorted = self.values.clone();
        sorted.sort_by(f64::total_cmp);
        let (&least, &most) = (sorted.first()?, sorted.last()?);
        let half = sorted.len() / 2;
        let median = f64::midpoint(sorted[half], sorted[(sorted.len() - 1) / 2]);
        Some((median, least, most))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:<46}", self.what)?;
        let Some((median, least, most)) = self.spread() else {
            return write!(f, " not measured");
        };
        write!(
            f,
            "{median:>9.3} {:<4} [{least:.3} .. {most:.3}]",
            self.unit
        )?;
        match self.at_most {
            Some(aim) if median <= aim => write!(f, "  PASS (at most {aim})"),
            Some(aim) => write!(f, "  over (aim: {aim})"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_the_median_between_its_extremes() {
        let row = Row {
            what: "slowdown".into(),
            unit: "x",
            values: vec![1.05, 0.99, 1.01],
            at_most: Some(1.02),
        };
        let text = row.to_string();
        assert!(
            text.ends_with("1.010 x    [0.990 .. 1.050]  PASS (at most 1.02)"),
            "{text}"
        );
    }

    #[test]
    fn own_cpu_time_grows() {
        let before = cpu_seconds(std::process::id()).unwrap();
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(30) {}
        assert!(cpu_seconds(std::process::id()).unwrap() > before);
        assert!(peak_mebibytes(std::process::id()).unwrap() > 0.1);
    }
}
