//! The function, or the line, a recording spends most of its time in, for a line of text.

use rustc_hash::FxHashMap;

use super::{FirstLines, Granularity};
use crate::model::{Frame, FrameKind, LocationId, LocationTable};

/// What was most often seen innermost of Python code, and its share of all samples: the function as
/// `name (file.py:FIRST LINE)`, or the line as `name (file.py:LINE)`; without the number where it is not known.
pub(super) fn hottest_python<'a>(
    stacks: impl Iterator<Item = (&'a [LocationId], u64)>,
    locations: &'a LocationTable,
    granularity: Granularity,
) -> Option<(String, f64)> {
    // Most frames are the innermost of many stacks: their address is quicker to look up than their text.
    let mut frames: FxHashMap<*const Frame, (&Frame, u64)> = FxHashMap::default();
    let mut samples = 0;
    for (stack, count) in stacks {
        samples += count;
        if let Some(frame) = innermost_python(stack, locations) {
            let innermost = std::ptr::from_ref(frame);
            frames.entry(innermost).or_insert((frame, 0)).1 += count;
        }
    }
    let first_lines = FirstLines::of(frames.values().map(|(frame, _)| *frame));
    let mut counts: FxHashMap<(&str, Option<&str>, Option<u32>), u64> = FxHashMap::default();
    for (frame, count) in frames.into_values() {
        let line = match granularity {
            Granularity::Functions => first_lines.of_frame(frame),
            Granularity::Lines => frame.line,
        };
        let place = (&*frame.name, frame.file.as_deref(), line);
        *counts.entry(place).or_insert(0) += count;
    }
    // Of two equally hot ones the first by name: a status line must not flicker between them.
    let (place, count) = counts
        .into_iter()
        .max_by(|(a, n), (b, m)| n.cmp(m).then(b.cmp(a)))?;
    Some((text(place), count as f64 / samples as f64))
}

fn text((name, file, line): (&str, Option<&str>, Option<u32>)) -> String {
    let file = file.map(|file| file.rsplit('/').next().unwrap_or(file));
    match (file, line) {
        (Some(file), Some(line)) => format!("{name} ({file}:{line})"),
        (Some(file), None) => format!("{name} ({file})"),
        (None, _) => name.to_owned(),
    }
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
        model::{Frame, FrameKind},
        profile::{
            Granularity,
            testing::{Builder, frame, python, python_at},
        },
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
            builder.finish().hottest_python(Granularity::Functions),
            Some(("work (w.py)".to_owned(), 0.75))
        );
    }

    #[test]
    fn without_python_frames_there_is_none() {
        let mut builder = Builder::new(false);
        builder.add(&[frame(FrameKind::Native, "start_thread")], 3);
        let profile = builder.finish();
        for granularity in [Granularity::Functions, Granularity::Lines] {
            assert_eq!(profile.hottest_python(granularity), None);
        }
    }

    #[test]
    fn a_function_has_the_samples_of_all_its_lines() {
        let mut builder = Builder::new(false);
        builder.add(&[python_at("work", "/a/w.py", 140, 146)], 2);
        builder.add(&[python_at("work", "/a/w.py", 140, 151)], 3);
        builder.add(&[python("work", "/a/w.py")], 1);
        builder.add(&[python_at("main", "/a/m.py", 1, 9)], 4);
        let profile = builder.finish();
        assert_eq!(
            profile.hottest_python(Granularity::Functions),
            Some(("work (w.py:140)".to_owned(), 0.6))
        );
        assert_eq!(
            profile.hottest_python(Granularity::Lines),
            Some(("main (m.py:9)".to_owned(), 0.4))
        );
    }

    #[test]
    fn two_functions_of_one_name_are_not_added_up() {
        let mut builder = Builder::new(false);
        builder.add(&[python_at("<lambda>", "/a/w.py", 7, 7)], 2);
        builder.add(&[python_at("<lambda>", "/a/w.py", 9, 9)], 3);
        builder.add(&[python("<lambda>", "/a/w.py")], 3);
        builder.add(&[python("main", "/a/m.py")], 2);
        let hottest = builder.finish().hottest_python(Granularity::Functions);
        assert_eq!(hottest, Some(("<lambda> (w.py)".to_owned(), 0.3)));
    }

    #[test]
    fn a_line_that_is_not_known_is_left_out() {
        let unknown = Frame {
            line: None,
            ..python_at("work", "/a/w.py", 140, 0)
        };
        let mut builder = Builder::new(false);
        builder.add(&[unknown], 1);
        let hottest = builder.finish().hottest_python(Granularity::Lines);
        assert_eq!(hottest, Some(("work (w.py)".to_owned(), 1.0)));
    }
}
