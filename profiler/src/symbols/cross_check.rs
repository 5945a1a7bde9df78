//! The two ways to Python frames against each other: those of the interpreter, and trampolines named by the perf map.

use crate::model::{Frame, FrameKind};

/// Disagreements that are kept to be shown.
const SHOWN_MAX: usize = 3;
/// Frames of one that are shown, from the first that differs on.
const SHOWN_FRAMES_MAX: usize = 3;

/// How samples compared that have both.
#[derive(Clone, Debug, Default)]
pub struct CrossCheck {
    /// Samples compared.
    pub compared: u64,
    /// Those in which both say the same.
    pub agreed: u64,
    /// Those that were taken while a function was being entered or left: its trampoline is on the stack, and its frame is
    /// not there yet, or not any more. All others say the same.
    pub at_a_call: u64,
    /// Those in which one of the two lacks a name: code that was freed before it was read, or that the perf map did not
    /// name yet. They say nothing.
    pub nameless: u64,
    /// Those in which functions next to the root have no trampoline, and all others say the same: trampolines were switched
    /// on after these functions had begun.
    pub outer_missing: u64,
    /// The first of the others, ready to be shown.
    pub disagreements: Vec<String>,
}

impl CrossCheck {
    /// Compares the frames of one sample, innermost first. `trampolines`: what the perf map names each of them.
    pub(super) fn compare<'f>(
        &mut self,
        python: impl Iterator<Item = &'f Frame>,
        trampolines: &[Option<Frame>],
    ) {
        if trampolines.is_empty() {
            return;
        }
        let python: Vec<&Frame> = python.collect();
        if python.is_empty() {
            return;
        }
        self.compared += 1;
        if agree(&python, trampolines) {
            self.agreed += 1;
        } else if trampolines.len() == python.len() + 1 && agree(&python, &trampolines[1..]) {
            self.at_a_call += 1;
        } else if lacks_outer(&python, trampolines) {
            self.outer_missing += 1;
        } else if has_gaps(&python, trampolines) {
            self.nameless += 1;
        } else if self.disagreements.len() < SHOWN_MAX {
            self.disagreements.push(describe(&python, trampolines));
        }
    }
}

fn agree(python: &[&Frame], trampolines: &[Option<Frame>]) -> bool {
    python.len() == trampolines.len()
        && python
            .iter()
            .zip(trampolines)
            .all(|(python, trampoline)| is_same(python, trampoline.as_ref()))
}

/// The trampolines are those of the innermost functions, and one more at most, of a function that is being entered or left.
fn lacks_outer(python: &[&Frame], trampolines: &[Option<Frame>]) -> bool {
    [trampolines, &trampolines[1..]].iter().any(|inner| {
        !inner.is_empty() && inner.len() < python.len() && agree(&python[..inner.len()], inner)
    })
}

fn has_gaps(python: &[&Frame], trampolines: &[Option<Frame>]) -> bool {
    trampolines.iter().any(Option::is_none) || python.iter().any(|frame| frame.miss.is_some())
}

fn is_same(python: &Frame, trampoline: Option<&Frame>) -> bool {
    trampoline.is_some_and(|other| {
        other.kind == FrameKind::Python && other.name == python.name && other.file == python.file
    })
}

/// Where they begin to differ, seen from the outermost frame.
fn describe(python: &[&Frame], trampolines: &[Option<Frame>]) -> String {
    let pairs = python.iter().rev().zip(trampolines.iter().rev());
    let same = pairs
        .take_while(|(python, trampoline)| is_same(python, trampoline.as_ref()))
        .count();
    let first = |names: Vec<&str>| match names.as_slice() {
        [] => "nothing".to_owned(),
        names => names.join(" > "),
    };
    let interpreter = python.iter().rev().skip(same).take(SHOWN_FRAMES_MAX);
    let interpreter = first(interpreter.map(|frame| &*frame.name).collect());
    let map = trampolines.iter().rev().skip(same).take(SHOWN_FRAMES_MAX);
    let map = first(
        map.map(|frame| frame.as_ref().map_or("(no name)", |it| &*it.name))
            .collect(),
    );
    let below = same
        .checked_sub(1)
        .and_then(|outer| python.iter().rev().nth(outer))
        .map_or("at the root", |frame| &*frame.name);
    format!("after {same} equal frames ({below}): interpreter {interpreter}; perf map {map}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(name: &str) -> Frame {
        Frame {
            kind: FrameKind::Python,
            name: name.into(),
            file: Some("/m.py".into()),
            line: Some(3),
            first_line: Some(1),
            module: None,
            miss: None,
        }
    }

    fn compare(check: &mut CrossCheck, python: &[&str], map: &[Option<&str>]) {
        let python: Vec<Frame> = python.iter().map(|name| frame(name)).collect();
        let map: Vec<Option<Frame>> = map
            .iter()
            .map(|name| {
                name.map(|name| Frame {
                    line: None,
                    first_line: None,
                    ..frame(name)
                })
            })
            .collect();
        check.compare(python.iter(), &map);
    }

    #[test]
    fn samples_agree_when_every_function_does() {
        let mut check = CrossCheck::default();
        compare(&mut check, &["b", "a"], &[Some("b"), Some("a")]);
        compare(&mut check, &["a"], &[Some("b"), Some("a")]);
        compare(&mut check, &["c", "a"], &[Some("b"), Some("a")]);
        compare(&mut check, &["b", "a"], &[None, Some("a")]);
        compare(&mut check, &["b", "a"], &[Some("a")]);
        assert_eq!((check.compared, check.agreed, check.at_a_call), (5, 1, 1));
        assert_eq!(check.nameless, 1);
        assert_eq!(check.disagreements.len(), 2);
        assert_eq!(
            check.disagreements[0],
            "after 1 equal frames (a): interpreter c; perf map b"
        );
    }

    #[test]
    fn functions_that_had_begun_before_trampolines_were_on_are_no_disagreement() {
        let mut check = CrossCheck::default();
        compare(&mut check, &["c", "b", "a"], &[Some("c"), Some("b")]);
        compare(&mut check, &["c", "b", "a"], &[Some("c")]);
        // A function that is being entered.
        compare(&mut check, &["b", "a"], &[Some("c"), Some("b")]);
        assert_eq!((check.compared, check.outer_missing), (3, 3));
        // Another function, and one in the midst.
        compare(&mut check, &["c", "b", "a"], &[Some("d")]);
        compare(&mut check, &["c", "b", "a"], &[Some("b")]);
        compare(&mut check, &["c", "b", "a"], &[Some("c"), Some("a")]);
        assert_eq!((check.outer_missing, check.disagreements.len()), (3, 3));
    }

    #[test]
    fn samples_with_one_of_the_two_are_not_compared() {
        let mut check = CrossCheck::default();
        compare(&mut check, &["a"], &[]);
        compare(&mut check, &[], &[Some("a")]);
        assert_eq!(check.compared, 0);
    }
}
