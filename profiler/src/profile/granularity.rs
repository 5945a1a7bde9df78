//! What is shown as one function of Python code, and what as two.

use rustc_hash::FxHashMap;

use crate::model::{Frame, FrameKind};

/// What Python frames are told apart by. Chosen when writing, like a [`View`](super::View). Compiled code is told apart
/// by function always.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Granularity {
    /// By function.
    #[default]
    Functions,
    /// By the line that was executing, too.
    Lines,
}

/// The lines that Python functions begin in, also for frames that do not say so themselves.
#[derive(Debug, Default)]
pub(crate) struct FirstLines<'p> {
    /// By name and file; `None`: several functions have both.
    known: FxHashMap<(&'p str, Option<&'p str>), Option<u32>>,
}

impl<'p> FirstLines<'p> {
    /// What these frames say.
    pub(crate) fn of(frames: impl Iterator<Item = &'p Frame>) -> Self {
        let mut known: FxHashMap<_, Option<u32>> = FxHashMap::default();
        for frame in frames.filter(|frame| frame.kind == FrameKind::Python) {
            if let Some(line) = frame.first_line {
                known
                    .entry((&*frame.name, frame.file.as_deref()))
                    .and_modify(|it| *it = it.filter(|first| *first == line))
                    .or_insert(Some(line));
            }
        }
        Self { known }
    }

    /// The line that the function of a frame begins in. One that does not say so, because its name is out of a perf map,
    /// is taken for the function of its name and file where only one is known; of several it may be any.
    pub(crate) fn of_frame(&self, frame: &Frame) -> Option<u32> {
        if frame.kind != FrameKind::Python {
            return None;
        }
        let function = (&*frame.name, frame.file.as_deref());
        frame
            .first_line
            .or_else(|| self.known.get(&function).copied().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::testing::{native, python, python_at};

    #[test]
    fn a_frame_without_a_line_is_of_the_only_function_of_its_name_and_file() {
        let frames = [
            python("once", "/a.py"),
            python_at("once", "/a.py", 7, 8),
            python_at("once", "/a.py", 7, 9),
            python_at("twice", "/a.py", 20, 21),
            python_at("twice", "/a.py", 30, 30),
        ];
        let lines = FirstLines::of(frames.iter());
        for (frame, expected) in [
            (python("once", "/a.py"), Some(7)),
            (python("once", "/b.py"), None),
            (python("twice", "/a.py"), None),
            (python_at("twice", "/a.py", 30, 31), Some(30)),
            (native("once", "libx.so"), None),
        ] {
            assert_eq!(lines.of_frame(&frame), expected, "{frame:?}");
        }
    }
}
