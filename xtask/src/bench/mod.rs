//! `cargo xtask bench`: what profiling costs, in one run and as ratios. It informs and
//! never fails on a time: machines differ, and other work on this one shows.
//!
//! ```text
//! parts        perf map, unwind tables on their own        ┐
//! kernel_side  the BPF program's run time, both ways       │
//! user_side    own CPU, memory, start and end              ├─► Table ─► text, latest.json
//! slowdown     the target's CPU time, unprofiled and under │
//!              this profiler, perf and the peers           │
//! trampolines  the price of Python names by trampolines    ┘
//! ```
//!
//! "Both ways": interpreter frames of a stock Python, and trampolines (`-X perf`).

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use self::{recorder::Recorder, table::Table};
use crate::{
    demo, host,
    pythons::{self, Python},
    workload::Workload,
};

mod kernel_side;
mod parts;
mod peers;
mod recorder;
mod slowdown;
mod table;
mod trampolines;
mod user_side;
mod variants;

/// The pieces, by name, with how long each takes.
const PIECES: [(&str, &str); 5] = [
    ("parts", "perf map and unwind tables on their own (15 s)"),
    (
        "kernel",
        "the BPF program, interpreter frames and trampolines (2 min)",
    ),
    ("user", "own CPU and memory, start and end (2 min)"),
    (
        "target",
        "slowdown of the target, beside perf, py-spy and austin (6 min)",
    ),
    ("trampolines", "what Python names cost a program (1 min)"),
];

/// Runs the named pieces, or all.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    let known = |name: &&str| PIECES.iter().any(|(piece, _)| piece == name);
    if names == ["list"] || !names.iter().all(known) {
        for (piece, about) in PIECES {
            println!("{piece:<13}{about}");
        }
        if names == ["list"] {
            return Ok(());
        }
        bail!("no such piece: {}", names.join(" "));
    }
    let wanted = |piece: &str| names.is_empty() || names.contains(&piece);
    let unprivileged = |name: &&str| ["parts", "trampolines"].contains(name);
    if (names.is_empty() || !names.iter().all(unprivileged)) && !host::is_root() {
        bail!(
            "measuring a running target needs root.\nRun: sudo env PATH=\"$PATH\" cargo xtask bench"
        );
    }
    let bench = Bench::new()?;
    let mut table = Table::default();
    if wanted("parts") {
        parts::measure(&bench.python, &mut table)?;
    }
    if wanted("kernel") {
        kernel_side::measure(&bench, &mut table)?;
    }
    if wanted("user") {
        user_side::measure(&bench, &mut table)?;
    }
    if wanted("target") {
        slowdown::measure(&bench, &mut table)?;
    }
    if wanted("trampolines") {
        trampolines::measure(&bench.folder, &mut table)?;
    }
    let json = bench.folder.join("latest.json");
    fs::write(&json, table.json()).with_context(|| format!("cannot write {}", json.display()))?;
    println!("CPython {}\n", bench.python.version_text());
    println!("{}", table.text());
    println!("The same for programs: {}", json.display());
    Ok(())
}

/// What all measurements need.
struct Bench {
    profiler: PathBuf,
    python: Python,
    /// For what the profilers write.
    folder: PathBuf,
}

impl Bench {
    fn new() -> Result<Self> {
        let python = pythons::preferred()?;
        let profiler = demo::release_build()?;
        let folder = host::target_dir().join("bench");
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
        Ok(Self {
            profiler,
            python,
            folder,
        })
    }

    /// This profiler, without target and output.
    fn ours(&self, hz: u32) -> Command {
        let mut record = Command::new(&self.profiler);
        record.args(["record", "--quiet", "--frequency", &hz.to_string()]);
        record
    }

    /// A path to write to, with nothing there: the profiler never replaces a file.
    fn output(&self, name: &str) -> Result<PathBuf> {
        let path = self.folder.join(name);
        match fs::remove_file(&path) {
            Err(err) if err.kind() != std::io::ErrorKind::NotFound => {
                Err(err).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(path),
        }
    }

    /// Starts a profiler, whose command lacks only the target, on a workload.
    fn start(&self, profiler: &Command, workload: &Workload) -> Result<Recorder> {
        let mut whole = Command::new(profiler.get_program());
        whole.args(profiler.get_args());
        whole.args(["--pid", &workload.pid().to_string()]);
        Recorder::start(&self.python, &whole, &self.folder)
    }
}
