//! Short texts for the frames of a picture. Two functions never share one, or a picture would draw them as one.

use std::ops::RangeFrom;

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    functions::{Code, Function},
    name,
};
use crate::{model::FrameKind, profile::Granularity};

/// Longest shown name, in characters.
const NAME_CHARS_MAX: usize = 256;
/// Longest shown file or module, in characters.
const FILE_CHARS_MAX: usize = 128;

/// What the frame under all others is called by the drawing library.
const ROOT: &str = "all";

/// A label for each function, in their order: `name (file.py)` for Python, `name [libx.so]` for compiled code. Python
/// functions that are told apart by line are `name (file.py:LINE)`, where the line is known.
///
/// Where two would be equal, as much of the files' paths is added as tells them apart, else the line that each begins
/// in, else a number.
pub(super) fn labels<'p>(
    functions: impl Iterator<Item = Function<'p>>,
    granularity: Granularity,
) -> Vec<String> {
    let functions: Vec<Function<'p>> = functions.collect();
    let mut labels: Vec<String> = functions
        .iter()
        .map(|function| label(function, 0, None))
        .collect();
    let mut parts = vec![0; functions.len()];
    for group in equal(&labels) {
        let telling = telling_parts(group.iter().map(|&index| &functions[index]));
        for index in group {
            parts[index] = telling;
            labels[index] = label(&functions[index], telling, None);
        }
    }
    match granularity {
        // A line in a label is one that was executing: it cannot be that of the function, too.
        Granularity::Lines => {
            for (index, function) in functions.iter().enumerate() {
                if let Function::Code(Code { line, .. }) = function
                    && line.is_some()
                {
                    labels[index] = label(function, parts[index], *line);
                }
            }
        }
        Granularity::Functions => {
            for index in equal(&labels).into_iter().flatten() {
                if let Function::Code(Code { first_line, .. }) = functions[index] {
                    labels[index] = label(&functions[index], parts[index], first_line);
                }
            }
        }
    }
    number_the_rest(&functions, &mut labels);
    labels
}

/// The fewest parts of the files' paths that tell most of these apart: functions of one label, told apart by file.
fn telling_parts<'f>(functions: impl Iterator<Item = &'f Function<'f>>) -> usize {
    // Of a function that is there with many of its lines, one is enough.
    let mut files: FxHashMap<(FrameKind, Option<&str>), &Function<'_>> = FxHashMap::default();
    for function in functions {
        if let Function::Code(Code { kind, file, .. }) = function {
            files.entry((*kind, *file)).or_insert(function);
        }
    }
    if files.len() < 2 {
        return 0;
    }
    let depths = files.values().map(|function| path_depth(function)).max();
    let distinct = |&parts: &usize| {
        let labels: FxHashSet<String> = files
            .values()
            .map(|function| label(function, parts, None))
            .collect();
        labels.len()
    };
    (0..=depths.unwrap_or(0))
        .rev()
        .max_by_key(distinct)
        .unwrap_or(0)
}

