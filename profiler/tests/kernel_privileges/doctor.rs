//! `pyprof-bpf doctor` on the real machine, for those who ask: root, a user without rights, and in namespaces.

use std::{fs, process::Command};

use super::{OTHER, Python, USER, program, texts, user_with, with_rights};

/// State and finding of the check of that name.
fn line<'a>(text: &'a str, name: &str) -> (&'a str, &'a str) {
    let found = text.lines().find_map(|line| {
        let (state, rest) = line.trim_start().split_once(' ')?;
        let finding = rest.trim_start().strip_prefix(name)?;
        Some((state, finding.strip_prefix(' ')?.trim_start()))
    });
    found.unwrap_or_else(|| panic!("no {name} in\n{text}"))
}

/// Every line that is not `ok` has a next step below it, or below the last of several that have it in common.
fn assert_complete(text: &str) {
    let mut waits = false;
    for line in text.lines() {
        let state = line.trim_start().split(' ').next().unwrap_or_default();
        match state {
            "limited" | "missing" => waits = true,
            "→" => waits = false,
            "" => assert!(!waits, "no next step at the end of a part of\n{text}"),
            _ => {}
        }
    }
    assert!(!text.contains('\x1b'), "colours are for terminals");
}

pub(super) fn of_root(python: &Python) {
    let target = python.target(USER, "", true);
    let output = with_rights(&["--reuid=0"], &["doctor", "--pid", &target.pid()]);
    let (errors, text) = texts(&output);
    assert!(
        output.status.success() && errors.is_empty(),
        "{errors}{text}"
    );
    assert_complete(&text);
    for name in [
        "kernel",
        "CAP_BPF",
        "CAP_SYS_PTRACE",
        "BPF and events",
        "process",
        "Python",
    ] {
        assert_eq!(line(&text, name).0, "ok", "{text}");
    }
    assert!(line(&text, "namespaces").1.contains("mounts"), "{text}");
    assert!(line(&text, "Python").1.contains("shared library"), "{text}");
    assert!(
        line(&text, "trampolines").1.contains("since its start"),
        "{text}"
    );
    assert!(line(&text, "perf map").1.contains("entries"), "{text}");
    assert_eq!(line(&text, "names"), ("ok", "Python functions have names"));
    assert!(
        text.trim_end()
            .lines()
            .next_back()
            .unwrap()
            .starts_with("can record")
    );
}

pub(super) fn of_a_user_without_rights(python: &Python) {
    let target = python.target(USER, "", true);
    let setpriv = user_with(OTHER, "-bpf");
    let setpriv: Vec<&str> = setpriv.iter().map(String::as_str).collect();
    let output = with_rights(&setpriv, &["doctor", "--pid", &target.pid()]);
    let (errors, text) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{errors}{text}");
    assert!(errors.is_empty(), "{errors}");
    assert_complete(&text);
    assert_eq!(line(&text, "CAP_BPF").0, "missing");
    assert_eq!(line(&text, "CAP_SYSLOG").0, "limited");
    assert_eq!(line(&text, "process").0, "missing");
    assert!(text.contains("sudo setcap cap_bpf,"), "{text}");
    assert!(text.contains("cannot record: 3 missing"), "{text}");
}

/// A perf map that a recording would refuse, and a library that it could not read, are found beforehand.
pub(super) fn of_a_target_with_faults(python: &Python) {
    let target = python.target(USER, "", true);
    let map = format!("/proc/{0}/root/tmp/perf-{0}.map", target.pid());
    fs::remove_file(&map).unwrap();
    std::os::unix::fs::symlink("/etc/shadow", &map).unwrap();
    let rights = "+bpf,+perfmon,+sys_ptrace,+dac_read_search";
    let setpriv = user_with(OTHER, rights);
    let setpriv: Vec<&str> = setpriv.iter().map(String::as_str).collect();
    let output = with_rights(&setpriv, &["doctor", "--pid", &target.pid()]);
    let (_, text) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "with limits: {text}");
    assert_complete(&text);
    let (state, finding) = line(&text, "perf map");
    // The interpreter says what its functions are called.
    assert_eq!(state, "ok", "{text}");
    assert!(
        finding.contains("not needed: it is a symbolic link"),
        "{text}"
    );
    let (state, finding) = line(&text, "files");
    assert_eq!(state, "limited");
    assert!(finding.contains("libpython3."), "{text}");
    assert_eq!(line(&text, "names").0, "ok");
    let secret = fs::read_to_string("/etc/shadow").unwrap();
    let shown = secret.lines().any(|line| text.contains(line));
    assert!(!shown, "nothing of a refused file is shown");
}

pub(super) fn in_namespaces(_: &Python) {
    let (dir, program) = program();
    let doctor = |unshare: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(unshare).arg(&program).arg("doctor");
        command.current_dir(dir.path()).output().unwrap()
    };
    let output = doctor(&["--user", "--map-root-user"]);
    let (_, text) = texts(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert_complete(&text);
    assert_eq!(line(&text, "user namespace").0, "missing");
    assert_eq!(line(&text, "CAP_BPF").0, "missing");
    let output = doctor(&["--fork", "--pid", "--mount-proc"]);
    let (_, text) = texts(&output);
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert_complete(&text);
    let (state, finding) = line(&text, "container");
    assert_eq!(state, "limited");
    assert!(finding.contains("a pid namespace"), "{text}");
    assert_eq!(line(&text, "BPF and events").0, "ok");
    // `unshare` itself does not know that option of proc.
    let hidden = "mount -t proc -o hidepid=2 proc /proc && exec setpriv --bounding-set=-sys_ptrace \"$0\" doctor";
    let output = Command::new("unshare")
        .args(["--fork", "--pid", "--mount", "sh", "-c", hidden])
        .arg(&program)
        .output()
        .unwrap();
    let (errors, text) = texts(&output);
    let (state, finding) = line(&text, "/proc");
    assert_eq!(state, "limited", "{errors}{text}");
    assert!(finding.contains("hidepid="), "{text}");
}
