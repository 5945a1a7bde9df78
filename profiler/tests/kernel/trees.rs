//! Processes that make processes: all of them are recorded, and told apart.

use std::{collections::BTreeMap, fs, path::PathBuf, process::Command, time::Duration};

use super::{
    Python, Test, Verdict, eventually, let_work, note,
    recording::{Recorder, Recording, Stack, WHOLE, number_before, pyprof},
    running::{Running, remove_perf_map, signal},
    script, skip,
};

pub(super) const TESTS: &[Test] = &[
    (
        "worker_pools_of_every_kind_are_recorded_with_all_names",
        pools,
    ),
    ("a_grandchild_has_the_names_of_those_that_are_gone", orphan),
    (
        "a_program_that_replaces_another_has_its_own_names",
        replaced,
    ),
    ("what_a_parent_names_after_a_fork_is_not_its_childs", reuse),
    ("last_words_of_a_program_do_not_name_the_next", last_words),
    ("several_processes_are_told_apart", several),
    ("children_join_a_recording_that_runs", children),
    ("all_pythons_include_those_that_start_later", all_pythons),
    ("a_control_group_is_recorded_as_it_changes", control_group),
];

/// Of the newest Python only: they take their time.
pub(super) const LONG_TESTS: &[Test] = &[
    ("gunicorn_under_load_with_workers_replaced", gunicorn),
    ("five_hundred_short_processes_have_names", shorts),
    ("ten_thousand_processes_leave_nothing_behind", storm),
];

/// Samples of each process, by the label in front of its stacks.
fn by_process(recording: &Recording) -> BTreeMap<String, Vec<&Stack>> {
    let mut processes: BTreeMap<String, Vec<&Stack>> = BTreeMap::new();
    for stack in &recording.stacks {
        processes
            .entry(stack.frames[0].clone())
            .or_default()
            .push(stack);
    }
    processes
}

fn samples(stacks: &[&Stack], is_such: impl Fn(&Stack) -> bool) -> u64 {
    let stacks = stacks.iter().filter(|stack| is_such(stack));
    stacks.map(|stack| stack.count).sum()
}

/// `record -- python -X perf tree.py WORDS`, and what it printed.
fn launched(python: &Python, options: &[&str], words: &[&str]) -> (Recording, String) {
    let files = super::scratch();
    let file = files.path().join("profile.folded");
    let mut command = pyprof();
    command
        .args(["record", "--view", "mixed", "--output"])
        .arg(&file)
        .args(options)
        .arg("--")
        .arg(&python.path)
        .args(["-X", "perf"])
        .arg(script("tree"))
        .args(words)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let output = command.output().unwrap();
    let said = String::from_utf8(output.stdout.clone()).unwrap();
    let recording = Recording::of(&output, &file);
    forget_maps(&recording);
    (recording, said)
}

/// CPython leaves perf maps behind.
fn forget_maps(recording: &Recording) {
    let processes = by_process(recording);
    let pids = processes.keys().filter_map(|name| {
        let (_, pid) = name.strip_suffix(']')?.rsplit_once('[')?;
        pid.parse().ok()
    });
    pids.for_each(remove_perf_map);
}

/// Every process that has samples of `burn` has them below `callers`, whole and named.
fn assert_workers(recording: &Recording, callers: &[&str], workers_min: usize, what: &str) {
    let mut workers = 0;
    for (name, stacks) in by_process(recording) {
        let all = samples(&stacks, |_| true);
        let burning = samples(&stacks, |stack| stack.has("burn"));
        if burning * 4 < all || burning < 20 {
            continue;
        }
        workers += 1;
        for stack in stacks
            .iter()
            .filter(|stack| stack.has("burn") && stack.is_whole())
        {
            let names = stack.python();
            let place = |name: &&str| names.iter().position(|found| found == name);
            let places: Vec<_> = callers.iter().map(place).collect();
            assert!(
                places.iter().all(Option::is_some) && places.is_sorted(),
                "{what}: {name}: {names:?}"
            );
        }
    }
    note(format!(
        "{what}: {workers} workers, {} samples",
        recording.samples()
    ));
    assert!(workers >= workers_min, "{what}: {}", recording.report);
}

