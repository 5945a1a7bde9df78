//! Counts of one process's samples.

use super::recent::Seen;

/// Counts of one process's samples, for [`diagnose`](super::diagnose()).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub(super) samples: u64,
    pub(super) trampoline_frames: u64,
    pub(super) named_frames: u64,
    pub(super) interpreter_samples: u64,
    pub(super) without_outer_trampoline: u64,
}

impl Counts {
    /// Samples so far.
    pub(super) const fn samples(&self) -> u64 {
        self.samples
    }

    /// Counts a sample.
    pub(super) fn add(&mut self, seen: Seen) {
        let Seen {
            named_frames,
            trampoline_frames,
            interpreter,
            outermost_is_root,
        } = seen;
        self.samples += 1;
        self.named_frames += u64::from(named_frames);
        self.trampoline_frames += u64::from(trampoline_frames);
        if interpreter {
            self.interpreter_samples += 1;
            self.without_outer_trampoline += u64::from(outermost_is_root != Some(true));
        }
    }
}
