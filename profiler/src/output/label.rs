//! Short texts for the frames of a picture. Two functions never share one, or a picture would draw them as one.

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    functions::{Code, Function},
    name,
};
use crate::model::FrameKind;

/// Longest shown name, in characters.
const NAME_CHARS_MAX: usize = 256;
/// Longest shown file or module, in characters.
const FILE_CHARS_MAX: usize = 128;

/// What the frame under all others is called by the drawing library.
const ROOT: &str = "all";

/// A label for each function, in their order: `name (file.py)` for Python, `name [libx.so]` for compiled code.
///
/// Where two would be equal, as much of the files' paths is added as tells them apart, else a number.
pub(super) fn labels<'p>(functions: impl Iterator<Item = Function<'p>>) -> Vec<String> {
    let functions: Vec<Function<'p>> = functions.collect();
    let mut labels: Vec<String> = functions
        .iter()
        .map(|function| label(function, 0))
        .collect();
    for group in equal(&labels) {
        let depths = group
            .iter()
            .map(|&index| path_depth(&functions[index]))
            .max()
            .unwrap_or(0);
        // The fewest parts of the path that tell most of them apart.
        let distinct = |&parts: &usize| {
            let labels: FxHashSet<String> =
                group.iter().map(|&i| label(&functions[i], parts)).collect();
            labels.len()
        };
        let parts = (0..=depths).rev().max_by_key(distinct).unwrap_or(0);
        for index in group {
            labels[index] = label(&functions[index], parts);
        }
    }
    number_the_rest(&functions, &mut labels);
    labels
}

/// What is left equal (names that differ past the longest shown, or in nothing a label shows) gets a number, in the
/// order of the functions themselves and not of their appearance.
fn number_the_rest(functions: &[Function<'_>], labels: &mut [String]) {
    let mut taken: FxHashSet<String> = labels.iter().cloned().collect();
    let mut numbered = |label: &str| {
        let candidates = (2..).map(|number| format!("{label} #{number}"));
        let mut free = candidates.filter(|candidate| taken.insert(candidate.clone()));
        free.next().unwrap_or_default()
    };
    for mut group in equal(labels) {
        group.sort_unstable_by_key(|&index| functions[index]);
        for index in group.into_iter().skip(1) {
            labels[index] = numbered(&labels[index]);
        }
    }
    if let Some(like_root) = labels.iter_mut().find(|label| *label == ROOT) {
        *like_root = numbered(ROOT);
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

/// A label with `more_parts` parts of the file's path than a short one has.
fn label(function: &Function<'_>, more_parts: usize) -> String {
    let clean = |raw| name::clean(raw, NAME_CHARS_MAX);
    let text = match *function {
        Function::Code(code) => code_label(code, more_parts),
        Function::Process {
            pid,
            name: Some(name),
        } => format!("{} [{pid}]", clean(&name.label)),
        Function::Process { pid, name: None } => format!("pid {pid} [process]"),
        Function::Thread { tid, name } => {
            format!("{} [thread {tid}]", clean(&String::from_utf8_lossy(name)))
        }
        Function::Truncated => "[truncated]".to_owned(),
        Function::NoFrames => "[no frames]".to_owned(),
    };
    name::frame(&text)
}

fn code_label(code: Code<'_>, more_parts: usize) -> String {
    let Code {
        kind,
        name,
        file,
        module,
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
        label = format!("{label} ({})", end_of_path(file, parts));
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
        })
    }

    fn python<'a>(name: &'a str, file: &'a str) -> Function<'a> {
        code(FrameKind::Python, name, Some(file), None)
    }

    fn of(functions: &[Function<'_>]) -> Vec<String> {
        labels(functions.iter().copied())
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