fn pools(python: &Python) -> Verdict {
    for method in ["fork", "spawn", "forkserver"] {
        let (recording, said) = launched(python, &["-F", "499"], &["pool", method, "36"]);
        recording.assert_done(500).assert_none_lost();
        assert_workers(&recording, &["task", "burn"], 2, method);
        assert!(!said.trim().is_empty(), "{}", recording.report);
        assert!(
            !recording.report.contains("no Python names"),
            "{}",
            recording.report
        );
        // What was entered before a fork is in the stacks of forked workers too.
        if method == "fork" {
            assert_workers(
                &recording,
                &["<module>", "pool", "task", "burn"],
                2,
                "forked",
            );
        }
    }
    let (recording, _) = launched(python, &["-F", "499"], &["executor", "36"]);
    recording.assert_done(500);
    assert_workers(&recording, &["task", "burn"], 2, "executor");
    Ok(())
}

fn orphan(python: &Python) -> Verdict {
    let (recording, _) = launched(python, &["-F", "999"], &["orphan", "0.7"]);
    recording.assert_done(700);
    let old = ["<module>", "orphan", "before", "burn"];
    let new = ["<module>", "orphan", "before", "after", "burn"];
    let (old, new) = (
        recording.share(|stack| stack.python() == old),
        recording.share(|stack| stack.python() == new),
    );
    note(format!("{:.1} % and {:.1} %", 100.0 * old, 100.0 * new));
    assert!(old > 0.3 && new > 0.3, "{}", recording.report);
    let unnamed =
        recording.count(|stack| stack.has("burn") && !(stack.has("before") && stack.is_whole()));
    assert_eq!(unnamed, 0, "{}", recording.report);
    Ok(())
}

fn replaced(python: &Python) -> Verdict {
    // Nothing of the old program may be seen in one that has no names at all.
    for names in ["with", "without"] {
        let (recording, _) = launched(python, &["-F", "999"], &["first", "0.6", names]);
        recording.assert_done(800);
        let first = recording.share(|stack| stack.python() == ["<module>", "first", "burn"]);
        let second = recording.share(|stack| stack.python() == ["<module>", "second", "burn"]);
        note(format!(
            "{names}: {:.1} % and {:.1} %",
            100.0 * first,
            100.0 * second
        ));
        assert!((0.3..0.6).contains(&first), "{}", recording.report);
        if names == "with" || !python.by_perf_maps {
            assert!((0.3..0.6).contains(&second), "{}", recording.report);
        } else {
            assert!(second == 0.0, "{}", recording.report);
        }
        let mixed = recording.count(|stack| stack.has("first") && stack.has("second"));
        assert_eq!(mixed, 0, "{}", recording.report);
    }
    Ok(())
}

fn reuse(python: &Python) -> Verdict {
    let (recording, _) = launched(python, &["-F", "999"], &["reuse", "0.7"]);
    recording.assert_done(1_000);
    let counts: Vec<_> = by_process(&recording)
        .into_values()
        .map(|stacks| {
            let count = |name| samples(&stacks, |stack| stack.has(name));
            (count("run_code"), count("old_name"), count("new_name"))
        })
        .filter(|(all, ..)| *all > 100)
        .collect();
    note(format!(
        "{counts:?} in the code, with the old and the new name"
    ));
    assert_eq!(counts.len(), 2, "{}", recording.report);
    // One of them is the parent, which has the new name only.
    assert!(counts.iter().any(|(_, _, new)| *new > 100), "{counts:?}");
    assert!(counts.iter().any(|(_, _, new)| *new == 0), "{counts:?}");
    Ok(())
}

