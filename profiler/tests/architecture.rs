//! Holds what `ARCHITECTURE.md` says about who may import whom, who names which crate, and where `unsafe` stands.
//!
//! The two tables are read from the document itself, so that it and the code cannot drift apart.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    fmt::Write as _,
    fs,
    path::{Path, PathBuf},
};

/// Most lines of a Rust file. A longer one holds more than one thing.
const LINES_MAX: usize = 600;
/// Files below `profiler/src` that may contain `unsafe`.
const UNSAFE_FILES: [&str; 3] = [
    "kernel/memory.rs",
    "kernel/ring.rs",
    "privilege/realtime.rs",
];
/// Files below `profiler-trampoline/src`, or the beginnings of their paths, that may contain it: the edges to C and to the
/// interpreter, executable memory, and a descriptor shared without a lock.
const UNSAFE_TRAMPOLINE: [&str; 3] = ["ffi/", "code_memory.rs", "perf_map/slot.rs"];
/// Where printing is allowed besides `cli/`: the last resort of `main`, and a profile that is written to `-`.
const PRINTING_FILES: [&str; 2] = ["main.rs", "output/file.rs"];
/// What printing looks like.
const PRINTING: [&str; 7] = [
    "println!",
    "eprintln!",
    "print!",
    "eprint!",
    "dbg!",
    "io::stdout",
    "io::stderr",
];

/// A Rust source file below `profiler/src`.
struct Source {
    /// Its path from there, such as `kernel/ring.rs`.
    path: String,
    /// Its text without comments and string contents.
    code: String,
}

impl Source {
    /// The module it belongs to: `kernel`.
    fn module(&self) -> &str {
        let first = self.path.split('/').next().unwrap_or_default();
        first.strip_suffix(".rs").unwrap_or(first)
    }

    /// It is compiled for tests and fuzzers only, which look into every module.
    fn is_for_fuzzing(&self) -> bool {
        self.module() == "fuzzing" || self.path.ends_with("/fuzzing.rs")
    }

    /// Its code without the tests at its end; nothing where the file is tests only.
    fn product_code(&self) -> &str {
        if self.is_for_fuzzing() {
            return "";
        }
        let name = self.path.rsplit('/').next().unwrap_or_default();
        if name.ends_with("tests.rs") || name == "testing.rs" || self.path.contains("/tests/") {
            return "";
        }
        let end = self.code.find("#[cfg(test)]\nmod tests {");
        &self.code[..end.unwrap_or(self.code.len())]
    }
}

fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in the workspace")
}

