//! Many writers, and a reader that follows the file while it grows.

use std::{
    fs::File,
    io::{Read as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Instant,
};

use super::stage::{Checker, Scene, Verdict, map, own_tmp_if_possible, path, text, write_numbered};

pub(super) const SCENES: &[Scene] = &[
    ("no_line_of_many_threads_is_torn_lost_or_doubled", stress),
    ("many_threads_open_one_file", open),
    ("what_an_entry_costs", cost),
];

const WRITERS: usize = 32;
const ENTRIES: usize = 10_000;

/// What a profiler does: reads what was added, and keeps a line that has no end yet for the next time.
struct Follower {
    file: File,
    unfinished: Vec<u8>,
    checker: Checker,
    /// How often the file ended within a line.
    waited: usize,
}

impl Follower {
    fn read_on(&mut self) {
        let mut bytes = std::mem::take(&mut self.unfinished);
        self.file.read_to_end(&mut bytes).unwrap();
        let end = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        self.unfinished = bytes.split_off(end);
        self.waited += usize::from(!self.unfinished.is_empty());
        self.checker.read(std::str::from_utf8(&bytes).unwrap());
    }
}

fn stress() -> Verdict {
    own_tmp_if_possible();
    map().init().unwrap();
    let busy = AtomicBool::new(true);
    let start = Instant::now();
    let mut follower = Follower {
        file: File::open(path()).unwrap(),
        unfinished: Vec::new(),
        checker: Checker::default(),
        waited: 0,
    };
    let (reads, seconds) = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || (0..ENTRIES).for_each(|n| write_numbered(writer, n).unwrap()))
            })
            .collect();
        let reader = scope.spawn(|| {
            let mut reads = 0;
            while busy.load(Ordering::Acquire) {
                follower.read_on();
                reads += 1;
            }
            reads
        });
        for writer in writers {
            writer.join().unwrap();
        }
        let seconds = start.elapsed().as_secs_f64();
        busy.store(false, Ordering::Release);
        (reader.join().unwrap(), seconds)
    });
    follower.read_on();
    assert!(follower.unfinished.is_empty());
    follower.checker.assert_complete(WRITERS, ENTRIES);
    let bytes = follower.file.metadata().unwrap().len();
    println!(
        "{WRITERS} threads, {ENTRIES} entries each, {bytes} bytes in {seconds:.2} s; the reader came {reads} times, {} of them within a line",
        follower.waited
    );
    Ok(())
}

fn open() -> Verdict {
    own_tmp_if_possible();
    for _ in 0..50 {
        thread::scope(|scope| {
            for writer in 0..WRITERS {
                scope.spawn(move || write_numbered(writer, 0).unwrap());
            }
        });
        assert_eq!(super::stage::descriptors_of(&path()).len(), 1);
        map().fini();
        let mut checker = Checker::default();
        checker.read(&text());
        checker.assert_complete(WRITERS, 1);
        std::fs::remove_file(path()).unwrap();
    }
    Ok(())
}

/// For the documentation, beside what the system call alone costs; nothing is asserted of the time.
fn cost() -> Verdict {
    const ROUNDS: usize = 40_000;
    const NAME: &[u8] = b"py::a_function_of_usual_length:/usr/lib/python3/x.py";
    own_tmp_if_possible();
    map().init().unwrap();
    let other = tempfile::tempfile_in("/tmp").unwrap();
    let line = [b"7f0000000000 78 ", NAME, b"\n"].concat();
    let mut entry = f64::MAX;
    let mut call = f64::MAX;
    for _ in 0..5 {
        entry = entry.min(nanoseconds(ROUNDS, |n| {
            map().write_entry(0x7f00_0000_0000 + n, 120, NAME).unwrap();
        }));
        call = call.min(nanoseconds(ROUNDS, |_| {
            assert_eq!((&other).write(&line).unwrap(), line.len());
        }));
    }
    assert_eq!(text().lines().count(), 5 * ROUNDS);
    println!("{entry:.0} ns an entry, {call:.0} ns for write(2) alone");
    Ok(())
}

fn nanoseconds(rounds: usize, mut work: impl FnMut(usize)) -> f64 {
    let start = Instant::now();
    (0..rounds).for_each(&mut work);
    start.elapsed().as_nanos() as f64 / rounds as f64
}
