//! Reads folded stacks: which functions the time went to.

use std::collections::{HashMap, HashSet};

/// Samples of one function.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Heat {
    /// It was the innermost frame.
    pub(crate) own: u64,
    /// It was anywhere in the stack, counted once a stack.
    pub(crate) total: u64,
}

/// Functions with their samples, those with the most samples of their own first, and
/// the number of samples in all.
pub(crate) fn hottest(text: &str) -> (Vec<(&str, Heat)>, u64) {
    let mut heats: HashMap<&str, Heat> = HashMap::new();
    let mut samples = 0;
    for (stack, count) in stacks(text) {
        samples += count;
        let frames: HashSet<&str> = stack.split(';').collect();
        for frame in frames {
            heats.entry(frame).or_default().total += count;
        }
        if let Some(leaf) = stack.rsplit(';').next() {
            heats.entry(leaf).or_default().own += count;
        }
    }
    let mut sorted: Vec<_> = heats.into_iter().collect();
    sorted.sort_by_key(|&(name, heat)| (std::cmp::Reverse((heat.own, heat.total)), name));
    (sorted, samples)
}

/// Frames of Python functions in all samples together.
pub(crate) fn python_frames(text: &str) -> u64 {
    let python = |stack: &str| {
        let frames = stack.split(';');
        frames.filter(|frame| frame.starts_with("py::")).count() as u64
    };
    stacks(text)
        .map(|(stack, count)| count * python(stack))
        .sum()
}

/// Every stack with its samples.
fn stacks(text: &str) -> impl Iterator<Item = (&str, u64)> {
    text.lines().filter_map(|line| {
        let (stack, count) = line.rsplit_once(' ')?;
        Some((stack, count.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_frames_count_as_often_as_they_were_sampled() {
        let text = "py::a:/x.py;py::a:/x.py;main 3\n_start;main 5\npy::b:/x.py 1\n";
        assert_eq!(python_frames(text), 7);
    }

    #[test]
    fn recursion_counts_once_a_stack() {
        let (functions, samples) = hottest("main;f;f 3\nmain;g 1\n");
        assert_eq!(samples, 4);
        assert_eq!(functions[0], ("f", Heat { own: 3, total: 3 }));
        assert_eq!(functions[1], ("g", Heat { own: 1, total: 1 }));
        assert_eq!(functions[2], ("main", Heat { own: 0, total: 4 }));
    }
}
