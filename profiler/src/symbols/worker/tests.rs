//! The processes, each of them this test program once more.

use std::{
    fs,
    time::{Duration, Instant},
};

use super::*;
use crate::{
    model::Pid,
    process::{
        CopyOf, ElfFile,
        elf_testing::{TestSection, elf_of, symbol},
    },
};

const TIME: Duration = Duration::from_secs(5);

#[test]
fn acts_as_what_it_is_called() {
    if let Some(role) = std::env::var_os(tests_role()) {
        run_if_called(&role);
        std::process::exit(0);
    }
}

fn small_file() -> fs::File {
    use std::os::unix::fs::FileExt as _;
    let mut text = TestSection::new(".text", object::elf::SHT_NOBITS, vec![0; 0x1000]);
    text.flags = 6;
    text.address = 0x1000;
    let mut symbols = TestSection::new(".symtab", object::elf::SHT_SYMTAB, symbol(0, 0, 0, 0));
    symbols.content.extend(symbol(1, 1, 0x1000, 16));
    symbols.link = 3;
    let strings = TestSection::new(".strtab", object::elf::SHT_STRTAB, *b"\0_Z3fooi\0");
    let file = tempfile::tempfile().expect("temporary file");
    let bytes = elf_of(&[text, symbols, strings], None);
    file.write_all_at(&bytes, 0).expect("write");
    file
}

/// Asks for the one function of that file.
fn ask(connection: &mut Connection, number: u32) -> Result<Answer, Failure> {
    let file = small_file();
    let elf = ElfFile::parse(&file).expect("parses");
    let copy = elf.copy_of(CopyOf::Symbols).expect("copies");
    let images = [Image {
        part: Part::Own,
        copy: &copy,
    }];
    connection.find(number, &images, false, &[0x1004, 0x2000], TIME)
}

fn assert_found(answer: Result<Answer, Failure>) {
    let Ok(Answer::Found(places)) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(places[0].frames[0].name, "foo(int)");
    assert!(places[1].frames.is_empty());
}

fn status_of(pid: Pid) -> Option<String> {
    fs::read_to_string(format!("/proc/{pid}/status")).ok()
}

fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_mins(1), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_symbol_process_answers_and_is_there_again_after_it_was_ended() {
    let mut connection = Connection::new(SymbolProcess::start());
    assert_found(ask(&mut connection, 1));
    let first = connection.pid().expect("it runs");
    rustix::process::kill_process(
        rustix::process::Pid::from_raw(first.0 as i32).expect("a pid"),
        rustix::process::Signal::KILL,
    )
    .unwrap_or_else(|error| panic!("only root may end another user's: {error}"));
    let lost = ask(&mut connection, 2);
    assert!(matches!(lost, Err(Failure::Ended(9))), "{lost:?}");
    assert_eq!(connection.stopped(), 1);
    assert_found(ask(&mut connection, 2));
    assert_ne!(connection.pid(), Some(first));
}

#[test]
fn the_symbol_process_has_no_rights() {
    let mut connection = Connection::new(SymbolProcess::start());
    assert_found(ask(&mut connection, 1));
    let pid = connection.pid().expect("it runs");
    // The test program has a second thread, which only waits.
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("it lives");
    let mut threads = threads.filter_map(|thread| {
        let status = thread.ok()?.path().join("status");
        fs::read_to_string(status).ok()
    });
    let status = threads.find(|status| status.contains("pyprof:symbols"));
    let status = status.expect("it has its name");
    let value = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        line.expect("every kernel has it").trim().to_owned()
    };
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapAmb:"] {
        assert_eq!(value(set).trim_start_matches('0'), "", "{set}");
    }
    assert_eq!(value("NoNewPrivs:"), "1");
    assert_eq!(value("Seccomp:"), "2");
    if rustix::process::geteuid().is_root() {
        assert!(value("Uid:").starts_with("65534"), "{status}");
    }
    let files = format!("/proc/{}/fd", connection.pid().expect("it runs"));
    if let Ok(files) = fs::read_dir(files) {
        let open: Vec<_> = files
            .filter_map(|file| fs::read_link(file.ok()?.path()).ok())
            .filter(|path| !path.starts_with("/dev/null"))
            .collect();
        assert!(
            open.iter()
                .all(|path| path.to_string_lossy().starts_with("socket:")),
            "{open:?}"
        );
    }
}

#[test]
fn nothing_stays_behind() {
    let mut connection = Connection::new(SymbolProcess::start());
    assert_found(ask(&mut connection, 1));
    let process = connection.pid().expect("it runs");
    drop(connection);
    wait_until("the symbol process has ended", || {
        status_of(process).is_none_or(|status| status.contains("State:\tZ"))
    });
}

#[test]
fn a_process_that_does_not_answer_is_ended() {
    let mut connection = Connection::new(SymbolProcess::start());
    assert_found(ask(&mut connection, 1));
    let file = small_file();
    let elf = ElfFile::parse(&file).expect("parses");
    let copy = elf.copy_of(CopyOf::Symbols).expect("copies");
    let images = [Image {
        part: Part::Own,
        copy: &copy,
    }];
    // No time at all: whatever it has done by then is too much.
    let late = connection.find(2, &images, false, &[0x1004; PLACES_MAX], Duration::ZERO);
    match late {
        Err(Failure::TooLong) => assert_eq!(connection.stopped(), 1),
        // It was faster than the first look at the clock.
        answer => assert!(answer.is_ok(), "{answer:?}"),
    }
    assert_found(ask(&mut connection, 3));
}
