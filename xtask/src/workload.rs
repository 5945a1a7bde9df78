//! A bundled Python program that runs while it is looked at.

use std::{
    fs,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{host, pythons::Python};

/// A running program from `workloads/`; it ends when this value does.
pub(crate) struct Workload {
    child: Child,
    input: Option<ChildStdin>,
    lines: BufReader<ChildStdout>,
}

impl Workload {
    /// Starts `workloads/<name>.py` under trampolines (`-X perf`) and waits until it
    /// says that it is ready.
    pub(crate) fn start(python: &Python, name: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(python, &["-X", "perf"], name, arguments)
    }

    /// The same without trampolines: any CPython, as it is.
    pub(crate) fn start_stock(python: &Python, name: &str, arguments: &[&str]) -> Result<Self> {
        Self::start_with(python, &[], name, arguments)
    }

    fn start_with(
        python: &Python,
        options: &[&str],
        name: &str,
        arguments: &[&str],
    ) -> Result<Self> {
        let script = script(name);
        let mut child = Command::new(&python.path)
            .args(options)
            .arg(&script)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", python.path.display()))?;
        let input = child.stdin.take();
        let lines = BufReader::new(child.stdout.take().context("its output is piped")?);
        let mut workload = Self {
            child,
            input,
            lines,
        };
        let first = workload.line()?;
        if first != "ready" {
            bail!("{} did not start: it printed `{first}`", script.display());
        }
        Ok(workload)
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Gives it a line to read.
    pub(crate) fn say(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("its input is piped")?;
        writeln!(input, "{line}").context("the workload does not listen")
    }

    /// The next line that it prints, without its end; empty when there is no more.
    pub(crate) fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.lines
            .read_line(&mut line)
            .context("cannot read what the workload prints")?;
        Ok(line.trim_end().to_owned())
    }
}

/// The file of a bundled program.
pub(crate) fn script(name: &str) -> PathBuf {
    let script = host::workspace().join("workloads").join(name);
    script.with_extension("py")
}

impl Drop for Workload {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // An interpreter that is ended from outside leaves its perf map behind.
        let _ = fs::remove_file(format!("/tmp/perf-{}.map", self.pid()));
    }
}
