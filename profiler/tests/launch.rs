//! Commands that are launched: they wait, they begin, they end. The test program is its own helper, which is why it
//! has a `main`: the helper is the program that launches, called again.

#![expect(clippy::print_stdout, reason = "a test that is skipped says why")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    ffi::OsString,
    fs,
    os::unix::{fs::chown, process::ExitStatusExt as _},
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

use libtest_mimic::{Arguments, Trial};
use pyprof_bpf::process::launch::{self, LaunchError, Launched, Trampolines};
use rustix::process::Signal;

/// Tells the test program to play the part of a program run by sudo, and where to write what it saw.
const UNDER_SUDO: &str = "TEST_LAUNCH_UNDER_SUDO";

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().collect();
    if words.get(1).is_some_and(|word| word == launch::HELPER) {
        return launch::exec_when_ready(&words[2..]).into();
    }
    if let Some(file) = std::env::var_os(UNDER_SUDO) {
        block_on(say_who_i_am(PathBuf::from(file)));
        return ExitCode::SUCCESS;
    }
    let trials = vec![
        trial("nothing_runs_before_the_release", waits),
        trial("a_launch_that_is_dropped_leaves_nothing", leaves_nothing),
        trial("the_pid_stays_through_the_release", keeps_pid),
        trial("perf_support_is_switched_on", has_perf_support),
        trial("standard_input_is_ours_and_nothing_leaks", leaks_nothing),
        trial("exit_codes_and_signals_come_back", ends),
        trial("what_cannot_run_says_so", cannot_run),
        trial("under_sudo_the_command_is_the_callers", is_the_callers),
    ];
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

fn trial<F: Future<Output = ()>>(
    name: &str,
    test: impl FnOnce(PathBuf) -> F + Send + 'static,
) -> Trial {
    Trial::test(name, move || {
        let dir = tempfile::tempdir()?;
        block_on(test(dir.path().to_owned()));
        Ok(())
    })
}

fn block_on(test: impl Future<Output = ()>) {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(test);
}

fn words(words: &[&str]) -> Vec<OsString> {
    words.iter().map(OsString::from).collect()
}

/// A shell that runs `script` with `$1` being `file`.
fn shell(script: &str, file: &Path) -> Vec<OsString> {
    let mut command = words(&["sh", "-c", script, "sh"]);
    command.push(file.into());
    command
}

/// Launches a script, waits for its end, and gives what it wrote to `$1`.
async fn output_of(script: &str, file: &Path) -> (String, Launched) {
    let mut launched = Launched::spawn(&shell(script, file), Trampolines::Own).unwrap();
    launched.release().await.unwrap();
    assert!(launched.wait().await.unwrap().success());
    (fs::read_to_string(file).unwrap(), launched)
}

async fn a_moment() {
    tokio::time::sleep(Duration::from_millis(200)).await;
}

async fn waits(dir: PathBuf) {
    let file = dir.join("ran");
    let mut launched = Launched::spawn(&shell("touch $1", &file), Trampolines::Own).unwrap();
    a_moment().await;
    assert!(!file.exists());
    launched.release().await.unwrap();
    assert!(launched.wait().await.unwrap().success());
    assert!(file.exists());
}

async fn leaves_nothing(dir: PathBuf) {
    let file = dir.join("ran");
    let launched = Launched::spawn(&shell("touch $1", &file), Trampolines::Own).unwrap();
    let exe = PathBuf::from(format!("/proc/{}/exe", launched.pid()));
    assert!(fs::read_link(&exe).is_ok());
    drop(launched);
    a_moment().await;
    assert!(fs::read_link(&exe).is_err(), "gone, or a zombie at most");
    assert!(!file.exists());
}

async fn keeps_pid(dir: PathBuf) {
    let (pid, launched) = output_of("echo $$ > $1", &dir.join("pid")).await;
    assert_eq!(pid.trim(), launched.pid().to_string());
}

async fn has_perf_support(dir: PathBuf) {
    let (value, _) = output_of("echo $PYTHONPERFSUPPORT > $1", &dir.join("value")).await;
    assert_eq!(value, "1\n");
}

async fn leaks_nothing(dir: PathBuf) {
    let script = "exec readlink /proc/self/fd/* > $1";
    let script = format!("{script} || true");
    let mut launched =
        Launched::spawn(&shell(&script, &dir.join("fds")), Trampolines::Own).unwrap();
    launched.release().await.unwrap();
    launched.wait().await.unwrap();
    let open = fs::read_to_string(dir.join("fds")).unwrap();
    let stdin = fs::read_link("/proc/self/fd/0").unwrap();
    assert_eq!(open.lines().next(), stdin.to_str());
    let sockets = |text: &str| text.matches("socket:").count();
    let own = ["0", "1", "2"].map(|fd| fs::read_link(Path::new("/proc/self/fd").join(fd)).unwrap());
    let own: usize = own
        .iter()
        .map(|link| sockets(&link.to_string_lossy()))
        .sum();
    assert!(sockets(&open) <= own, "{open}");
}

async fn ends(_: PathBuf) {
    let mut launched = Launched::spawn(&words(&["sh", "-c", "exit 7"]), Trampolines::Own).unwrap();
    launched.release().await.unwrap();
    assert_eq!(launched.wait().await.unwrap().code(), Some(7));

    let mut launched = Launched::spawn(&words(&["sleep", "60"]), Trampolines::Own).unwrap();
    launched.release().await.unwrap();
    launched.signal(Signal::TERM);
    let status = launched.wait().await.unwrap();
    assert_eq!(status.signal(), Some(Signal::TERM.as_raw()));
}

async fn cannot_run(dir: PathBuf) {
    let mut launched =
        Launched::spawn(&words(&["no-such-program-here"]), Trampolines::Own).unwrap();
    let err = launched.release().await.unwrap_err();
    assert!(matches!(err, LaunchError::NotFound { .. }), "{err:?}");
    assert_eq!(err.exit_code(), 127);
    assert!(err.to_string().contains("no-such-program-here"));

    let file = dir.join("data");
    fs::write(&file, "no program").unwrap();
    let mut launched = Launched::spawn(&[file.into_os_string()], Trampolines::Own).unwrap();
    let err = launched.release().await.unwrap_err();
    assert!(matches!(err, LaunchError::NotExecutable { .. }), "{err:?}");
    assert_eq!(err.exit_code(), 126);
}

async fn say_who_i_am(file: PathBuf) {
    let script = "(id -u; id -g; id -G; echo $HOME; echo \"[$SUDO_UID]\") > $1";
    output_of(script, &file).await;
}

/// sudo's variables belong to a process, so this needs another one.
async fn is_the_callers(dir: PathBuf) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can become another user");
        return;
    }
    let file = dir.join("who");
    fs::write(&file, "").unwrap();
    chown(&dir, Some(65534), None).unwrap();
    chown(&file, Some(65534), None).unwrap();
    let output = Command::new("/proc/self/exe")
        .env(UNDER_SUDO, &file)
        .envs([("SUDO_UID", "65534"), ("SUDO_GID", "65534")])
        .envs([("SUDO_USER", "nobody"), ("HOME", "/root")])
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let who = fs::read_to_string(&file).unwrap();
    let lines: Vec<&str> = who.lines().collect();
    assert_eq!(lines[..3], ["65534", "65534", "65534"]);
    assert_ne!(lines[3], "/root");
    assert_eq!(lines[4], "[]");
}
