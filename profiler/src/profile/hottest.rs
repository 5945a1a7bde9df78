//! The function a recording spends most of its time in, for a line of text.

use rustc_hash::FxHashMap;

use crate::model::{Frame, FrameKind, LocationId, LocationTable};

/// The Python function most often seen innermost, as `name (file.py)`, and its share of all samples.
pub(super) fn hottest_python<'a>(
    stacks: impl Iterator<Item = (&'a [LocationId], u64)>,
    locations: &LocationTable,
) -> Option<(String, f64)> {
    let mut counts: FxHashMap<(&str, Option<&str>), u64> = FxHashMap::default();
    let mut samples = 0;
    for (stack, count) in stacks {
        samples += count;
        if let Some(frame) = innermost_python(stack, locations) {
            *counts
                .entry((&frame.name, frame.file.as_deref()))
                .or_insert(0) += count;
        }
    }
    // Of two equally hot ones the first by name: a status line must not flicker between them.
    let (function, count) = counts
        .into_iter()
        .max_by(|(a, n), (b, m)| n.cmp(m).then(b.cmp(a)))?;
    let text = match function {
        (name, Some(file)) => format!("{name} ({})", file.rsplit('/').next().unwrap_or(file)),
        (name, None) => name.to_owned(),
    };
    Some((text, count as f64 / samples as f64))
}

fn innermost_python<'a>(stack: &[LocationId], locations: &'a LocationTable) -> Option<&'a Frame> {
    stack
        .iter()
        .flat_map(|&id| locations.frames(id))
        .find(|frame| frame.kind == FrameKind::Python)
}

#[cfg(test)]
mod tests {
    use crate::{
        model::FrameKind,
        profile::testing::{Builder, frame, python},
    };

    #[test]
    fn time_in_a_native_leaf_belongs_to_the_python_function_that_called_it() {
        let mut builder = Builder::new(false);
        builder.add(
            &[
                python("main", "/a/m.py"),
                python("work", "/a/w.py"),
                frame(FrameKind::Native, "dgemm"),
            ],
            3,
        );
        builder.add(&[python("main", "/a/m.py")], 1);
        assert_eq!(
            builder.finish().hottest_python(),
            Some(("work (w.py)".to_owned(), 0.75))
        );
    }

    #[test]
    fn without_python_frames_there_is_none() {
        let mut builder = Builder::new(false);
        builder.add(&[frame(FrameKind::Native, "start_thread")], 3);
        assert_eq!(builder.finish().hottest_python(), None);
    }
}
