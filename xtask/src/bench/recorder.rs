//! A profiler at work, and what it cost.
//!
//! Only the parent of a process learns its CPU time to the microsecond and the most
//! memory it held, and only through a system call that safe Rust has no name for: a
//! small Python program (`recorder.py`) is that parent.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    str::FromStr,
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::{command, pythons::Python};

/// The parent.
const PROGRAM: &str = include_str!("recorder.py");
/// Nothing takes longer to attach.
const ATTACH_PATIENCE: Duration = Duration::from_secs(20);

/// A running profiler.
pub(super) struct Recorder {
    parent: Child,
    input: ChildStdin,
    lines: BufReader<ChildStdout>,
    pid: u32,
    spawned_ns: u64,
    errors: PathBuf,
}

/// A profiler that has ended well.
pub(super) struct Ended {
    /// CPU time of its whole life, user and system.
    pub(super) cpu_seconds: f64,
    /// The most memory it held.
    pub(super) peak_mebibytes: f64,
    /// From SIGINT to its end; 0 when it was not told to stop.
    pub(super) exit_seconds: f64,
    /// When it was started, on `CLOCK_MONOTONIC`.
    pub(super) spawned_ns: u64,
    /// What it printed on standard error.
    pub(super) said: String,
}

impl Recorder {
    /// Starts `profiler`; what it says goes to a file in `folder`.
    pub(super) fn start(python: &Python, profiler: &Command, folder: &Path) -> Result<Self> {
        let errors = folder.join("profiler.stderr");
        let mut parent = Command::new(&python.path)
            .args(["-I", "-S", "-c", PROGRAM])
            .arg(&errors)
            .arg(profiler.get_program())
            .args(profiler.get_args())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", python.path.display()))?;
        let input = parent.stdin.take().context("its input is piped")?;
        let mut lines = BufReader::new(parent.stdout.take().context("its output is piped")?);
        let said = line(&mut lines)?;
        let mut words = said.split(' ');
        let started = word(&mut words).and_then(|pid| Ok((pid, word(&mut words)?)));
        let (pid, spawned_ns) =
            started.with_context(|| format!("cannot start `{}`", command::shown(profiler)))?;
        Ok(Self {
            parent,
            input,
            lines,
            pid,
            spawned_ns,
            errors,
        })
    }

    /// Waits until it has opened its perf events.
    pub(super) fn wait_until_attached(&self) -> Result<()> {
        let start = Instant::now();
        while perf_events(self.pid) == 0 {
            let has_ended = !Path::new("/proc").join(self.pid.to_string()).exists();
            if has_ended || start.elapsed() > ATTACH_PATIENCE {
                let said = fs::read_to_string(&self.errors).unwrap_or_default();
                bail!("the profiler did not begin to sample: {}", said.trim_end());
            }
            thread::sleep(Duration::from_millis(2));
        }
        Ok(())
    }

    /// CPU time of its live threads so far.
    pub(super) fn cpu_seconds(&self) -> Result<f64> {
        cpu_seconds(self.pid)
    }

    /// Sends SIGINT and waits for the end.
    pub(super) fn stop(mut self) -> Result<Ended> {
        // A parent that no longer listens has seen the profiler end: `wait` says how.
        let _ = writeln!(self.input, "stop");
        self.wait()
    }

    /// Waits for the end.
    pub(super) fn wait(mut self) -> Result<Ended> {
        let last = line(&mut self.lines)?;
        self.parent.wait().context("cannot wait for a profiler")?;
        let said = fs::read_to_string(&self.errors).unwrap_or_default();
        let mut words = last.split(' ');
        // perf ends by the signal it was stopped with, and austin with this number; 3 says
        // that the target was idle.
        let code: i32 = word(&mut words)?;
        if ![0, 3, -2, 254].contains(&code) {
            bail!("the profiler ended with {code}: {}", said.trim_end());
        }
        Ok(Ended {
            cpu_seconds: word(&mut words)?,
            peak_mebibytes: word::<f64>(&mut words)? / 1024.0,
            exit_seconds: word(&mut words)?,
            spawned_ns: self.spawned_ns,
            said,
        })
    }
}

impl Ended {
    /// A number of the line that `--bpf-stats` asks for.
    pub(super) fn bpf(&self, key: &str) -> Result<f64> {
        let line = self
            .said
            .lines()
            .find_map(|line| line.strip_prefix("bpf: "));
        let mut words = line.unwrap_or_default().split(' ');
        words
            .find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
            .with_context(|| format!("the profiler told no `{key}`: {}", self.said.trim_end()))
    }
}

/// CPU time of all live threads of a process, to the nanosecond.
pub(super) fn cpu_seconds(pid: u32) -> Result<f64> {
    let tasks = format!("/proc/{pid}/task");
    let mut nanoseconds = 0.0;
    for task in fs::read_dir(&tasks).with_context(|| format!("cannot read {tasks}"))? {
        // A thread may end between the listing and the look at it.
        let text = fs::read_to_string(task?.path().join("schedstat")).unwrap_or_default();
        let word = text
            .split(' ')
            .next()
            .and_then(|word| word.parse::<f64>().ok());
        nanoseconds += word.unwrap_or_default();
    }
    Ok(nanoseconds / 1e9)
}

fn line(lines: &mut BufReader<ChildStdout>) -> Result<String> {
    let mut line = String::new();
    lines
        .read_line(&mut line)
        .context("cannot read what the profiler's parent prints")?;
    Ok(line.trim_end().to_owned())
}

fn word<T: FromStr>(words: &mut std::str::Split<'_, char>) -> Result<T> {
    words
        .next()
        .and_then(|word| word.parse().ok())
        .context("the profiler's parent printed something else than numbers")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_found_by_their_whole_name() {
        let ended = Ended {
            cpu_seconds: 0.0,
            peak_mebibytes: 0.0,
            exit_seconds: 0.0,
            spawned_ns: 0,
            said: "something\nbpf: runs=12 run_time_ns=3456 samples=7\n".into(),
        };
        assert!((ended.bpf("runs").unwrap() - 12.0).abs() < 1e-9);
        assert!((ended.bpf("samples").unwrap() - 7.0).abs() < 1e-9);
        assert!(ended.bpf("run").is_err());
    }
}
