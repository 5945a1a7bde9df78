//! Where every sample went.

use std::collections::BTreeMap;

use super::{EndClass, aggregate::CountKey};
use crate::model::{FrameKind, LocationId, LocationTable, Pid, ResolveMiss};

/// Where every sample went, and how much of it has a name.
///
/// Frames are counted once per sample they are in, so that a function counts as much as it is seen.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Samples in the profile.
    pub samples: u64,
    /// Those with a whole stack.
    pub complete: u64,
    /// Those whose stack is cut short, by reason. A reason that did not occur is absent.
    pub incomplete: BTreeMap<EndClass, u64>,
    /// Those with guessed callers.
    pub guessed: u64,
    /// Those taken while the CPU was in the kernel.
    pub in_kernel: u64,
    /// Those with at least one named Python frame.
    pub with_python: u64,
    /// Python frames that have a name.
    pub python_named: u64,
    /// Frames of trampolines that no perf map names, which are Python functions, and Python frames without a name.
    pub python_unnamed: u64,
    /// Those of them whose code was not read in time.
    pub unread: u64,
    /// Those of them whose code was not read before their process had ended.
    pub ended: u64,
    /// Those of them whose name may be another process's, which writes the same perf map.
    pub contested: u64,
    /// Those of them whose code was freed before it was read.
    pub freed: u64,
    /// Those of them whose process has more functions, or longer names, than are kept.
    pub past_limit: u64,
    /// Samples with code of another compiler that no perf map names.
    pub with_foreign_jit: u64,
    /// Frames of compiled code (the interpreter's own included) that have a symbol.
    pub native_named: u64,
    /// Frames of compiled code shown as `module+0xoffset`.
    pub native_unnamed: u64,
    /// Those of them whose name was not found in time, after the recording.
    pub native_late: u64,
    /// Those of them in files that have more symbols than are read, or whose symbols took too much time or memory.
    pub native_too_costly: u64,
    /// Those of them that nobody could be asked about: there was no process to parse symbols in.
    pub native_unasked: u64,
    /// Those of them whose process has more functions, or longer names, than are kept.
    pub native_past_limit: u64,
    /// Processes for parsing symbols that crashed, or took too much and were ended. Set like `ring_full`.
    pub symbol_processes_lost: u64,
    /// Samples not in the profile, by process: it had too many different stacks.
    pub too_many_stacks: BTreeMap<Pid, u64>,
    /// Samples not in the profile: they could not be read, or could not be unwound in time. Set like `ring_full`.
    pub not_kept: u64,
    /// Samples not in the profile: the ring buffer was full. Set by whoever reads the kernel's counters.
    pub ring_full: u64,
    /// Samples in the profile whose walk began in the kernel and was finished in user space. Set like `ring_full`.
    pub finished_in_user_space: u64,
}

/// What the frames of one location count for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FrameCounts {
    python_named: u64,
    python_unnamed: u64,
    contested: u64,
    freed: u64,
    unread: u64,
    ended: u64,
    past_limit: u64,
    foreign_jit: u64,
    native_named: u64,
    native_unnamed: u64,
    native_late: u64,
    native_too_costly: u64,
    native_unasked: u64,
    native_past_limit: u64,
}

impl Quality {
    /// Samples that were taken and are not in the profile.
    pub fn lost(&self) -> u64 {
        self.ring_full + self.too_many_stacks.values().sum::<u64>() + self.not_kept
    }