fn last_words(python: &Python) -> Verdict {
    let (recording, _) = launched(python, &["-F", "999"], &["last_words", "0.5"]);
    recording.assert_done(800);
    // The name was written when all of the first program's samples had been taken.
    let named = recording.count(|stack| stack.has("of_the_first") && !stack.has("last_words"));
    assert_eq!(named, 0, "{}", recording.report);
    Ok(())
}

fn start_nursery(python: &Python) -> Running {
    Running::start(python.perf().arg(script("tree")).arg("nursery"))
}

/// Has it make a worker.
pub(super) fn new_worker(nursery: &mut Running) -> u32 {
    nursery.say("one more");
    nursery.line().parse().unwrap()
}

pub(super) fn end_workers(pids: &[u32]) {
    for &pid in pids {
        signal(pid, rustix::process::Signal::KILL);
        remove_perf_map(pid);
    }
}

fn several(python: &Python) -> Verdict {
    let mut nursery = start_nursery(python);
    let workers = [new_worker(&mut nursery), new_worker(&mut nursery)];
    let pids = workers.map(|pid| pid.to_string()).join(",");
    let mut command = pyprof();
    command.args(["--pid", &pids, "--pid", &workers[0].to_string()]);
    let recording = Recorder::start(command, &["-F", "499", "-d", "2"]).end();
    end_workers(&workers);
    recording.assert_done(200);
    let processes = by_process(&recording);
    for pid in workers {
        let label = format!("tree.py [{pid}]");
        assert!(
            processes.contains_key(&label),
            "no {label} in {:?}",
            processes.keys()
        );
    }
    assert_eq!(processes.len(), 2, "{:?}", processes.keys());
    assert!(
        recording.report.contains(" of 2 processes in "),
        "{}",
        recording.report
    );
    assert_workers(
        &recording,
        &["<module>", "nursery", "task", "burn"],
        2,
        "by pid",
    );
    Ok(())
}

fn children(python: &Python) -> Verdict {
    let mut nursery = start_nursery(python);
    let mut command = pyprof();
    command.args(["--subprocesses", "--pid", &nursery.pid().to_string()]);
    let early = new_worker(&mut nursery);
    let recorder = Recorder::start(command, &["-F", "499"]);
    let late = new_worker(&mut nursery);
    std::thread::sleep(Duration::from_secs(2));
    signal(recorder.pid(), rustix::process::Signal::INT);
    let recording = recorder.end();
    end_workers(&[early, late]);
    recording.assert_done(200).assert_whole(WHOLE);
    assert_workers(
        &recording,
        &["<module>", "nursery", "task", "burn"],
        2,
        "of a parent",
    );
    for pid in [early, late] {
        let named = recording.count(|stack| stack.frames[0].ends_with(&format!("[{pid}]")));
        assert!(named > 20, "{pid}: {}", recording.report);
    }
    Ok(())
}

fn all_pythons(python: &Python) -> Verdict {
    // One to begin with: without any there is nothing to record.
    let mut before = start_nursery(python);
    let mut command = pyprof();
    command.arg("--all-python");
    let recorder = Recorder::start(command, &["-F", "299"]);
    let mut later = start_nursery(python);
    let workers = [new_worker(&mut before), new_worker(&mut later)];
    // They are sampled by the CPU time that they use, which on a busy machine is little: 300 samples each.
    for &worker in &workers {
        let_work(worker, Duration::from_secs(1));
    }
    signal(recorder.pid(), rustix::process::Signal::INT);
    let recording = recorder.end();
    end_workers(&workers);
    recording.assert_done(100);
    for pid in workers {
        let is_whole_and_named = |stack: &Stack| {
            stack.frames[0].ends_with(&format!("[{pid}]"))
                && stack.python() == ["<module>", "nursery", "task", "burn"]
        };
        let named = recording.count(is_whole_and_named);
        assert!(named > 10, "{pid}: {named}: {}", recording.report);
    }
    Ok(())
}

/// A control group of our own, removed with this value.
struct ControlGroup(PathBuf);

