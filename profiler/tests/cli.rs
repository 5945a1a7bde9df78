//! The program as people and scripts call it: words in, text and exit code out. Nothing here needs privileges.

#![expect(clippy::print_stdout, reason = "a test that is skipped says why")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    path::Path,
    process::{Command, Output, Stdio},
};

/// Options of setpriv that leave an ordinary user.
const NOBODY: [&str; 3] = ["--reuid=65534", "--clear-groups", "--bounding-set=-all"];

/// The program, away from the environment of whoever runs the tests.
fn pyprof() -> Command {
    cleaned(Command::new(env!("CARGO_BIN_EXE_pyprof-bpf")))
}

fn cleaned(mut command: Command) -> Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("PYPROF_") {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

fn run(words: &[&str]) -> Output {
    pyprof().args(words).output().unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

#[test]
fn help_goes_to_standard_output() {
    for words in [&["-h"][..], &["--help"], &["record", "--help"]] {
        let output = run(words);
        assert_eq!(output.status.code(), Some(0), "{words:?}");
        let text = stdout(&output);
        for word in [
            "--pid",
            "--all-python",
            "--cgroup",
            "--container",
            "--subprocesses",
            "--no-subprocesses",
            "--merge-processes",
            "--duration",
            "--frequency",
            "--output",
            "--format",
            "--view",
            "--native",
            "--lines",
            "--kernel",
            "--threads",
            "Examples:",
            "Sampling:",
        ] {
            assert!(text.contains(word), "{words:?}: no {word}");
        }
        assert!(!text.contains("bpf-stats"), "{words:?}");
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{words:?}: {widest:?} columns");
        assert!(stderr(&output).is_empty());
    }
}

#[test]
fn the_long_help_lists_exit_codes_and_environment() {
    let text = stdout(&run(&["--help"]));
    for word in ["Exit status:", "130", "127", "PYPROF_FREQUENCY", "NO_COLOR"] {
        assert!(text.contains(word), "no {word}");
    }
}

#[test]
fn the_version_says_where_the_bpf_object_came_from() {
    let text = stdout(&run(&["--version"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], concat!("pyprof-bpf ", env!("CARGO_PKG_VERSION")));
    assert!(lines[1].starts_with("BPF object: "));
    assert_eq!(stdout(&run(&["-V"])).lines().count(), 1);
}

#[test]
fn wrong_usage_exits_with_2_and_says_why() {
    for (words, reason) in [
        (&[][..], "nothing to record"),
        (&["record"], "nothing to record"),
        (&["4242"], "--pid 4242"),
        (&["record", "python", "app.py"], "record -- python"),
        (&["--pid", "x"], "not a whole number"),
        (&["--pid", "-5"], "--pid"),
        (&["--pid", "0"], "from 1 to"),
        (&["--pid", "99999999999"], "from 1 to"),
        (&["--pid", "1", "-F", "abc"], "not a whole number"),
        (&["--pid", "1", "--frequency", "0"], "--frequency"),
        (&["--pid", "1", "--duration", "5x"], "unknown unit"),
        (&["--pid", "1", "--output", "profile.png"], "which format"),
        (&["--pid", "1", "--format", "png"], "svg"),
        (&["--pid", "1", "--native", "--view", "native"], "--view"),
        (&["--pid", "1", "--", "true"], "exclude each other"),
        (&["--pid", "1,x"], "not a whole number"),
        (&["--pid", "1", "--all-python"], "exclude each other"),
        (&["--container", "web"], "docker inspect"),
        (&["--container", "ab"], "too short"),
        (&["--all-python", "--", "true"], "exclude each other"),
        (&["--bogus"], "--bogus"),
        (&["activate"], "--pid"),
        (
            &["activate", "--pid", "1", "--timeout", "5x"],
            "unknown unit",
        ),
    ] {
        let output = run(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.starts_with("error: "), "{words:?}: {text}");
        assert!(text.contains(reason), "{words:?}: {text}");
        let said = text.lines().filter(|line| !line.trim().is_empty());
        assert!(said.count() <= 5, "{words:?}: {text}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn options_come_from_the_environment_too() {
    for (name, value, reason) in [
        ("PYPROF_FREQUENCY", "0", "--frequency"),
        ("PYPROF_DURATION", "5x", "unknown unit"),
        ("PYPROF_OUTPUT", "a.png", "which format"),
        ("PYPROF_KERNEL", "maybe", "--kernel"),
        ("PYPROF_VIEW", "sideways", "--view"),
        ("PYPROF_PID", "x", "--pid"),
        ("PYPROF_SUBPROCESSES", "perhaps", "--subprocesses"),
        ("PYPROF_ALL_PYTHON", "yes", "exclude each other"),
        ("PYPROF_CGROUP", "/a", "exclude each other"),
        ("PYPROF_CONTAINER", "0123", "exclude each other"),
    ] {
        let output = pyprof()
            .env("PYPROF_PID", "1")
            .env(name, value)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(2), "{name}");
        assert!(
            stderr(&output).contains(reason),
            "{name}: {}",
            stderr(&output)
        );
    }
}

/// The unknown extension is the one thing wrong with these words: all else was accepted.
#[test]
fn what_is_typed_wins_over_the_environment() {
    let output = pyprof()
        .args(["--view", "native", "-q", "-o", "a.png", "--", "true"])
        .env("PYPROF_PID", "1")
        .env("PYPROF_NATIVE", "yes")
        .env("PYPROF_VERBOSE", "2")
        .output()
        .unwrap();
    assert!(stderr(&output).contains("a.png"), "{}", stderr(&output));
}

/// Both of the pair were accepted, the one typed and the one in the environment: the unknown extension is the one thing wrong.
#[test]
fn child_processes_are_a_choice_that_can_be_typed_over_the_environment() {
    for (name, value, word) in [
        ("PYPROF_SUBPROCESSES", "1", "--no-subprocesses"),
        ("PYPROF_SUBPROCESSES", "0", "--no-subprocesses"),
        ("PYPROF_SUBPROCESSES", "0", "-s"),
        ("PYPROF_NO_SUBPROCESSES", "1", "-s"),
        ("PYPROF_NO_SUBPROCESSES", "0", "--no-subprocesses"),
    ] {
        let output = pyprof()
            .args(["--pid", "1", word, "-o", "a.png"])
            .env(name, value)
            .output()
            .unwrap();
        let text = stderr(&output);
        assert!(text.contains("a.png"), "{name}={value} {word}: {text}");
    }
}

#[test]
fn no_advice_starts_a_command_that_was_not_meant() {
    for (words, reason) in [
        (&["--pid", "1", "-d", "-1"][..], "--duration"),
        (&["--pid", "-5"], "--pid"),
        (&["--pid", "1", "-F", "-99"], "--frequency"),
        (&["--pid", "1", "--foo"], "--foo"),
        (&["doctor", "--pid", "-5"], "--pid"),
        (&["doctor", "--foo"], "--foo"),
        (&["doctor", "foo"], "foo"),
        (&["activate", "--pid", "1", "--timeout", "-1"], "--timeout"),
        (&["-1"], "-1"),
    ] {
        let output = run(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(reason), "{words:?}: {text}");
        for tip in ["-- -", "as a value", "record --"] {
            assert!(!text.contains(tip), "{words:?}: {text}");
        }
    }
    // An option that is nearly right still is.
    let text = stderr(&run(&["--pid", "1", "--formt", "svg"]));
    assert!(text.contains("--format"), "{text}");
}

#[test]
fn a_number_alone_is_the_pid_of_the_command_it_was_given_to() {
    for (words, advice, usage) in [
        (
            &["doctor", "123"][..],
            "`doctor --pid 123`",
            "Usage: pyprof-bpf doctor",
        ),
        (
            &["activate", "123"],
            "`activate --pid 123`",
            "Usage: pyprof-bpf activate",
        ),
        (
            &["record", "123"],
            "`--pid 123`",
            "Usage: pyprof-bpf record",
        ),
        (&["123"], "`--pid 123`", "Usage: pyprof-bpf [OPTIONS]"),
    ] {
        let output = run(words);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {text}");
        assert!(text.contains(advice), "{words:?}: {text}");
        assert!(text.contains(usage), "{words:?}: {text}");
        assert_eq!(
            text.contains("to record"),
            !words.contains(&"doctor") && !words.contains(&"activate"),
            "{text}"
        );
    }
}

/// It is for others, and a risk only where that is typed.
#[test]
fn switching_trampolines_on_is_explained() {
    for words in [&["activate", "-h"][..], &["activate", "--help"]] {
        let text = stdout(&run(words));
        for word in ["--pid", "--off", "--timeout"] {
            assert!(text.contains(word), "{words:?}: no {word}");
        }
        let widest = text.lines().map(|line| line.chars().count()).max();
        assert!(widest <= Some(100), "{words:?}: {widest:?} columns");
    }
    let text = stdout(&run(&["activate", "--help"]));
    for word in ["Recording does not need this", "PEP 768", "Exit status:"] {
        assert!(text.contains(word), "no {word}");
    }
    let output = run(&["activate", "--pid", "4194304"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("no process 4194304"));
}

#[test]
fn the_doctor_says_what_is_here_in_lines_of_one_form() {
    let output = run(&["doctor"]);
    let text = stdout(&output);
    let missing = text.lines().any(|line| line.starts_with("  missing "));
    assert_eq!(output.status.code(), Some(i32::from(missing)), "{text}");
    for name in [
        "kernel",
        "CAP_BPF",
        "CAP_PERFMON",
        "perf_event_paranoid",
        "container",
    ] {
        let mut lines = text.lines();
        let found = lines.find(|line| line.get(11..).is_some_and(|line| line.starts_with(name)));
        assert!(found.is_some(), "no {name}: {text}");
    }
    let output = run(&["doctor", "--pid", "4194304"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("there is no process 4194304"));
    assert_eq!(run(&["doctor", "--pid", "x"]).status.code(), Some(2));
    let help = stdout(&run(&["doctor", "--help"]));
    assert!(
        help.contains("Exit status:") && help.contains("limited"),
        "{help}"
    );
}

#[test]
fn completions_are_made_for_each_shell() {
    for shell in ["bash", "zsh", "fish"] {
        let output = run(&["completions", shell]);
        assert_eq!(output.status.code(), Some(0), "{shell}");
        let script = stdout(&output);
        assert!(script.contains("frequency"), "{shell}");
        assert!(!script.contains("exec-when-ready"), "{shell}");
        // Each shell reads its own script without complaint, where there is that shell.
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), script).unwrap();
        match Command::new(shell).arg("-n").arg(file.path()).output() {
            Ok(checked) => assert!(checked.status.success(), "{}", stderr(&checked)),
            Err(err) => println!("not checked: no {shell} here ({err})"),
        }
    }
    assert_eq!(run(&["completions", "abacus"]).status.code(), Some(2));
}

#[test]
fn the_manual_page_renders() {
    let output = run(&["man"]);
    assert_eq!(output.status.code(), Some(0));
    let page = stdout(&output);
    assert!(page.contains(".TH pyprof-bpf 1"), "{page}");
    assert!(page.contains("Exit status:"), "{page}");
}

#[test]
fn a_reader_that_has_enough_is_no_failure() {
    let mut child = pyprof()
        .args(["completions", "bash"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0));
    assert!(stderr(&output).is_empty(), "{}", stderr(&output));
}

/// A shell that runs this script, in which `"$@"` is the program with these words.
fn in_shell(script: &str, words: &[&str]) -> Output {
    cleaned(Command::new("sh"))
        .args(["-c", script, "sh", env!("CARGO_BIN_EXE_pyprof-bpf")])
        .args(words)
        .output()
        .unwrap()
}

#[test]
fn what_cannot_be_printed_is_a_failure() {
    for words in [
        &["--help"][..],
        &["--version"],
        &["doctor"],
        &["completions", "bash"],
        &["man"],
    ] {
        for (script, reason) in [
            ("exec \"$@\" > /dev/full", "No space left on device"),
            ("exec \"$@\" >&-", "standard output is closed"),
        ] {
            let output = in_shell(script, words);
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(1), "{words:?} {script}: {text}");
            assert!(text.contains(reason), "{words:?} {script}: {text}");
        }
    }
}

#[test]
fn limits_that_are_too_low_are_named() {
    for (script, reason) in [
        ("ulimit -v 100000; exec \"$@\"", "raise `ulimit -v`"),
        ("ulimit -n 6; exec \"$@\"", "raise `ulimit -n`"),
        ("ulimit -n 20; exec \"$@\"", "raise `ulimit -n`"),
    ] {
        let output = in_shell(script, &["--pid", "1", "-d", "1", "-o", "/dev/null"]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{script}: {text}");
        assert!(text.contains(reason), "{script}: {text}");
    }
}

/// Runs a copy of the program in `dir`, as setpriv leaves it. `None`, with the reason printed, where that cannot be.
fn without_privileges(setpriv: &[&str], words: &[&str], dir: &Path) -> Option<Output> {
    use std::os::unix::fs::PermissionsExt as _;

    if !rustix::process::geteuid().is_root() {
        println!("skipped: only root can take its privileges away");
        return None;
    }
    // A copy, as another user may not look into the directory it was built in. By `cp`, because a program cannot be
    // run while it is open for writing, and what this process has open another test's child may have for a moment.
    let program = dir.join("pyprof-bpf");
    let copied = Command::new("cp")
        .arg(env!("CARGO_BIN_EXE_pyprof-bpf"))
        .arg(&program)
        .status();
    assert!(copied.unwrap().success());
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    cleaned(Command::new("setpriv"))
        .args(setpriv)
        .arg(&program)
        .args(words)
        .current_dir(dir)
        .env("RUST_BACKTRACE", "1")
        .output()
        .inspect_err(|err| println!("skipped: no setpriv here ({err})"))
        .ok()
}

#[test]
fn a_missing_privilege_is_named_with_the_command_that_helps() {
    for (setpriv, help) in [
        (&NOBODY[..], "setcap cap_bpf,"),
        (&["--bounding-set=-all"], "--cap-add=BPF"),
    ] {
        for words in [&["--pid", "1"][..], &["record", "--", "true"]] {
            let dir = tempfile::tempdir().unwrap();
            let Some(output) = without_privileges(setpriv, words, dir.path()) else {
                return;
            };
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(4), "{text}");
            assert!(text.starts_with("error: "), "{text}");
            assert!(text.contains("CAP_BPF") && text.contains(help), "{text}");
            assert!(text.lines().count() <= 5, "{text}");
            assert!(!text.contains("backtrace"), "{text}");
            assert!(output.stdout.is_empty());
            let files = std::fs::read_dir(dir.path()).unwrap().count();
            assert_eq!(files, 1, "only the program itself is there");
        }
    }
}

#[test]
fn the_advice_repeats_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let words = ["--pid", "1", "-d", "5", "-o", "my app.svg"];
    if let Some(output) = without_privileges(&NOBODY, &words, dir.path()) {
        let text = stderr(&output);
        assert!(
            text.contains("pyprof-bpf --pid 1 -d 5 -o 'my app.svg'"),
            "{text}"
        );
    }
}
