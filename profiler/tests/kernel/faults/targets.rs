//! Targets that are shared with others, or whose perf map goes away while it is read.

use std::{fs, thread::sleep, time::Duration};

use rustix::process::Signal;

use super::{
    Python, Test, Verdict, busy, eventually, let_work,
    recording::{Recording, WHOLE, begin},
    running::{Running, signal},
};

pub(super) const TESTS: &[Test] = &[
    ("two_profilers_at_once_are_both_right", two),
    (
        "a_map_that_is_deleted_meanwhile_takes_no_names_away",
        deleted,
    ),
    (
        "a_map_that_is_emptied_meanwhile_takes_no_names_away",
        emptied,
    ),
];

fn assert_right(recording: &Recording) {
    recording
        .assert_done(100)
        .assert_whole(WHOLE)
        .assert_none_lost();
    recording.assert_all_accounted_for();
    let chain = ["<module>", "baz", "bar", "foo"];
    let share = recording.share(|stack| stack.python().ends_with(&chain));
    assert!(share > 0.95, "{share}: {}", recording.report);
}

fn two(python: &Python) -> Verdict {
    let target = busy(python);
    let options = ["-F", "499", "--bpf-stats"];
    let first = begin(target.pid(), &options);
    let second = begin(target.pid(), &options);
    let_work(target.pid(), Duration::from_millis(500));
    signal(first.pid(), Signal::INT);
    assert_right(&first.end());
    // The end of one is nothing to the other.
    let_work(target.pid(), Duration::from_millis(500));
    signal(second.pid(), Signal::INT);
    assert_right(&second.end());
    Ok(())
}

/// Works in one function, and for each line that it reads in a new one.
const NEW_FUNCTIONS: &str = "
import sys, threading
running = True
def first():
    while running:
        sum(range(100))
def later(name):
    space = {}
    exec(f'def {name}():\\n    while running: sum(range(100))', globals(), space)
    return space[name]
print('ready', flush=True)
work = first
while True:
    running = True
    thread = threading.Thread(target=work)
    thread.start()
    line = sys.stdin.readline().strip()
    running = False
    thread.join()
    if not line:
        break
    work = later(line)
";

/// Records across a change of the map, and a function that is new after it.
fn across(python: &Python, change: impl FnOnce(&Running)) -> Recording {
    let mut target = Running::start(python.perf().args(["-c", NEW_FUNCTIONS]));
    let map = target.perf_map();
    eventually("a name", || {
        fs::read_to_string(&map).is_ok_and(|text| text.contains("py::first:"))
    });
    let recorder = begin(target.pid(), &["-F", "499", "--bpf-stats"]);
    eventually("a look at the map", || recorder.has_open(&map));
    let_work(target.pid(), Duration::from_millis(400));
    change(&target);
    sleep(Duration::from_millis(300));
    target.say("second");
    let_work(target.pid(), Duration::from_millis(400));
    signal(recorder.pid(), Signal::INT);
    let recording = recorder.end();
    recording.assert_done(100).assert_whole(WHOLE);
    recording.assert_all_accounted_for();
    let first = recording.share(|stack| stack.has("first"));
    assert!(first > 0.3, "{first}: {}", recording.report);
    recording
}

fn deleted(python: &Python) -> Verdict {
    // The file lives on without its name, and CPython goes on writing to it.
    let recording = across(python, |target| fs::remove_file(target.perf_map()).unwrap());
    let second = recording.share(|stack| stack.has("second"));
    assert!(second > 0.2, "{second}: {}", recording.report);
    Ok(())
}

fn emptied(python: &Python) -> Verdict {
    let empty = |target: &Running| {
        let map = fs::OpenOptions::new().write(true).open(target.perf_map());
        map.unwrap().set_len(0).unwrap();
    };
    let recording = across(python, empty);
    let second = recording.share(|stack| stack.has("second"));
    assert!(second > 0.2, "{second}: {}", recording.report);
    Ok(())
}
