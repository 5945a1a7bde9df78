//! After `fork` a child has a map of its own that stands alone; after `exec` the pid is the same, and so is the map.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::unix::{net::UnixStream, process::CommandExt as _},
    process::{self, Command},
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use super::stage::{
    Checker, Scene, Verdict, fork, line_of, map, own_tmp_if_possible, part, path, text, text_of,
    wait, write, write_numbered,
};

pub(super) const SCENES: &[Scene] = &[
    (
        "a_childs_map_has_the_parents_entries_and_then_its_own",
        child,
    ),
    (
        "what_the_parent_writes_after_the_fork_is_not_the_childs",
        later,
    ),
    (
        "a_child_of_a_process_with_a_closed_map_has_its_entries",
        closed,
    ),
    ("a_grandchild_has_all_entries", grandchild),
    ("a_child_that_writes_nothing_makes_no_file", silent),
    ("a_child_has_the_entries_of_a_deleted_map", deleted),
    ("children_forked_while_threads_write_have_whole_lines", busy),
    ("a_fork_during_the_first_opening_stops_no_child", first),
    ("after_exec_entries_are_added", exec),
    ("children_that_exec_leave_no_file_and_no_descriptor", spawn),
    ("a_fork_in_a_signal_handler_upsets_nothing", in_handler),
];

pub(super) const PARTS: &[Scene] = &[("part_after_exec", after_exec)];

fn child() -> Verdict {
    own_tmp_if_possible();
    write(1, "parents");
    let child = fork(|| {
        write(2, "childs");
        write(3, "childs, too");
    });
    assert!(child.went_well);
    write(4, "parents later");
    assert_eq!(
        child.map().unwrap(),
        "1 10 parents\n2 10 childs\n3 10 childs, too\n"
    );
    assert_eq!(text(), "1 10 parents\n4 10 parents later\n");
    Ok(())
}

fn later() -> Verdict {
    own_tmp_if_possible();
    write(1, "before");
    let (mut parents, mut childs) = UnixStream::pair().unwrap();
    let parent = thread::spawn(move || {
        parents.read_exact(&mut [0]).unwrap();
        write(2, "parents later");
        parents.write_all(b"2").unwrap();
    });
    let child = fork(|| {
        childs.write_all(b"1").unwrap();
        childs.read_exact(&mut [0]).unwrap();
        write(3, "childs");
    });
    parent.join().unwrap();
    assert!(child.went_well);
    assert_eq!(child.map().unwrap(), "1 10 before\n3 10 childs\n");
    assert_eq!(text(), "1 10 before\n2 10 parents later\n");
    Ok(())
}

fn closed() -> Verdict {
    own_tmp_if_possible();
    write(1, "parents");
    map().fini();
    let child = fork(|| write(2, "childs"));
    assert!(child.went_well);
    assert_eq!(child.map().unwrap(), "1 10 parents\n2 10 childs\n");
    assert_eq!(text(), "1 10 parents\n");
    Ok(())
}

fn grandchild() -> Verdict {
    own_tmp_if_possible();
    write(1, "a");
    for child_writes in [true, false] {
        let expected = if child_writes {
            "1 10 a\n2 10 b\n"
        } else {
            "1 10 a\n"
        };
        let child = fork(|| {
            if child_writes {
                write(2, "b");
            }
            let grandchild = fork(|| write(3, "c"));
            assert!(grandchild.went_well);
            assert_eq!(grandchild.map().unwrap(), expected.to_owned() + "3 10 c\n");
            write(4, "d");
            assert_eq!(text(), expected.to_owned() + "4 10 d\n");
        });
        assert!(child.went_well);
        assert_eq!(child.map().unwrap(), expected.to_owned() + "4 10 d\n");
    }
    assert_eq!(text(), "1 10 a\n");
    Ok(())
}

fn silent() -> Verdict {
    own_tmp_if_possible();
    write(1, "a");
    let child = fork(|| map().fini());
    assert!(child.went_well);
    assert_eq!(child.map(), None);
    Ok(())
}

fn deleted() -> Verdict {
    own_tmp_if_possible();
    write(1, "a");
    fs::remove_file(path()).unwrap();
    let child = fork(|| write(2, "b"));
    assert!(child.went_well);
    assert_eq!(child.map().unwrap(), "1 10 a\n2 10 b\n");
    assert!(!path().exists());
    Ok(())
}

fn busy() -> Verdict {
    const WRITERS: usize = 8;
    const CHILDREN: usize = 40;
    own_tmp_if_possible();
    map().init().unwrap(); // it is read before anybody may have written
    let go_on = AtomicBool::new(true);
    let (children, counts) = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let go_on = &go_on;
                scope.spawn(move || {
                    let mut n = 0;
                    while go_on.load(Ordering::Acquire) {
                        write_numbered(writer, n).unwrap();
                        n += 1;
                        if n % 100 == 0 {
                            map().fini(); // a fork finds the map in every state
                        }
                        thread::sleep(Duration::from_micros(50)); // not to fill the disk
                    }
                    n
                })
            })
            .collect();
        let children: Vec<_> = (0..CHILDREN)
            .map(|number| {
                let before = text();
                (before, fork(|| write_numbered(100, number).unwrap()))
            })
            .collect();
        go_on.store(false, Ordering::Release);
        let counts: Vec<usize> = writers
            .into_iter()
            .map(|writer| writer.join().unwrap())
            .collect();
        (children, counts)
    });
    for (number, (before, child)) in children.iter().enumerate() {
        assert!(child.went_well);
        let map = child.map().unwrap();
        let (inherited, own) = map.trim_end().rsplit_once('\n').unwrap_or(("", &map));
        assert_eq!(own.trim_end(), line_of(100, number), "its own is the last");
        // A line that was under way when this was read may have come too late for the child.
        let before = before.rsplit_once('\n').map_or("", |(lines, _)| lines);
        assert!(
            inherited.starts_with(before),
            "what was there before is there"
        );
        Checker::default().read(&map);
    }
    let mut checker = Checker::default();
    checker.read(&text());
    assert_eq!(text().lines().count(), counts.iter().sum::<usize>());
    Ok(())
}

