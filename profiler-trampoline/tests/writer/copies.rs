//! Copies of other maps: whole lines, whatever the size, whoever else writes.

use std::{fs, os::unix::fs::symlink, thread};

use pyprof_trampoline::PerfMapError;

use super::stage::{Checker, Scene, Verdict, line_of, map, own_tmp, text, write, write_numbered};

pub(super) const SCENES: &[Scene] = &[
    ("a_copy_of_any_size_is_whole", any_size),
    ("a_torn_last_line_is_not_copied", torn),
    ("long_lines_are_copied", long),
    ("a_source_that_is_no_file_of_ours_is_refused", refused),
    (
        "copies_and_entries_of_other_threads_do_not_mix",
        among_others,
    ),
];

const SOURCE: &str = "/tmp/source";

fn any_size() -> Verdict {
    own_tmp("size=64m")?;
    // CPython 3.13.0 fails at multiples of its buffer of 4,096 bytes.
    for length in [
        0,
        9,
        4095,
        4096,
        4097,
        8192,
        16_384,
        16_385,
        32_768,
        65_536,
        1 << 20,
    ] {
        let mut source = "1 10 entry\n".repeat(length / 11);
        let rest = length - source.len();
        // The rest goes into the last line, so that the size is exactly this one.
        if rest > 0 {
            source.insert_str(source.len().saturating_sub(1), &"x".repeat(rest));
        }
        if !source.is_empty() && !source.ends_with('\n') {
            source.replace_range(source.len() - 1.., "\n");
        }
        assert_eq!(source.len(), length);
        fs::write(SOURCE, &source).unwrap();
        map().init().unwrap();
        let before = text();
        map().copy_from(c"/tmp/source").unwrap();
        assert!(text() == before + &source, "{length}");
    }
    Ok(())
}

fn torn() -> Verdict {
    own_tmp("size=64m")?;
    write(1, "own");
    for whole in ["", "2 10 b\n", &"2 10 b\n".repeat(5000)] {
        let before = text();
        fs::write(SOURCE, format!("{whole}3 10 torn")).unwrap();
        map().copy_from(c"/tmp/source").unwrap();
        assert!(text() == before + whole);
    }
    write(4, "after");
    assert!(text().ends_with("2 10 b\n4 10 after\n"));
    Ok(())
}

fn long() -> Verdict {
    own_tmp("size=64m")?;
    let line = |length: usize| format!("1 10 {}\n", "n".repeat(length));
    let source: String = [10, 16_378, 16_379, 16_380, 100_000, 3, 1_000_000, 5]
        .map(line)
        .concat();
    fs::write(SOURCE, &source).unwrap();
    map().copy_from(c"/tmp/source").unwrap();
    assert!(text() == source);
    Ok(())
}

fn refused() -> Verdict {
    own_tmp("")?;
    write(1, "own");
    let missing = map().copy_from(c"/tmp/not-there").unwrap_err();
    assert_eq!(missing.errno(), libc::ENOENT);
    symlink("/etc/passwd", SOURCE).unwrap();
    assert_eq!(
        map().copy_from(c"/tmp/source").unwrap_err().errno(),
        libc::ELOOP
    );
    fs::remove_file(SOURCE).unwrap();
    // SAFETY: a string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(c"/tmp/source".as_ptr(), 0o600) }, 0);
    assert_eq!(
        map().copy_from(c"/tmp/source"),
        Err(PerfMapError::NotRegular)
    );
    assert!(map().copy_from(c"/tmp").is_err());
    assert_eq!(text(), "1 10 own\n");
    Ok(())
}

fn among_others() -> Verdict {
    const ENTRIES: usize = 3000;
    own_tmp("size=64m")?;
    // The copied ones are the entries of writer 0.
    let source: String = (0..ENTRIES).map(|n| line_of(0, n) + "\n").collect();
    fs::write(SOURCE, source).unwrap();
    thread::scope(|scope| {
        for writer in 1..5 {
            scope.spawn(move || (0..ENTRIES).for_each(|n| write_numbered(writer, n).unwrap()));
        }
        map().copy_from(c"/tmp/source").unwrap();
    });
    let mut checker = Checker::default();
    checker.read(&text());
    checker.assert_complete(5, ENTRIES);
    Ok(())
}
