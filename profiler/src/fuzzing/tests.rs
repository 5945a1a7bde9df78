//! The corpus, as tests: what a fuzzer once found stays found.

use std::{fs, panic::catch_unwind, path::Path};

/// Runs a target on every file of its corpus.
fn run(target: &str, body: fn(&[u8])) {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let corpus = workspace.join("fuzz/corpus").join(target);
    let files = fs::read_dir(&corpus).unwrap_or_else(|error| panic!("{corpus:?}: {error}"));
    let mut paths: Vec<_> = files.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    assert!(paths.len() >= 5, "{} files in {corpus:?}", paths.len());
    for path in paths {
        let bytes = fs::read(&path).unwrap();
        let done = catch_unwind(|| body(&bytes));
        assert!(done.is_ok(), "the message is above; it was {path:?}");
    }
}

/// What the corpus is for: this file's entries overlap, and every third one names itself.
#[test]
fn entries_that_overlap_or_name_themselves_are_counted() {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let file = workspace.join("fuzz/corpus/elf/overlapping-frames");
    let compiled = crate::unwind::compile(&fs::read(file).unwrap()).unwrap();
    let stats = compiled.table.stats;
    assert_eq!(stats.malformed_entries, 20, "{stats:?}");
    assert!(stats.overlapping_functions >= 35, "{stats:?}");
}

#[test]
fn corpus_of_code_objects() {
    run("code_objects", super::code_objects);
}

#[test]
fn corpus_of_elf_files() {
    run("elf", super::elf);
}

#[test]
fn corpus_of_elf_files_with_symbols() {
    run("symbols", super::symbols);
}

#[test]
fn corpus_of_what_the_symbol_process_says() {
    run("symbol_process", super::symbol_process);
}

#[test]
fn corpus_of_elf_files_that_name_functions() {
    run("elf_names", super::elf_names);
}

#[test]
fn corpus_of_names_in_outputs() {
    run("output", super::output);
}

#[test]
fn corpus_of_perf_maps() {
    run("perf_map", super::perf_map);
}

#[test]
fn corpus_of_texts_in_proc() {
    run("procfs", super::procfs);
}

#[test]
fn corpus_of_samples() {
    run("sample", super::sample);
}
