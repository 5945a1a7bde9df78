//! The ways in which `slowdown` has the same work done.

use std::{path::Path, process::Command};

use anyhow::Result;

use super::{Bench, peers::Peer};
use crate::{host, workload::Workload};

/// Sampling rates, and that of the peers.
pub(super) const RATES: [u32; 2] = [99, 999];
const PEER_RATE: u32 = 99;

/// The Python that works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Stock,
    Trampolines,
}

/// Who profiles it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    Ours,
    Perf,
    Peer(Peer),
}

/// One way.
pub(super) struct Variant {
    pub(super) kind: Kind,
    pub(super) profiler: Option<Profiler>,
}

/// A profiler at its rate.
pub(super) struct Profiler {
    pub(super) by: By,
    pub(super) hz: u32,
    /// Lacks the target only.
    pub(super) command: Command,
}

/// All ways, those of one Python side by side, unprofiled first. All profilers write to
/// the same file.
pub(super) fn all(bench: &Bench, output: &Path) -> Vec<Variant> {
    let mut variants = vec![Variant::new(Kind::Stock, None)];
    for hz in RATES {
        let ours = ours(bench, hz, "interpreter", output);
        variants.push(Variant::new(Kind::Stock, Some(ours)));
    }
    for peer in Peer::ALL {
        match with_peer(bench, peer, output) {
            Ok(profiler) => variants.push(Variant::new(Kind::Stock, Some(profiler))),
            Err(err) => eprintln!("target: {} is left out: {err:#}", peer.name()),
        }
    }
    variants.push(Variant::new(Kind::Trampolines, None));
    for hz in RATES {
        let ours = ours(bench, hz, "perf-map", output);
        variants.push(Variant::new(Kind::Trampolines, Some(ours)));
    }
    if let Some(perf) = host::which("perf") {
        for hz in RATES {
            let perf = perf_record(&perf, hz, output);
            variants.push(Variant::new(Kind::Trampolines, Some(perf)));
        }
    } else {
        eprintln!("target: perf is left out: there is none");
    }
    variants
}

impl Kind {
    /// Starts `workloads/work.py`, with nothing but calls to do.
    pub(super) fn start(self, bench: &Bench, chunks: &str) -> Result<Workload> {
        let arguments = ["--calls", "--chunks", chunks];
        match self {
            Self::Stock => Workload::start_stock(&bench.python, "work", &arguments),
            Self::Trampolines => Workload::start(&bench.python, "work", &arguments),
        }
    }
}

impl Variant {
    fn new(kind: Kind, profiler: Option<Profiler>) -> Self {
        Self { kind, profiler }
    }

    /// Is it this profiler, at this rate?
    pub(super) fn is_by(&self, by: By, hz: u32) -> bool {
        let profiler = self.profiler.as_ref();
        profiler.is_some_and(|profiler| profiler.by == by && profiler.hz == hz)
    }

    /// Is the profiler neither ours nor perf?
    pub(super) fn is_peer(&self) -> bool {
        let profiler = self.profiler.as_ref();
        profiler.is_some_and(|profiler| matches!(profiler.by, By::Peer(_)))
    }

    /// For the table.
    pub(super) fn label(&self) -> String {
        let python = match self.kind {
            Kind::Stock => "stock",
            Kind::Trampolines => "-X perf",
        };
        let Some(Profiler { by, hz, .. }) = self.profiler else {
            return format!("{python}, unprofiled");
        };
        let name = match by {
            By::Ours => "pyprof-bpf",
            By::Perf => "perf record -g",
            By::Peer(peer) => peer.name(),
        };
        format!("{python}, {name} {hz} Hz")
    }
}

fn ours(bench: &Bench, hz: u32, python_from: &str, output: &Path) -> Profiler {
    let mut command = bench.ours(hz);
    command.args(["--python-from", python_from, "--output"]);
    command.arg(output);
    Profiler {
        by: By::Ours,
        hz,
        command,
    }
}

/// perf with frame pointers, its cheapest way to stacks.
fn perf_record(perf: &Path, hz: u32, output: &Path) -> Profiler {
    let mut command = Command::new(perf);
    command.args(["record", "-q", "-e", "cpu-clock", "-g", "-F"]);
    command.arg(hz.to_string()).arg("-o").arg(output);
    Profiler {
        by: By::Perf,
        hz,
        command,
    }
}

fn with_peer(bench: &Bench, peer: Peer, output: &Path) -> Result<Profiler> {
    let program = peer.find(bench)?;
    eprintln!("target: comparing with {}", Peer::version(&program)?);
    Ok(Profiler {
        by: By::Peer(peer),
        hz: PEER_RATE,
        command: peer.record(&program, PEER_RATE, output),
    })
}
