//! The samplers that read interpreter frames from outside: py-spy and austin, those of
//! this machine, else wheels in a virtual environment below `target/bench`. One that
//! cannot be had is told and left out.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::Bench;
use crate::{
    command::{self, Patience},
    host, pythons,
};

/// What pip is asked for, one after the other until one starts: austin 4.0.0 wants
/// glibc 2.38, its wheel says less.
const PY_SPY: [&str; 1] = ["py-spy"];
const AUSTIN: [&str; 2] = ["austin-dist", "austin-dist==3.7.0"];

/// One of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Peer {
    PySpy,
    Austin,
}

impl Peer {
    pub(super) const ALL: [Self; 2] = [Self::PySpy, Self::Austin];

    /// Its program.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::PySpy => "py-spy",
            Self::Austin => "austin",
        }
    }

    /// Finds it, or gets it.
    pub(super) fn find(self, bench: &Bench) -> Result<PathBuf> {
        if let Some(own) = host::which(self.name()).filter(|own| starts(own)) {
            return Ok(own);
        }
        let folder = bench.folder.join("peers");
        let got = folder.join("bin").join(self.name());
        if starts(&got) {
            return Ok(got);
        }
        let python = folder.join("bin/python");
        if !python.exists() {
            pythons::make_environment(&bench.python, &folder)?;
        }
        let packages: &[&str] = match self {
            Self::PySpy => &PY_SPY,
            Self::Austin => &AUSTIN,
        };
        for package in packages {
            eprintln!("target: getting {package} from PyPI");
            pythons::pip_install(&python, &[package], Patience::seconds(120))?;
            if starts(&got) {
                return Ok(got);
            }
        }
        // To fail with its own words.
        command::output(Command::new(&got).arg("--version"))?;
        Ok(got)
    }

    /// Its command to record at this rate, without the target.
    pub(super) fn record(self, program: &Path, hz: u32, output: &Path) -> Command {
        let mut record = Command::new(program);
        match self {
            Self::PySpy => {
                record.args(["record", "--format", "raw", "--rate", &hz.to_string()]);
            }
            Self::Austin => {
                let microseconds = 1_000_000 / hz;
                record.args(["--interval", &microseconds.to_string()]);
            }
        }
        record.arg("--output").arg(output);
        record
    }

    /// The version that is compared with.
    pub(super) fn version(program: &Path) -> Result<String> {
        let text = command::output(Command::new(program).arg("--version"))?;
        let line = text.lines().next().context("it tells no version")?;
        Ok(line.trim().to_owned())
    }
}

fn starts(program: &Path) -> bool {
    Peer::version(program).is_ok()
}
