//! The writer of perf maps, from outside: what other programs see of it.
//!
//! A perf map is named after its process, so each scene is played by a process of its own: this program, called again.
//! Where the kernel lets it, a scene has a `/tmp` of its own; some cannot do without, and say so. No scene looks at the
//! clock to judge.

#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "what was measured, and why something is skipped, is worth reading"
)]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    env, fs,
    process::{Child, Command, ExitCode, Output, Stdio},
    sync::{
        Arc, Mutex,
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::Duration,
};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use rustix::process::{Pid, Signal, kill_process};

#[expect(
    clippy::unnecessary_wraps,
    reason = "all scenes are of one type, and some of them can be skipped"
)]
#[path = "writer/mod.rs"]
mod scenes;

use scenes::stage::{SCENE, SKIPPED};

fn main() -> ExitCode {
    if let Some(name) = env::var_os(SCENE) {
        return scenes::play(name.to_str().unwrap_or_default());
    }
    let notes = Arc::new(Mutex::new(Vec::new()));
    let trials = scenes::names().map(|name| {
        let notes = Arc::clone(&notes);
        Trial::ignorable_test(name, move || watch(name, &notes))
    });
    let conclusion = libtest_mimic::run(&Arguments::from_args(), trials.collect());
    for note in notes.lock().unwrap().iter() {
        println!("{note}");
    }
    conclusion.exit_code()
}

/// Waits for a scene to end. One that hangs is ended, far later than it could take.
fn wait_patiently(child: Child) -> std::io::Result<Output> {
    let pid = Pid::from_child(&child);
    let (ended, is_ended) = mpsc::channel();
    let watchdog = thread::spawn(move || {
        if is_ended.recv_timeout(Duration::from_mins(5)) == Err(RecvTimeoutError::Timeout) {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let done = child.wait_with_output();
    let _ = ended.send(());
    let _ = watchdog.join();
    done
}

/// Has a scene played, and judges by how its process ended.
fn watch(name: &str, notes: &Mutex<Vec<String>>) -> Result<Completion, Failed> {
    let mut command = Command::new(env::current_exe()?);
    let child = command
        .env(SCENE, name)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let map = format!("/tmp/perf-{}.map", child.id());
    let done = wait_patiently(child)?;
    // It is there when the scene had no `/tmp` of its own.
    let _ = fs::remove_file(map);
    let said = String::from_utf8_lossy(&done.stdout).trim_end().to_owned();
    match done.status.code() {
        Some(0) => {
            let mut notes = notes.lock().unwrap();
            notes.extend(said.lines().map(|line| format!("{name}: {line}")));
            Ok(Completion::Completed)
        }
        Some(SKIPPED) => Ok(Completion::ignored_with(said)),
        _ => Err(format!(
            "{}\n{said}\n{}",
            done.status,
            String::from_utf8_lossy(&done.stderr)
        )
        .into()),
    }
}
