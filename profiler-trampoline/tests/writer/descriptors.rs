//! Descriptors have numbers, and numbers are used again: nothing may land in a file that is not the map.

use std::{
    fs::{self, File},
    io::Read as _,
    os::fd::AsRawFd as _,
    sync::atomic::{AtomicBool, AtomicUsize, Ordering},
    thread,
    time::Duration,
};

use super::stage::{
    Checker, Scene, Verdict, descriptors_of, fork, map, own_tmp, own_tmp_if_possible, path, text,
    write, write_numbered,
};

pub(super) const SCENES: &[Scene] = &[
    (
        "closing_among_writers_loses_nothing_and_hits_no_other_file",
        closing,
    ),
    (
        "a_descriptor_closed_by_the_program_is_not_written_to",
        closed,
    ),
    ("a_daemon_that_closes_everything_has_a_whole_map", daemon),
    ("a_closed_standard_stream_is_not_replaced", standard),
];

fn closing() -> Verdict {
    const WRITERS: usize = 6;
    const ENTRIES: usize = 5000;
    own_tmp_if_possible();
    let folder = tempfile::tempdir().unwrap();
    let busy = AtomicBool::new(true);
    let (closed, checked) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for number in 0..2 {
            let (folder, busy, checked) = (folder.path(), &busy, &checked);
            scope.spawn(move || {
                // Takes each number that becomes free, and looks whether anybody else writes there.
                let file = folder.join(format!("checker{number}"));
                while busy.load(Ordering::Acquire) {
                    let mut file = File::options()
                        .create(true)
                        .truncate(false)
                        .read(true)
                        .append(true)
                        .open(&file)
                        .unwrap();
                    thread::yield_now();
                    let mut found = Vec::new();
                    file.read_to_end(&mut found).unwrap();
                    assert!(found.is_empty(), "{:?}", String::from_utf8_lossy(&found));
                    checked.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while busy.load(Ordering::Acquire) {
                map().fini();
                closed.fetch_add(1, Ordering::Relaxed);
                thread::sleep(Duration::from_micros(10)); // the others need processors, too
            }
        });
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                scope.spawn(move || {
                    for n in 0..ENTRIES {
                        write_numbered(writer, n).unwrap();
                    }
                })
            })
            .collect();
        for writer in writers {
            writer.join().unwrap();
        }
        busy.store(false, Ordering::Release);
    });
    map().fini();
    assert_eq!(descriptors_of(&path()), []);
    let mut checker = Checker::default();
    checker.read(&text());
    checker.assert_complete(WRITERS, ENTRIES);
    println!("{closed:?} times closed, {checked:?} other files looked at");
    Ok(())
}

/// Closes a descriptor behind the writer's back, and has another file take its number.
fn replace(number: i32, name: &str) -> File {
    // SAFETY: this is what such programs do.
    assert_eq!(unsafe { libc::close(number) }, 0);
    let file = File::create_new(name).unwrap();
    assert_eq!(file.as_raw_fd(), number);
    file
}

fn closed() -> Verdict {
    own_tmp("")?;
    write(1, "a");
    let number = descriptors_of(&path())[0];
    let other = replace(number, "/tmp/precious");
    write(2, "b");
    assert_eq!(text(), "1 10 a\n2 10 b\n");
    let _second = replace(descriptors_of(&path())[0], "/tmp/precious2");
    map().fini(); // must not close it
    write(3, "c");
    assert_eq!(text(), "1 10 a\n2 10 b\n3 10 c\n");
    assert_eq!(fs::read("/tmp/precious").unwrap(), b"");
    assert_eq!(fs::read("/tmp/precious2").unwrap(), b"");
    assert_eq!(other.metadata().unwrap().len(), 0);
    Ok(())
}

fn daemon() -> Verdict {
    own_tmp("")?;
    write(1, "parents");
    let number = descriptors_of(&path())[0];
    let child = fork(|| {
        let mut other = replace(number, "/tmp/precious");
        write(2, "childs");
        std::io::Write::write_all(&mut other, b"mine").unwrap(); // still open
    });
    assert!(child.went_well);
    assert_eq!(fs::read("/tmp/precious").unwrap(), b"mine");
    assert_eq!(child.map().unwrap(), "1 10 parents\n2 10 childs\n");
    Ok(())
}

fn standard() -> Verdict {
    own_tmp("")?;
    let child = fork(|| {
        for number in 0..3 {
            // SAFETY: nothing is read or written there any more.
            unsafe { libc::close(number) };
        }
        write(1, "a");
        // SAFETY: as careless programs do; nothing is open there.
        let written = unsafe { libc::write(2, b"x\n".as_ptr().cast(), 2) };
        assert_eq!(written, -1);
        write(2, "b");
    });
    assert!(child.went_well);
    assert_eq!(child.map().unwrap(), "1 10 a\n2 10 b\n");
    Ok(())
}