impl ControlGroup {
    fn new() -> Option<Self> {
        // The unified hierarchy, or any of the old ones.
        let hierarchies = ["", "unified", "systemd", "pids", "freezer"];
        let name = format!("pyprof-bpf-test-{}", std::process::id());
        hierarchies.iter().find_map(|hierarchy| {
            let folder = PathBuf::from("/sys/fs/cgroup").join(hierarchy);
            let group = folder.join(&name);
            let is_hierarchy = folder.join("cgroup.procs").exists();
            (is_hierarchy && fs::create_dir(&group).is_ok()).then_some(Self(group))
        })
    }

    fn add(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        // Processes that end leave it a moment later.
        for _ in 0..100 {
            if fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn control_group(python: &Python) -> Verdict {
    let Some(group) = ControlGroup::new() else {
        return skip("no control group can be made here");
    };
    let mut inside = start_nursery(python);
    let mut outside = start_nursery(python);
    group.add(inside.pid());
    let first = new_worker(&mut inside);
    let mut command = pyprof();
    command.arg("--cgroup").arg(&group.0);
    let recorder = Recorder::start(command, &["-F", "299"]);
    let second = new_worker(&mut inside);
    let stranger = new_worker(&mut outside);
    let moved = new_worker(&mut outside);
    group.add(moved);
    // Those that are moved are looked for every two seconds.
    std::thread::sleep(Duration::from_secs(5));
    signal(recorder.pid(), rustix::process::Signal::INT);
    let recording = recorder.end();
    end_workers(&[first, second, stranger, moved]);
    drop(inside);
    drop(group);
    recording.assert_done(100);
    let of = |pid: u32| {
        let ending = format!("[{pid}]");
        recording.count(|stack| stack.frames[0].ends_with(&ending) && stack.has("burn"))
    };
    let counts = [first, second, stranger, moved].map(of);
    note(format!("{counts:?}"));
    assert!(
        counts[0] > 10 && counts[1] > 10 && counts[3] > 10,
        "{}",
        recording.report
    );
    assert_eq!(counts[2], 0, "{}", recording.report);
    Ok(())
}

fn shorts(python: &Python) -> Verdict {
    const COUNT: usize = 500;
    let (recording, _) = launched(python, &["-F", "999"], &["shorts", "500"]);
    recording.assert_done(5_000).assert_none_lost();
    let processes = by_process(&recording);
    let named = processes
        .values()
        .filter(|stacks| {
            samples(stacks, |stack| {
                stack.python() == ["<module>", "brief", "burn"]
            }) > 0
        })
        .count();
    let in_burn = recording.share(|stack| stack.has("burn"));
    let whole = recording.share(Stack::is_whole);
    note(format!(
        "{named} of {COUNT} with names, {:.1} % of all samples in them, {:.1} % whole, {} MiB",
        100.0 * in_burn,
        100.0 * whole,
        recording.peak_rss_kib >> 10
    ));
    assert!(named >= COUNT * 9 / 10, "{named}: {}", recording.report);
    assert!(whole > 0.97, "{}", recording.report);
    Ok(())
}

fn storm(python: &Python) -> Verdict {
    const COUNT: u64 = 10_000;
    /// Own memory, names of interpreter and libraries, and what is kept of each process.
    const MEMORY_MAX_MIB: u64 = 160;
    let mut parent = python.perf();
    parent.arg(script("tree")).args(["storm", "10000"]);
    let mut command = pyprof();
    command.args(["record"]);
    let mut words: Vec<String> = vec!["-F".into(), "199".into(), "--".into()];
    words.push(parent.get_program().to_str().unwrap().to_owned());
    words.extend(
        parent
            .get_args()
            .map(|word| word.to_str().unwrap().to_owned()),
    );
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let recording = Recorder::start(command, &words).end();
    forget_maps(&recording);
    recording.assert_done(200);
    let report = &recording.report;
    let sampled = number_before(report, " processes and ").unwrap_or(1);
    let unsampled = number_before(report, " without samples").unwrap_or(0);
    note(format!(
        "{sampled} with samples, {unsampled} without, {} MiB",
        recording.peak_rss_kib >> 10
    ));
    assert!(sampled + unsampled > COUNT, "{report}");
    assert!(
        !report.contains("not recorded") && !report.contains("were lost"),
        "{report}"
    );
    assert!(recording.peak_rss_kib >> 10 < MEMORY_MAX_MIB, "{report}");
    Ok(())
}

/// A web server that forks its workers, and replaces them when it is asked to.
fn gunicorn(python: &Python) -> Verdict {
    if !python.can("__import__('importlib.util').util.find_spec('gunicorn')") {
        return skip("gunicorn is not installed for this Python");
    }
    let files = super::scratch();
    fs::write(files.path().join("app.py"), APP).unwrap();
    let socket = files.path().join("socket");
    let mut command = python.perf();
    command
        .args(["-m", "gunicorn", "-w", "4", "--bind"])
        .arg(format!("unix:{}", socket.display()))
        .args(["--log-level", "error", "app:app"])
        .current_dir(files.path());
    let master = Running::start_silent(&mut command);
    eventually("the server's start", || socket.exists());
    let mut load =
        Running::start_silent(Command::new(&python.path).args(["-c", LOAD]).arg(&socket));
    assert_eq!(load.line(), "served");
    let mut command = pyprof();
    command.args(["-s", "--pid", &master.pid().to_string()]);
    let recorder = Recorder::start(command, &["-F", "299"]);
    let workers = || -> Vec<u32> {
        let task = format!("/proc/{0}/task/{0}/children", master.pid());
        let pids = fs::read_to_string(task).unwrap_or_default();
        pids.split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect()
    };
    let old = workers();
    std::thread::sleep(Duration::from_secs(2));
    signal(master.pid(), rustix::process::Signal::HUP);
    eventually("new workers", || {
        let now = workers();
        now.len() == 4 && old.iter().all(|pid| !now.contains(pid))
    });
    std::thread::sleep(Duration::from_secs(3));
    let new = workers();
    signal(recorder.pid(), rustix::process::Signal::INT);
    let recording = recorder.end();
    drop(load);
    signal(master.pid(), rustix::process::Signal::TERM);
    eventually("the server's end", || workers().is_empty());
    old.iter().chain(&new).copied().for_each(remove_perf_map);
    recording.assert_done(300).assert_whole(WHOLE);
    let of = |pids: &[u32]| {
        recording.count(|stack| {
            let is_one = pids
                .iter()
                .any(|pid| stack.frames[0].ends_with(&format!("[{pid}]")));
            is_one && stack.has("fib")
        })
    };
    let counts = [of(&old), of(&new)];
    note(format!(
        "{counts:?} of {} samples in old and new workers",
        recording.samples()
    ));
    assert!(
        counts.iter().all(|&count| count > 50),
        "{}",
        recording.report
    );
    let astray =
        recording.count(|stack| stack.has("fib") && !(stack.has("app") && stack.has("handler")));
    assert_eq!(astray, 0, "{}", recording.report);
    Ok(())
}

const APP: &str = "
def fib(number):
    return number if number < 2 else fib(number - 1) + fib(number - 2)

def handler():
    return str(fib(18)).encode()

def app(environ, start_response):
    body = handler()
    start_response('200 OK', [('Content-Length', str(len(body)))])
    return [body]
";

/// Asks again and again, also while nobody answers.
const LOAD: &str = "
import socket, sys, threading

def ask():
    told = False
    while True:
        try:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(sys.argv[1])
                server.sendall(b'GET / HTTP/1.0\\r\\n\\r\\n')
                while server.recv(4096):
                    pass
        except OSError:
            continue
        if not told:
            told = True
            lock.acquire(blocking=False) and print('served', flush=True)

lock = threading.Lock()
for _ in range(4):
    threading.Thread(target=ask, daemon=True).start()
sys.stdin.read()
";