/// The child of a process in which another thread was just opening the map must not wait for that thread.
fn first() -> Verdict {
    own_tmp_if_possible();
    for _ in 0..1000 {
        let child = fork(|| {
            static BEGINS: AtomicBool = AtomicBool::new(false);
            let writer = thread::spawn(|| {
                BEGINS.store(true, Ordering::Release);
                write(1, "a");
            });
            while !BEGINS.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
            let grandchild = fork(|| write(2, "b"));
            writer.join().unwrap();
            assert!(grandchild.went_well);
            assert!(grandchild.map().unwrap().ends_with("2 10 b\n"));
            assert_eq!(text(), "1 10 a\n");
        });
        assert!(child.went_well);
        child.map();
    }
    assert!(!path().exists());
    Ok(())
}

fn exec() -> Verdict {
    own_tmp_if_possible();
    write(1, "before");
    // SAFETY: the child executes this program, or ends.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        write(2, "child before");
        let err = part("part_after_exec").exec();
        panic!("{err}");
    }
    let child = wait(pid);
    assert!(child.went_well);
    assert_eq!(
        child.map().unwrap(),
        "1 10 before\n2 10 child before\n3 10 after\n"
    );
    assert_eq!(text(), "1 10 before\n");
    Ok(())
}

fn after_exec() -> Verdict {
    assert!(super::stage::descriptors_of(&path()).is_empty());
    write(3, "after");
    Ok(())
}

fn spawn() -> Verdict {
    own_tmp_if_possible();
    write(1, "a");
    // `Command` is posix_spawn here, which is a vfork; with a closure it is fork and exec.
    let list = || {
        let mut command = Command::new("ls");
        command.args(["-l", "/proc/self/fd"]);
        command
    };
    let mut forked = list();
    // SAFETY: the closure does nothing.
    unsafe { forked.pre_exec(|| Ok(())) };
    for mut command in [list(), forked] {
        let done = command.output().unwrap();
        assert!(done.status.success());
        assert!(!String::from_utf8_lossy(&done.stdout).contains("/perf-"));
    }
    let maps = fs::read_dir("/tmp").unwrap().filter(|entry| {
        let name = entry.as_ref().unwrap().file_name();
        name.to_str()
            .unwrap()
            .starts_with(&format!("perf-{}", process::id()))
    });
    assert_eq!(maps.count(), 1);
    write(2, "b");
    assert_eq!(text(), "1 10 a\n2 10 b\n");
    Ok(())
}

/// Most signals come at the end of a system call, and so while the writer uses its file: both parent and child go on
/// with that.
fn in_handler() -> Verdict {
    const FORKS: usize = 50;
    static CHILDREN: [std::sync::atomic::AtomicI32; FORKS] =
        [const { std::sync::atomic::AtomicI32::new(0) }; FORKS];
    static COUNT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
    static IN_CHILD: AtomicBool = AtomicBool::new(false);
    extern "C" fn handler(_: libc::c_int) {
        let n = COUNT.load(Ordering::Relaxed);
        if n == FORKS || IN_CHILD.load(Ordering::Relaxed) {
            return;
        }
        // SAFETY: this process has one thread.
        let pid = unsafe { libc::fork() };
        IN_CHILD.store(pid == 0, Ordering::Relaxed);
        CHILDREN[n].store(pid, Ordering::Relaxed);
        COUNT.store(n + 1, Ordering::Relaxed);
    }
    own_tmp_if_possible();
    map().init().unwrap(); // asking to be told of forks cannot be interrupted by one
    super::signals::every_microseconds(300, handler);
    let mut n = 0;
    while COUNT.load(Ordering::Relaxed) < FORKS || IN_CHILD.load(Ordering::Relaxed) {
        write_numbered(1, n).unwrap();
        n += 1;
        if IN_CHILD.load(Ordering::Relaxed) {
            (0..100).for_each(|n| write_numbered(2, n).unwrap());
            map().fini();
            assert!(super::stage::descriptors_of(&path()).is_empty());
            let lines = text().lines().filter(|line| line.contains(" w2_")).count();
            Checker::default().read(&text());
            // SAFETY: ends the process.
            unsafe { libc::_exit(i32::from(lines != 100)) };
        }
    }
    super::signals::stop();
    for child in &CHILDREN {
        let child = wait(child.load(Ordering::Relaxed));
        assert!(child.went_well);
        assert!(text_of(child.pid).contains(" w2_99_"));
        child.map();
    }
    let mut checker = Checker::default();
    checker.read(&text());
    // An entry under way at a fork is finished by both, in the file that both had open: there may be two of it.
    assert!(text().lines().count() >= n);
    Ok(())
}