/// What is left equal (names that differ past the longest shown, or in nothing a label shows) gets a number, in the
/// order of the functions themselves and not of their appearance.
fn number_the_rest(functions: &[Function<'_>], labels: &mut [String]) {
    let mut taken: FxHashSet<String> = labels.iter().cloned().collect();
    let mut numbered = |label: &str, numbers: &mut RangeFrom<u32>| {
        let candidates = numbers.map(|number| format!("{label} #{number}"));
        let mut free = candidates.filter(|candidate| taken.insert(candidate.clone()));
        free.next().unwrap_or_default()
    };
    for mut group in equal(labels) {
        group.sort_unstable_by_key(|&index| functions[index]);
        let mut numbers = 2..;
        for index in group.into_iter().skip(1) {
            labels[index] = numbered(&labels[index], &mut numbers);
        }
    }
    if let Some(like_root) = labels.iter_mut().find(|label| *label == ROOT) {
        *like_root = numbered(ROOT, &mut (2..));
    }
}

/// Indices of labels that occur more than once, in a fixed order.
fn equal(labels: &[String]) -> Vec<Vec<usize>> {
    let mut groups: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
    for (index, label) in labels.iter().enumerate() {
        groups.entry(label).or_default().push(index);
    }
    let mut groups: Vec<(&str, Vec<usize>)> = groups
        .into_iter()
        .filter(|(_, group)| group.len() > 1)
        .collect();
    groups.sort_unstable();
    groups.into_iter().map(|(_, group)| group).collect()
}

fn path_depth(function: &Function<'_>) -> usize {
    match function {
        Function::Code(Code {
            file: Some(file), ..
        }) => file.split('/').count(),
        _ => 0,
    }
}

/// A label with `more_parts` parts of the file's path than a short one has, and with this line behind the file.
fn label(function: &Function<'_>, more_parts: usize, line: Option<u32>) -> String {
    let clean = |raw| name::clean(raw, NAME_CHARS_MAX);
    let text = match *function {
        Function::Code(code) => code_label(code, more_parts, line),
        Function::Process {
            pid,
            name: Some(name),
        } => format!("{} [{pid}]", clean(&name.label)),
        Function::Process { pid, name: None } => format!("pid {pid} [process]"),
        Function::Thread { tid, name } => {
            format!("{} [thread {tid}]", clean(&String::from_utf8_lossy(name)))
        }
        Function::Truncated => "[truncated]".to_owned(),
        Function::NotMerged => "[order unknown]".to_owned(),
        Function::NoFrames => "[no frames]".to_owned(),
    };
    name::frame(&text)
}

fn code_label(code: Code<'_>, more_parts: usize, line: Option<u32>) -> String {
    let Code {
        kind,
        name,
        file,
        module,
        first_line: _,
        line: _,
    } = code;
    // An address in a file is called by that file's name already.
    let is_address = |module: &&str| {
        name.strip_prefix(*module)
            .is_some_and(|rest| rest.starts_with('+'))
    };
    let module = module.filter(|module| !is_address(module));
    let module = if kind == FrameKind::Kernel {
        Some("kernel")
    } else {
        module
    };
    let parts = if kind == FrameKind::Python {
        more_parts + 1
    } else {
        more_parts
    };
    let mut label = name::clean(name, NAME_CHARS_MAX);
    if let Some(file) = file.filter(|_| parts > 0) {
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        label = format!("{label} ({}{line})", end_of_path(file, parts));
    }
    if let Some(module) = module {
        label = format!("{label} [{}]", name::clean(module, FILE_CHARS_MAX));
    }
    label
}

/// The last `parts` parts of a path. A long one loses its front: the file's own name is at the end.
fn end_of_path(path: &str, parts: usize) -> String {
    let start = path
        .rmatch_indices('/')
        .nth(parts - 1)
        .map_or(0, |(slash, _)| slash + 1);
    let end = &path[start..];
    let surplus = end.chars().count().saturating_sub(FILE_CHARS_MAX);
    let kept: String = end.chars().skip(surplus).collect();
    let mark = if surplus > 0 { "…" } else { "" };
    format!("{mark}{}", name::clean(&kept, usize::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code<'a>(
        kind: FrameKind,
        name: &'a str,
        file: Option<&'a str>,
        module: Option<&'a str>,
    ) -> Function<'a> {
        Function::Code(Code {
            kind,
            name,
            file,
            module,
            first_line: None,
            line: None,
        })
    }

    fn python<'a>(name: &'a str, file: &'a str) -> Function<'a> {
        code(FrameKind::Python, name, Some(file), None)
    }

    fn of(functions: &[Function<'_>]) -> Vec<String> {
        labels(functions.iter().copied(), Granularity::Functions)
    }

    #[test]
    fn a_label_is_short_and_says_where() {
        let functions = [
            python("A.run", "/srv/app/worker.py"),
            code(
                FrameKind::Native,
                "dgemm",
                Some("/src/gemm.c"),
                Some("libblas.so"),
            ),
            code(FrameKind::Native, "libx.so+0x10", None, Some("libx.so")),
            code(FrameKind::Kernel, "vfs_read", None, None),
            code(FrameKind::Python, "exec", None, None),
        ];
        let labels = of(&functions);
        assert_eq!(
            labels,
            [
                "A.run (worker.py)",
                "dgemm [libblas.so]",
                "libx.so+0x10",
                "vfs_read [kernel]",
                "exec"
            ]
        );
    }

    #[test]
    fn equal_labels_get_as_much_path_as_tells_them_apart() {
        let labels = of(&[
            python("run", "/a/x/w.py"),
            python("run", "/b/x/w.py"),
            python("run", "/a/other.py"),
        ]);
        assert_eq!(
            labels,
            ["run (a/x/w.py)", "run (b/x/w.py)", "run (other.py)"]
        );
        let static_functions = [
            code(FrameKind::Native, "init", Some("/src/a.c"), Some("libx.so")),
            code(FrameKind::Native, "init", Some("/src/b.c"), Some("libx.so")),
        ];
        assert_eq!(
            of(&static_functions),
            ["init (a.c) [libx.so]", "init (b.c) [libx.so]"]
        );
    }

    /// A Python function that begins in a line, and was executing another.
    fn python_at<'a>(
        name: &'a str,
        file: &'a str,
        first_line: Option<u32>,
        line: Option<u32>,
    ) -> Function<'a> {
        Function::Code(Code {
            kind: FrameKind::Python,
            name,
            file: Some(file),
            module: None,
            first_line,
            line,
        })
    }

    #[test]
    fn functions_of_one_name_in_one_file_are_told_apart_by_their_first_lines() {
        let functions = [
            python_at("inner", "/a/w.py", Some(12), None),
            python_at("inner", "/a/w.py", Some(30), None),
            python_at("inner", "/a/w.py", None, None),
            python_at("inner", "/b/w.py", Some(12), None),
            python_at("outer", "/b/w.py", Some(11), None),
        ];
        assert_eq!(
            of(&functions),
            [
                "inner (a/w.py:12)",
                "inner (a/w.py:30)",
                "inner (a/w.py)",
                "inner (b/w.py)",
                "outer (w.py)"
            ]
        );
    }

    #[test]
    fn lines_stand_behind_the_file_and_all_lines_of_a_function_have_the_same_path() {
        let functions = [
            python_at("run", "/a/w.py", Some(2), Some(3)),
            python_at("run", "/a/w.py", Some(2), Some(4)),
            python_at("run", "/b/w.py", Some(7), Some(9)),
            python_at("main", "/b/w.py", Some(20), Some(21)),
            python_at("main", "/b/w.py", Some(20), Some(22)),
            code(FrameKind::Native, "read", None, Some("libc.so.6")),
        ];
        assert_eq!(
            labels(functions.into_iter(), Granularity::Lines),
            [
                "run (a/w.py:3)",
                "run (a/w.py:4)",
                "run (b/w.py:9)",
                "main (w.py:21)",
                "main (w.py:22)",
                "read [libc.so.6]"
            ]
        );
    }

    #[test]
    fn told_apart_by_line_a_first_line_never_stands_for_one_that_is_not_known() {
        let functions = [
            python_at("f", "/a/w.py", Some(30), None),
            python_at("f", "/a/w.py", Some(12), None),
            python_at("f", "/a/w.py", Some(12), Some(12)),
        ];
        assert_eq!(
            labels(functions.into_iter(), Granularity::Lines),
            ["f (w.py) #2", "f (w.py)", "f (w.py:12)"]
        );
    }

    #[test]
    fn names_that_differ_only_where_they_are_cut_are_numbered() {
        let (a, b) = ("x".repeat(300) + "a", "x".repeat(300) + "b");
        let labels = of(&[python(&b, "/m.py"), python(&a, "/m.py")]);
        assert!(labels[1].ends_with("… (m.py)"), "{labels:?}");
        assert!(labels[0].ends_with("… (m.py) #2"), "{labels:?}");
    }

    #[test]
    fn a_function_is_not_taken_for_the_frame_under_all_others() {
        let functions =
            [FrameKind::Jit, FrameKind::Native].map(|kind| code(kind, "all", None, None));
        assert_eq!(of(&functions), ["all #2", "all #3"]);
        assert_eq!(of(&functions[..1]), ["all #2"]);
    }

    #[test]
    fn different_kinds_of_code_never_share_a_label() {
        let labels = of(&[
            code(FrameKind::Native, "read", None, None),
            code(FrameKind::Jit, "read", None, None),
            code(FrameKind::Python, "read", None, None),
        ]);
        assert_eq!(labels, ["read #2", "read #3", "read"]);
    }
}
