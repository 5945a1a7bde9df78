//! No process that a test starts outlives it: neither a test that fails, nor a test program that is killed.
//!
//! The test program runs as a child of itself ([`supervised`]). The parent takes over what loses its own parent
//! (`PR_SET_CHILD_SUBREAPER`) and kills all that is left when the child has ended, however that came. The child, which runs
//! the tests, kills what is left after each of them ([`EndChildren`]), and everything when its parent is gone.

use std::{
    collections::BTreeSet,
    env, fs,
    process::{Command, ExitCode, Stdio},
    thread::sleep,
    time::Duration,
};

use rustix::process::{
    Pid, Signal, WaitOptions, getpid, getppid, kill_process, set_child_subreaper, wait,
};

/// Says that a test program is the child; its value is the pid of the parent.
const SUPERVISOR: &str = "PYPROF_TEST_SUPERVISOR";

/// The supervisor's absence is noticed within this time.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Runs the tests in a child process, and lets no process of theirs stay.
pub(crate) fn supervised(tests: impl FnOnce() -> ExitCode) -> ExitCode {
    let parent = getppid();
    let told = env::var(SUPERVISOR).ok();
    if told.is_some() && told == parent.map(|pid| pid.as_raw_nonzero().to_string()) {
        std::thread::spawn(move || {
            while getppid() == parent {
                sleep(LOOK_EVERY);
            }
            kill_all(|| descendants(getpid()));
            std::process::exit(1);
        });
        return tests();
    }
    set_child_subreaper(Some(getpid())).expect("any process may");
    // Where the tests run in the background of a script, or under `nohup`, these signals are ignored, and would be by all
    // that a test starts. `env` is of the GNU core utilities, 8.31 or later.
    let mut command = Command::new("env");
    command
        .arg("--default-signal=HUP,INT,QUIT")
        .arg(env::current_exe().expect("own path"))
        .args(env::args_os().skip(1));
    command.env(SUPERVISOR, getpid().as_raw_nonzero().to_string());
    let child = command.stdin(Stdio::inherit()).spawn();
    let child = Pid::from_child(&child.expect("this program starts"));
    let code = loop {
        // Others that are waited for have lost their own parents.
        match wait(WaitOptions::empty()) {
            Ok(Some((pid, status))) if pid == child => break status.exit_status(),
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => panic!("the tests cannot be waited for: {error}"),
        }
    };
    kill_all(|| descendants(getpid()));
    // What a signal ended has no code.
    ExitCode::from(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(101))
}

/// Kills what a test has started and left behind when this value goes, also in a panic.
pub(crate) struct EndChildren;

impl Drop for EndChildren {
    fn drop(&mut self) {
        let supervisor = env::var(SUPERVISOR).ok();
        let supervisor = supervisor.and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        kill_all(|| match supervisor {
            // Those that have lost their parents are its children now.
            Some(supervisor) => descendants(supervisor),
            None => descendants(getpid()),
        });
    }
}

/// Kills processes until there are none, but for the one that calls.
fn kill_all(find: impl Fn() -> BTreeSet<i32>) {
    for _ in 0..500 {
        let mut left = find();
        left.remove(&getpid().as_raw_nonzero().get());
        left.retain(|&pid| is_running(pid));
        if left.is_empty() {
            return;
        }
        for pid in left.into_iter().filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        sleep(Duration::from_millis(10));
    }
}

/// All processes below another one.
fn descendants(of: Pid) -> BTreeSet<i32> {
    let mut found = BTreeSet::new();
    let mut waiting = vec![of.as_raw_nonzero().get()];
    while let Some(pid) = waiting.pop() {
        let threads = fs::read_dir(format!("/proc/{pid}/task"));
        for thread in threads.into_iter().flatten().flatten() {
            let children = fs::read_to_string(thread.path().join("children"));
            for child in children.unwrap_or_default().split_whitespace() {
                if let Ok(child) = child.parse()
                    && found.insert(child)
                {
                    waiting.push(child);
                }
            }
        }
    }
    found
}

/// It has not ended: what nobody has waited for yet is no process any more.
fn is_running(pid: i32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = status.rsplit_once(')').map(|(_, rest)| rest.trim_start());
    state.is_some_and(|state| !state.starts_with(['Z', 'X']))
}
