//! A full disk, and a file that may not grow: the error comes back, half a line does not stay, and things go on when
//! there is room.

use std::{fs, sync::Barrier, thread};

use pyprof_trampoline::PerfMapError;
use rustix::io::Errno;

use super::stage::{
    Checker, Scene, Skip, Verdict, line_of, map, own_tmp, own_tmp_if_possible, path, text,
    write_numbered,
};

pub(super) const SCENES: &[Scene] = &[
    ("a_full_disk_is_an_error_and_leaves_no_half_line", full),
    (
        "many_threads_on_a_full_disk_lose_nothing_that_was_written",
        full_for_many,
    ),
    ("a_copy_that_finds_no_room_leaves_nothing", copy),
    ("a_file_at_its_size_limit_is_an_error", limited),
];

const NO_ROOM: Result<(), PerfMapError> = Err(PerfMapError::Write(Errno::NOSPC));
/// A file that takes the room which is missed later.
const FILLER: &str = "/tmp/filler";

/// Writes until nothing more fits; how many entries did.
fn write_until_full(first: usize) -> usize {
    for n in first.. {
        match write_numbered(1, n) {
            Ok(()) => {}
            full => {
                assert_eq!(full, NO_ROOM);
                return n;
            }
        }
    }
    unreachable!()
}

/// So many entries are in the file, in their order, and nothing else.
fn assert_entries(count: usize) {
    let expected: String = (0..count).map(|n| line_of(1, n) + "\n").collect();
    assert!(
        text() == expected,
        "{} bytes of {}",
        text().len(),
        expected.len()
    );
}

fn full() -> Verdict {
    own_tmp("size=256k")?;
    fs::write(FILLER, vec![0; 128 * 1024]).unwrap();
    let first = write_until_full(0);
    assert!(first > 100, "{first}");
    assert_entries(first);
    // The line that found no room does not find any later, either, and the file stays in order.
    for _ in 0..10 {
        assert_eq!(map().write_entry(1, 1, &[b'n'; 8192]), NO_ROOM);
        assert_entries(first);
    }
    fs::remove_file(FILLER).unwrap();
    let second = write_until_full(first);
    assert!(second > first + 100, "{second}");
    assert_entries(second);
    Ok(())
}

fn full_for_many() -> Verdict {
    const WRITERS: usize = 8;
    const ENTRIES: usize = 1000;
    own_tmp("size=4m")?;
    fs::write(FILLER, vec![0; 3 << 20]).unwrap();
    // All have met errors, and none is writing, when room comes back: at that very moment a line could land behind half
    // of another.
    let pause = Barrier::new(WRITERS);
    let wait_for_room = |pause: &Barrier| {
        if pause.wait().is_leader() {
            fs::remove_file(FILLER).unwrap();
        }
        pause.wait();
    };
    let refused: usize = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let pause = &pause;
                scope.spawn(move || {
                    let mut refused = 0;
                    for n in 0..ENTRIES {
                        while let Err(err) = write_numbered(writer, n) {
                            assert_eq!(Err(err), NO_ROOM);
                            refused += 1;
                            if refused == 100 {
                                wait_for_room(pause);
                            }
                        }
                    }
                    if refused < 100 {
                        wait_for_room(pause); // the others do, too
                    }
                    refused
                })
            })
            .collect();
        writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .sum()
    });
    assert!(refused > 0, "there was room for all");
    // While several write, the beginning of a line may stay, ended.
    let text = text();
    let mut lines = String::new();
    let mut halves = 0;
    for line in text.lines() {
        if line.is_empty() || !line.ends_with("_end") {
            halves += 1;
            assert!(line.len() < 21_000);
        } else {
            lines += line;
            lines.push('\n');
        }
    }
    let mut checker = Checker::default();
    checker.read(&lines);
    checker.assert_complete(WRITERS, ENTRIES);
    println!("{refused} writes found no room, {halves} half lines were ended by others");
    Ok(())
}

fn copy() -> Verdict {
    own_tmp("size=256k")?;
    let source = "1 10 copied\n".repeat(16_000);
    fs::write("/tmp/source", &source).unwrap();
    assert!(write_numbered(1, 0).is_ok());
    for _ in 0..3 {
        let full = map().copy_from(c"/tmp/source");
        assert_eq!(full, Err(PerfMapError::Copy(Errno::NOSPC)));
        assert_entries(1);
    }
    fs::write("/tmp/source", "1 10 copied\n").unwrap();
    map().copy_from(c"/tmp/source").unwrap();
    assert_eq!(text(), line_of(1, 0) + "\n1 10 copied\n");
    Ok(())
}

fn limited() -> Verdict {
    own_tmp_if_possible();
    let limit = |bytes: libc::rlim_t| {
        let limit = libc::rlimit {
            rlim_cur: bytes,
            rlim_max: libc::RLIM_INFINITY,
        };
        // SAFETY: a structure that outlives the call.
        if unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) } == 0 {
            Ok(())
        } else {
            Err(Skip("the limit of file sizes cannot be changed".to_owned()))
        }
    };
    // SAFETY: no handler is installed.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    limit(10_007)?;
    let first = write_until_full(0);
    assert!(first > 10);
    assert_entries(first);
    limit(100_000)?;
    let second = write_until_full(first);
    assert!(second > first);
    assert_entries(second);
    // Exactly at the limit not a single byte fits: the kernel has another error for that.
    let length = fs::metadata(path()).unwrap().len();
    limit(length)?;
    assert_eq!(
        write_numbered(1, second),
        Err(PerfMapError::Write(Errno::FBIG))
    );
    assert_entries(second);
    Ok(())
}
