//! What is said about the programs of a window when it ends.

use std::time::Duration;

use rustc_hash::FxHashMap;

use super::{
    Emit, Registry, Summaries,
    ended::{Ended, EndedKind},
};
use crate::model::ImageId;

impl Registry {
    /// A summary of each program for the window that ends. What is counted, CPU time too, begins anew for the next one;
    /// all processes go on being followed. `samples`: those of each program in the window that ends.
    pub fn cut(&mut self, samples: &FxHashMap<ImageId, u64>, emit: &mut dyn Emit) -> Summaries {
        self.retire(false, emit);
        let now = self.host.now();
        let samples_of = |image| samples.get(&image).copied().unwrap_or_default();
        for (&pid, entry) in &mut self.tracked {
            let kind = if self.roots.contains_key(&pid) {
                EndedKind::Root
            } else {
                EndedKind::Other
            };
            let goes_on = Ended {
                at: now,
                pid,
                image: entry.image,
                info: entry.info.clone(),
                cpu_time: entry.take_cpu_time(),
                kind,
                counted: entry.counted,
            };
            entry.counted += samples_of(entry.image);
            self.ended.add_left_out(entry.left_out);
            let facts = emit.facts(entry.image);
            self.ended
                .summarise(goes_on, facts, samples_of(entry.image));
        }
        // What has no samples here is summarised when it is retired.
        let mut with_samples = Vec::new();
        for ended in self.ended.lingering() {
            if samples_of(ended.image) > 0 {
                with_samples.push(ended.clone());
                ended.counted += samples_of(ended.image);
                ended.cpu_time = Duration::ZERO;
            }
        }
        for ended in with_samples {
            let (facts, samples) = (emit.facts(ended.image), samples_of(ended.image));
            self.ended.summarise(ended, facts, samples);
        }
        let unsampled = self.children.count();
        self.ended.add_unsampled(unsampled, Duration::ZERO);
        self.take_summaries(samples)
    }

    /// Retires all programs, and gives a summary of each for the last window.
    pub fn finish(&mut self, samples: &FxHashMap<ImageId, u64>, emit: &mut dyn Emit) -> Summaries {
        for pid in self.pids() {
            self.exited(pid, None, emit);
        }
        let unsampled = self.children.clear();
        self.ended.add_unsampled(unsampled, Duration::ZERO);
        self.retire(true, emit);
        self.take_summaries(samples)
    }

    fn take_summaries(&mut self, samples: &FxHashMap<ImageId, u64>) -> Summaries {
        let roots = &self.roots;
        self.ended.take(samples, |pid| roots.contains_key(&pid))
    }
}