    /// Adds `count` samples of one stack.
    pub(super) fn count(
        &mut self,
        frames: &[FrameCounts],
        stack: &[LocationId],
        key: &CountKey,
        count: u64,
    ) {
        self.samples += count;
        if key.end == EndClass::Complete {
            self.complete += count;
        } else {
            *self.incomplete.entry(key.end).or_insert(0) += count;
        }
        if key.guessed {
            self.guessed += count;
        }
        if key.in_kernel {
            self.in_kernel += count;
        }
        let (mut has_python, mut has_foreign_jit) = (false, false);
        for counts in stack.iter().filter_map(|id| frames.get(id.0 as usize)) {
            has_python |= counts.python_named > 0;
            has_foreign_jit |= counts.foreign_jit > 0;
            self.python_named += counts.python_named * count;
            self.python_unnamed += counts.python_unnamed * count;
            self.contested += counts.contested * count;
            self.freed += counts.freed * count;
            self.unread += counts.unread * count;
            self.ended += counts.ended * count;
            self.past_limit += counts.past_limit * count;
            self.native_named += counts.native_named * count;
            self.native_unnamed += counts.native_unnamed * count;
            self.native_late += counts.native_late * count;
            self.native_too_costly += counts.native_too_costly * count;
            self.native_unasked += counts.native_unasked * count;
            self.native_past_limit += counts.native_past_limit * count;
        }
        if has_python {
            self.with_python += count;
        }
        if has_foreign_jit {
            self.with_foreign_jit += count;
        }
    }
}

