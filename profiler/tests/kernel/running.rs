//! A program that runs while it is looked at.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// A running program; it ends when this value does.
pub(super) struct Running {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Running {
    /// Starts it and waits until it says `ready`.
    pub(super) fn start(command: &mut Command) -> Self {
        let mut running = Self::start_silent(command);
        let first = running.line();
        assert_eq!(first, "ready", "{command:?} did not start");
        running
    }

    /// Starts one that says nothing.
    pub(super) fn start_silent(command: &mut Command) -> Self {
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().unwrap());
        Self {
            child,
            input,
            output,
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The next line that it prints.
    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// Gives it a line to read.
    pub(super) fn say(&mut self, line: &str) {
        writeln!(self.input.as_mut().unwrap(), "{line}").unwrap();
    }

    /// Waits for its end; everything else that it prints.
    pub(super) fn rest(mut self) -> String {
        let mut text = String::new();
        self.output.read_to_string(&mut text).unwrap();
        text
    }

    /// A file as it sees it: `/tmp` may be another one for it.
    pub(super) fn root(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.pid()))
    }

    /// Its perf map.
    pub(super) fn perf_map(&self) -> PathBuf {
        self.root(&format!("/tmp/perf-{}.map", self.pid()))
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        remove_perf_map(self.pid());
    }
}

/// CPython leaves its perf map behind.
pub(super) fn remove_perf_map(pid: u32) {
    let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
}

/// Sends a signal to a process of ours.
pub(super) fn signal(pid: u32, signal: Signal) {
    kill_process(Pid::from_raw(pid.cast_signed()).unwrap(), signal).unwrap();
}