/// Every `.rs` file below `folder`, sorted.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|err| panic!("{}: {err}", folder.display()));
        for entry in entries {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                let name = path.file_name().expect("it has one");
                if name != "target" && name != "node_modules" && name != "corpus" {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

fn sources() -> Vec<Source> {
    let sources = sources_of("profiler");
    assert!(sources.len() > 100, "only {} files found", sources.len());
    sources
}

fn sources_of(package: &str) -> Vec<Source> {
    let root = workspace().join(package).join("src");
    let files = rust_files(&root);
    assert!(!files.is_empty(), "no files in {}", root.display());
    let read = |file: &PathBuf| Source {
        path: file
            .strip_prefix(&root)
            .expect("below the root")
            .to_str()
            .expect("plain names")
            .to_owned(),
        code: code_of(&fs::read_to_string(file).expect("readable")),
    };
    files.iter().map(read).collect()
}

/// The text without comments, and with strings and characters emptied.
fn code_of(text: &str) -> String {
    let mut code = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(next) = rest.chars().next() {
        let skipped = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else if next == '"' {
            string_length(rest)
        } else if rest.starts_with("r\"") || rest.starts_with("r#") {
            raw_string_length(rest)
        } else if next == '\'' {
            character_length(rest)
        } else {
            0
        };
        let kept = if skipped == 0 { next.len_utf8() } else { 0 };
        code.push_str(&rest[..kept]);
        rest = &rest[skipped + kept..];
    }
    code
}

/// Length of the string literal that `text` begins with.
fn string_length(text: &str) -> usize {
    let mut escaped = false;
    for (at, byte) in text.bytes().enumerate().skip(1) {
        match byte {
            _ if escaped => escaped = false,
            b'\\' => escaped = true,
            b'"' => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of the raw string literal that `text` begins with; 0 for a raw identifier.
fn raw_string_length(text: &str) -> usize {
    let hashes = text[1..].bytes().take_while(|&byte| byte == b'#').count();
    let start = 1 + hashes;
    if text.as_bytes().get(start) != Some(&b'"') {
        return 0;
    }
    let end = format!("\"{}", "#".repeat(hashes));
    text[start + 1..]
        .find(&end)
        .map_or(text.len(), |at| start + 1 + at + end.len())
}

/// Length of the character literal that `text` begins with; 0 for a lifetime.
fn character_length(text: &str) -> usize {
    let mut characters = text.char_indices().skip(1);
    match characters.next() {
        Some((_, '\\')) => text[3..].find('\'').map_or(0, |at| at + 4),
        Some(_) => match characters.next() {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        None => 0,
    }
}

/// The paths after `crate::` in the code, groups in braces taken apart: `model::Pid`, `symbols::{…}`.
fn crate_paths(code: &str) -> Vec<String> {
    let mut paths = Vec::new();
    for (at, _) in code.match_indices("crate::") {
        // Not `$crate::`, `some_crate::`.
        let before = code[..at].chars().next_back();
        if before.is_some_and(|c| c == '$' || c == '_' || c.is_alphanumeric()) {
            continue;
        }
        expand(&code[at + "crate::".len()..], "", &mut paths);
    }
    paths
}

/// Adds to `paths` each path that `text` begins with, below `prefix`.
fn expand(text: &str, prefix: &str, paths: &mut Vec<String>) {
    let Some(inner) = text.strip_prefix('{') else {
        let end = text
            .find(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
            .unwrap_or(text.len());
        let path = text[..end].trim_end_matches(':');
        let group = &text[end..];
        if group.starts_with('{') && text[..end].ends_with("::") {
            expand(group, &format!("{prefix}{path}::"), paths);
        } else {
            paths.push(format!("{prefix}{path}"));
        }
        return;
    };
    let mut depth = 0;
    let mut start = 0;
    for (at, character) in inner.char_indices() {
        match character {
            '{' => depth += 1,
            '}' if depth > 0 => depth -= 1,
            ',' | '}' if depth == 0 => {
                let part = inner[start..at].trim();
                if !part.is_empty() {
                    expand(part, prefix, paths);
                }
                start = at + 1;
                if character == '}' {
                    return;
                }
            }
            _ => {}
        }
    }
}

/// The table below a heading of `ARCHITECTURE.md`: the code words of each row's first two cells.
fn table(heading: &str) -> Vec<(Vec<String>, Vec<String>)> {
    let text = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("it is there");
    let (_, below) = text
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("ARCHITECTURE.md has no heading {heading:?}"));
    let words = |cell: &str| -> Vec<String> {
        let odd = cell.split('`').skip(1).step_by(2);
        odd.map(|word| word.trim_end_matches('/').to_owned())
            .collect()
    };
    let section = below.split("\n## ").next().unwrap_or_default();
    let rows: Vec<_> = section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .map(|line| {
            let mut cells = line.trim_matches('|').split('|');
            let mut next = || words(cells.next().unwrap_or_default());
            (next(), next())
        })
        .collect();
    assert!(!rows.is_empty(), "no table below {heading:?}");
    rows
}

/// `whole` is `part`, or lies in it: `symbols::NameDiagnosis` in `symbols`, `kernel/ring.rs` in `kernel`.
fn lies_in(whole: &str, part: &str, separator: &str) -> bool {
    whole
        .strip_prefix(part)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with(separator))
}

/// Does `word` stand in `code`, followed by `after`?
fn names(code: &str, word: &str, after: &str) -> bool {
    let wanted = format!("{word}{after}");
    code.match_indices(&wanted).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':' || c == '$')
    })
}

fn expect_none(what: &str, found: &BTreeSet<String>) {
    let mut list = String::new();
    for line in found {
        let _ = write!(list, "\n  {line}");
    }
    assert!(found.is_empty(), "{what}:{list}");
}

#[test]
fn modules_import_only_what_the_table_allows() {
    let rules = table("Who may import whom");
    let mut modules = BTreeSet::new();
    let mut found = BTreeSet::new();
    for source in sources() {
        let module = source.module();
        if module == "lib" || module == "main" || source.is_for_fuzzing() {
            continue;
        }
        modules.insert(module.to_owned());
        let allowed: Vec<&String> = rules
            .iter()
            .filter(|(who, _)| {
                who.iter().any(|who| {
                    lies_in(&source.path, who, "/") || source.path == format!("{who}.rs")
                })
            })
            .flat_map(|(_, whom)| whom)
            .collect();
        for path in crate_paths(&source.code) {
            let own = lies_in(&path, module, "::");
            if !own && !allowed.iter().any(|allowed| lies_in(&path, allowed, "::")) {
                found.insert(format!("{} imports {path}", source.path));
            }
        }
    }
    for module in &modules {
        if !rules.iter().any(|(who, _)| who.contains(module)) {
            found.insert(format!("the table has no row for {module}"));
        }
    }
    expect_none(
        "imports that the table in ARCHITECTURE.md does not allow",
        &found,
    );
}

/// Paths out of a module's folder begin with `crate::`, or the test above would not see them.
#[test]
fn no_module_reaches_another_one_through_its_parent() {
    let sources = sources();
    let modules: BTreeSet<&str> = sources.iter().map(Source::module).collect();
    let mut found = BTreeSet::new();
    for source in &sources {
        let stem = source.path.trim_end_matches(".rs").trim_end_matches("/mod");
        let depth = stem.split('/').count();
        for (at, _) in source.code.match_indices("super::") {
            if source.code[..at].ends_with("super::") {
                continue;
            }
            let mut path = &source.code[at..];
            let mut steps = 0;
            while let Some(rest) = path.strip_prefix("super::") {
                (path, steps) = (rest, steps + 1);
            }
            let mut paths = Vec::new();
            expand(path, "", &mut paths);
            for path in paths {
                let first = path.split("::").next().unwrap_or_default();
                let elsewhere = modules.contains(first) && first != source.module();
                if steps > depth || steps == depth && elsewhere {
                    found.insert(format!("{}: {path}", source.path));
                }
            }
        }
    }
    expect_none("paths through the root without `crate::`", &found);
}

#[test]
fn crates_are_named_where_the_table_says_only() {
    let rules = table("Who may name which crate");
    let mut found = BTreeSet::new();
    for source in sources() {
        for (crates, places) in &rules {
            if places.iter().any(|place| lies_in(&source.path, place, "/")) {
                continue;
            }
            for name in crates {
                let used = names(&source.code, name, "::") || names(&source.code, name, " as ");
                if used && !source.product_code().is_empty() {
                    found.insert(format!("{} names {name}", source.path));
                }
            }
        }
    }
    expect_none(
        "crates that the table in ARCHITECTURE.md puts elsewhere",
        &found,
    );
}

#[test]
fn only_the_command_line_prints() {
    let mut found = BTreeSet::new();
    for source in sources() {
        if source.module() == "cli" || PRINTING_FILES.contains(&source.path.as_str()) {
            continue;
        }
        for printing in PRINTING {
            if names(source.product_code(), printing, "") {
                found.insert(format!("{}: {printing}", source.path));
            }
        }
    }
    expect_none("printing below `cli`", &found);
}

#[test]
fn unsafe_code_stands_in_the_listed_files_only() {
    let is_unsafe = |source: &Source| {
        let mut words = source
            .code
            .split(|c: char| !(c.is_alphanumeric() || c == '_'));
        words.any(|word| word == "unsafe")
    };
    let mut found = BTreeSet::new();
    for source in sources() {
        if is_unsafe(&source) && !UNSAFE_FILES.contains(&source.path.as_str()) {
            found.insert(source.path);
        }
    }
    for source in sources_of("profiler-trampoline") {
        let mut listed = UNSAFE_TRAMPOLINE.iter();
        if is_unsafe(&source) && !listed.any(|listed| source.path.starts_with(listed)) {
            found.insert(format!("profiler-trampoline: {}", source.path));
        }
    }
    expect_none("`unsafe` in", &found);
    let document = fs::read_to_string(workspace().join("ARCHITECTURE.md")).expect("it is there");
    for file in UNSAFE_FILES.iter().chain(&UNSAFE_TRAMPOLINE) {
        assert!(
            document.contains(&format!("`{file}`")),
            "ARCHITECTURE.md does not list {file}"
        );
    }
}

#[test]
fn no_rust_file_is_longer_than_one_can_keep_in_mind() {
    let mut found = BTreeSet::new();
    for package in [
        "profiler",
        "profiler-common",
        "profiler-ebpf",
        "profiler-trampoline",
        "fuzz",
        "xtask",
    ] {
        for file in rust_files(&workspace().join(package)) {
            let lines = fs::read_to_string(&file).expect("readable").lines().count();
            if lines > LINES_MAX {
                found.insert(format!("{}: {lines} lines", file.display()));
            }
        }
    }
    expect_none(&format!("more than {LINES_MAX} lines"), &found);
}

#[test]
fn imports_are_found_in_all_their_forms() {
    let text = r##"
        use crate::{model::Pid, symbols::{self, perf_map::{PerfMap, parse_line}}};
        use crate::process::*;
        /// [`crate::cli`] is a comment, and so is // crate::cli
        fn f<'a>(s: &'a str) -> char { let _ = "crate::cli"; let _ = r#"crate::"cli"#; crate::kernel::load(); '"' }
    "##;
    let paths = crate_paths(&code_of(text));
    assert_eq!(
        paths,
        [
            "model::Pid",
            "symbols::self",
            "symbols::perf_map::PerfMap",
            "symbols::perf_map::parse_line",
            "process",
            "kernel::load"
        ]
    );
}