/// What each location counts for, by [`LocationId`].
pub(super) fn frame_counts(locations: &LocationTable) -> Vec<FrameCounts> {
    locations
        .locations
        .iter()
        .map(|location| {
            let mut counts = FrameCounts::default();
            for frame in &location.frames {
                match (frame.kind, frame.miss) {
                    (FrameKind::Python, None) => counts.python_named += 1,
                    (FrameKind::Python, Some(ResolveMiss::FreedCode)) => {
                        counts.python_unnamed += 1;
                        counts.freed += 1;
                    }
                    (FrameKind::Python, Some(ResolveMiss::UnreadCode)) => {
                        counts.python_unnamed += 1;
                        counts.unread += 1;
                    }
                    (FrameKind::Python, Some(ResolveMiss::EndedCode)) => {
                        counts.python_unnamed += 1;
                        counts.ended += 1;
                    }
                    (FrameKind::Python, Some(ResolveMiss::TooManyNames)) => {
                        counts.python_unnamed += 1;
                        counts.past_limit += 1;
                    }
                    (FrameKind::Jit, Some(ResolveMiss::ForeignJit)) => counts.foreign_jit += 1,
                    (FrameKind::Python, Some(_))
                    | (FrameKind::Jit, Some(ResolveMiss::NotInPerfMap)) => {
                        counts.python_unnamed += 1;
                    }
                    (FrameKind::Jit, Some(ResolveMiss::Contested)) => {
                        counts.python_unnamed += 1;
                        counts.contested += 1;
                    }
                    (FrameKind::Native | FrameKind::CLibrary | FrameKind::Interpreter, None) => {
                        counts.native_named += 1;
                    }
                    (
                        FrameKind::Native | FrameKind::CLibrary | FrameKind::Interpreter,
                        Some(miss),
                    ) => {
                        counts.native_unnamed += 1;
                        match miss {
                            ResolveMiss::NotInTime => counts.native_late += 1,
                            ResolveMiss::SymbolsTooCostly => counts.native_too_costly += 1,
                            ResolveMiss::NoSymbolProcess => counts.native_unasked += 1,
                            ResolveMiss::TooManyNames => counts.native_past_limit += 1,
                            _ => {}
                        }
                    }
                    (FrameKind::Kernel | FrameKind::Jit, _) => {}
                }
            }
            counts
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Avma, Frame, StackEnd},
        profile::testing::{Builder, frame},
    };

    #[test]
    fn every_sample_is_complete_or_has_a_reason() {
        let mut builder = Builder::new(false);
        builder.add(&[frame(FrameKind::Python, "f")], 97);
        builder.add_with(&[frame(FrameKind::Python, "f")], 2, |s| {
            s.end = StackEnd::DepthLimit;
        });
        builder.add_with(&[], 1, |s| {
            s.end = StackEnd::ReadFault(Avma(8));
            s.guessed = true;
            s.in_kernel = true;
        });
        let quality = builder.finish().quality;
        assert_eq!(quality.samples, 100);
        assert_eq!(
            quality.complete + quality.incomplete.values().sum::<u64>(),
            100
        );
        assert_eq!(quality.incomplete[&EndClass::DepthLimit], 2);
        assert_eq!(
            (quality.guessed, quality.in_kernel, quality.with_python),
            (1, 1, 99)
        );
        assert_eq!(quality.complete, 97);
    }

    #[test]
    fn frames_count_as_often_as_they_are_seen() {
        let unnamed = Frame {
            miss: Some(ResolveMiss::NotInPerfMap),
            ..frame(FrameKind::Jit, "0x7f00")
        };
        let no_symbol = Frame {
            miss: Some(ResolveMiss::NoSymbol),
            ..frame(FrameKind::Native, "libx.so+0x10")
        };
        let mut builder = Builder::new(false);
        builder.add(
            &[
                frame(FrameKind::Interpreter, "main"),
                frame(FrameKind::Python, "f"),
                no_symbol,
            ],
            3,
        );
        builder.add(&[frame(FrameKind::Interpreter, "main"), unnamed], 1);
        let quality = builder.finish().quality;
        assert_eq!((quality.python_named, quality.python_unnamed), (3, 1));
        assert_eq!((quality.native_named, quality.native_unnamed), (4, 3));
    }

    #[test]
    fn a_function_that_was_freed_is_a_python_frame_without_a_name() {
        let freed = Frame {
            miss: Some(ResolveMiss::FreedCode),
            ..frame(FrameKind::Python, "<freed code>")
        };
        let mut builder = Builder::new(false);
        builder.add(&[frame(FrameKind::Python, "f"), freed.clone()], 3);
        builder.add(&[freed], 1);
        let quality = builder.finish().quality;
        assert_eq!((quality.python_named, quality.with_python), (3, 3));
        assert_eq!((quality.python_unnamed, quality.freed), (4, 4));
    }

    #[test]
    fn code_of_another_compiler_is_no_python_function_without_a_name() {
        let foreign = Frame {
            miss: Some(ResolveMiss::ForeignJit),
            ..frame(FrameKind::Jit, "[code without a name]")
        };
        let mut builder = Builder::new(false);
        let python = frame(FrameKind::Python, "f");
        builder.add(&[python.clone(), foreign.clone(), foreign], 3);
        builder.add(&[python], 1);
        let quality = builder.finish().quality;
        assert_eq!((quality.python_named, quality.python_unnamed), (4, 0));
        assert_eq!(quality.with_foreign_jit, 3);
    }

    #[test]
    fn each_reason_for_a_python_frame_without_a_name_is_counted() {
        for (miss, expected) in [
            (ResolveMiss::FreedCode, (1, 0, 0, 0)),
            (ResolveMiss::UnreadCode, (0, 1, 0, 0)),
            (ResolveMiss::EndedCode, (0, 0, 1, 0)),
            (ResolveMiss::TooManyNames, (0, 0, 0, 1)),
        ] {
            let nameless = Frame {
                miss: Some(miss),
                ..frame(FrameKind::Python, "?")
            };
            let mut builder = Builder::new(false);
            builder.add(&[nameless], 1);
            let quality = builder.finish().quality;
            let counted = (
                quality.freed,
                quality.unread,
                quality.ended,
                quality.past_limit,
            );
            assert_eq!((counted, quality.python_unnamed), (expected, 1), "{miss:?}");
        }
    }

    #[test]
    fn lost_samples_have_three_causes() {
        let quality = Quality {
            ring_full: 3,
            not_kept: 4,
            too_many_stacks: BTreeMap::from([(Pid(1), 5), (Pid(2), 6)]),
            ..Quality::default()
        };
        assert_eq!(quality.lost(), 18);
    }
}
