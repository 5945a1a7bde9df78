//! Holds what `SECURITY.md` says: its numbers are those of the code, and the tests that it names exist.

#![forbid(unsafe_code)]

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
};

fn workspace() -> &'static Path {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().expect("the package lies in the workspace")
}

/// The rows of the table below a heading: their cells.
fn table(heading: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(workspace().join("SECURITY.md")).expect("it is there");
    let (_, below) = text
        .split_once(&format!("\n## {heading}\n"))
        .unwrap_or_else(|| panic!("SECURITY.md has no heading {heading:?}"));
    let section = below.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        let cells = line.trim_matches('|').split('|');
        cells.map(|cell| cell.trim().to_owned()).collect()
    };
    // The first two are the heading and a line.
    rows.skip(2).map(cells).collect()
}

/// What stands in backticks.
fn code_words(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// `4,096`, `64 KiB`, `10 s`, `20 ms` as a number; times in milliseconds.
fn said(bound: &str) -> Option<u64> {
    let (number, unit) = bound.split_once(' ').unwrap_or((bound, ""));
    let number: u64 = number.replace(',', "").parse().ok()?;
    let factor = match unit {
        "" | "ms" => 1,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "s" => 1000,
        _ => return None,
    };
    Some(number * factor)
}

/// The value of a constant, or of a field of the only struct that has one of this name, as the source has it.
fn coded(source: &str, name: &str) -> Option<u64> {
    let constant = source.lines().find_map(|line| {
        let (_, rest) = line.split_once(&format!("const {name}: "))?;
        rest.split_once(" = ")
            .map(|(_, value)| value.trim_end_matches(';'))
    });
    let field = || {
        let mut values = source.lines().filter_map(|line| {
            let value = line.trim().strip_prefix(&format!("{name}: "))?;
            evaluated(value.trim_end_matches(','))
        });
        values.next()
    };
    constant.map_or_else(field, evaluated)
}

/// `16_384`, `64 << 10`, `Duration::from_secs(10)`; times in milliseconds.
fn evaluated(value: &str) -> Option<u64> {
    let inner = |name: &str| value.strip_prefix(name)?.strip_suffix(')');
    if let Some(seconds) = inner("Duration::from_secs(") {
        return Some(1000 * evaluated(seconds)?);
    }
    if let Some(milliseconds) = inner("Duration::from_millis(") {
        return evaluated(milliseconds);
    }
    match value.split_once(" << ") {
        Some((number, bits)) => Some(evaluated(number)? << evaluated(bits)?),
        None => value.replace('_', "").parse().ok(),
    }
}

#[test]
fn the_bounds_are_those_of_the_code() {
    let rows = table("Bounds");
    assert!(rows.len() >= 40, "{} rows", rows.len());
    for row in rows {
        let [what, bound, place] = &row[..] else {
            panic!("three cells: {row:?}");
        };
        let &[file, name] = &code_words(place)[..] else {
            panic!("a file and a name: {place}");
        };
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("src").join(file);
        let source = fs::read_to_string(path).unwrap_or_else(|error| panic!("{file}: {error}"));
        let coded = coded(&source, name).unwrap_or_else(|| panic!("no {name} in {file}"));
        assert_eq!(said(bound), Some(coded), "{what}: {bound}; {file} {name}");
    }
}

/// Every word in backticks that looks like a test's name stands in some test, as a function or as a trial's name.
#[test]
fn the_tests_that_are_named_exist() {
    let mut sources = String::new();
    for folder in ["profiler/src", "profiler/tests"] {
        for file in rust_files(&workspace().join(folder)) {
            if !file.ends_with("security.rs") {
                sources += &fs::read_to_string(file).expect("readable");
            }
        }
    }
    let promises = table("What is promised");
    assert!(promises.len() >= 10, "{} promises", promises.len());
    let mut missing = BTreeSet::new();
    for row in &promises {
        let [promise, tests] = &row[..] else {
            panic!("two cells: {row:?}");
        };
        assert!(!tests.is_empty(), "nothing tests: {promise}");
        for name in code_words(tests).iter().filter(|name| name.contains('_')) {
            let exists = sources.contains(&format!("fn {name}("))
                || sources.contains(&format!("\"{name}\""));
            if !exists {
                missing.insert((*name).to_owned());
            }
        }
    }
    assert!(missing.is_empty(), "no such tests: {missing:#?}");
}

#[test]
fn numbers_are_read_as_they_are_written() {
    assert_eq!(said("4,096"), Some(4096));
    assert_eq!(said("2 KiB"), Some(2048));
    assert_eq!(said("10 s"), said("10,000 ms"));
    assert_eq!(said("many"), None);
    let source = "pub(super) const A: usize = 64 << 10;\nconst B: Duration = Duration::from_millis(1_500);\n    \
                  c: u64,\n    c: 7_000,\n";
    assert_eq!(coded(source, "A"), Some(65_536));
    assert_eq!(coded(source, "B"), Some(1500));
    assert_eq!(coded(source, "c"), Some(7000));
    assert_eq!(coded(source, "D"), None);
}

/// Every `.rs` file below `folder`.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries =
            fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        for entry in entries {
            let path = entry.expect("a directory entry").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                files.push(path);
            }
        }
    }
    files
}
