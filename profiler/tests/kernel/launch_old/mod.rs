//! Commands that run CPython 3.9 to 3.11, which get their trampolines from the program.

mod sitecustomize;
mod stage;

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    time::{Duration, SystemTime},
};

use pyprof_bpf::process::launch::TrampolineFolder;
use rustix::process::Signal;

use sitecustomize::{customized, customized_wrongly, other_pythons};
use stage::{Stage, assert_named, said};

use super::{
    Python, Test, Verdict, eventually,
    recording::{Recording, record},
    running::{Running, remove_perf_map, signal},
    skip,
};

/// For each CPython from 3.9 to 3.11.
pub(super) const TESTS: &[Test] = &[
    ("names_are_there_however_it_is_started", ways_to_start),
    ("children_get_trampolines_too", children),
    ("the_users_own_sitecustomize_runs", customized),
    (
        "an_error_of_the_users_sitecustomize_is_the_users",
        customized_wrongly,
    ),
    ("options_that_ignore_the_environment_are_told", isolated),
    ("under_sudo_it_works_as_the_caller", under_sudo),
    ("odd_paths_do_no_harm", odd_paths),
    ("a_file_system_without_programs_is_passed_over", noexec),
    ("the_folder_stays_while_the_command_runs", folder_stays),
    (
        "the_folder_of_a_killed_profiler_goes_with_the_next",
        folder_of_killed,
    ),
    (
        "trampolines_that_come_late_are_told_with_the_command_that_helps",
        late,
    ),
];

/// For each CPython from 3.12 on.
pub(super) const TESTS_OF_NEW: &[Test] = &[(
    "a_python_with_trampolines_of_its_own_is_left_alone",
    left_alone,
)];

/// Once: what is neither.
pub(super) const TESTS_OF_OTHERS: &[Test] = &[(
    "pythons_that_cannot_have_trampolines_are_not_harmed",
    other_pythons,
)];

fn ways_to_start(python: &Python) -> Verdict {
    let stage = Stage::new();
    let path = python.path.to_str().unwrap();
    let (file, code) = (
        stage.text("started.py"),
        "import started; started.main(0.6, None)",
    );

    let venv = stage.text("venv");
    let mut make = python.plain();
    let made = make.args(["-m", "venv", "--without-pip", &venv]).status();
    assert!(made.unwrap().success());
    let in_venv = format!("{venv}/bin/python");

    let direct = stage.write("direct", &script_with(&format!("#!{path}")));
    let bin = python.path.parent().unwrap().to_str().unwrap();
    let (major, minor) = python.version;
    let by_env = stage.write(
        "by_env",
        &script_with(&format!("#!/usr/bin/env -S python{major}.{minor} -u")),
    );
    let exec = format!("exec '{path}' '{file}' 0.6");
    let script = stage.write("service", &format!("#!/bin/sh\ntrue\n{exec}\n"));

    let search = format!("{bin}:/usr/bin:/bin");
    let words: &[(&str, &[&str])] = &[
        ("a script", &[path, &file, "0.6"]),
        (
            "a script, unbuffered",
            &[path, "-u", "-W", "error", &file, "0.6"],
        ),
        ("a module", &[path, "-m", "started", "0.6"]),
        ("code", &[path, "-c", code]),
        ("a virtual environment", &[&in_venv, &file, "0.6"]),
        ("#!", &[direct.to_str().unwrap()]),
        ("#! with env", &[by_env.to_str().unwrap()]),
        ("a shell", &["sh", "-c", &exec]),
        ("a shell script", &[script.to_str().unwrap()]),
    ];
    for (what, words) in words {
        let mut command = stage.command(&[], words);
        let (output, recording) = stage.run(command.env("PATH", &search));
        assert_named(&recording, &["<module>"], what);
        assert_eq!(said(&output, "customized by"), ["nobody"], "{what}");
        assert_eq!(said(&output, "path clean:"), ["True"], "{what}");
        assert!(
            !recording.report.contains("Python names"),
            "{}",
            recording.report
        );
    }
    Ok(())
}

/// A program of its own that does what `started.py` does.
fn script_with(first_line: &str) -> String {
    format!("{first_line}\nimport started\nstarted.main(0.6, None)\n")
}

fn children(python: &Python) -> Verdict {
    let stage = Stage::new();
    let (path, file) = (python.path.to_str().unwrap(), stage.text("started.py"));
    for way in ["subprocess", "spawn", "fork"] {
        let (output, recording) = stage.run(&mut stage.command(&[], &[path, &file, "0.5", way]));
        assert_eq!(output.status.code(), Some(0), "{way}: {}", recording.report);
        // `multiprocessing` has another program beside them when it spawns.
        let pids = said(&output, "pid");
        assert_eq!(pids.len(), 2, "{way}: {pids:?}");
        let map = format!("/tmp/perf-{}.map", pids[1]);
        let entries = fs::read_to_string(&map).unwrap_or_else(|err| panic!("{way}: {map}: {err}"));
        remove_perf_map(pids[1].parse().unwrap());
        let named = |line: &str| line.contains(" py::work:") && line.ends_with("/started.py");
        assert!(entries.lines().any(named), "{way}: {entries}");
    }

    // A shell that stays: its child is recorded beside it, with names.
    let line = format!("'{path}' '{file}' 0.5; true");
    let (output, recording) = stage.run(&mut stage.command(&[], &["sh", "-c", &line]));
    let pid = said(&output, "pid")[0].to_owned();
    // Its map may be gone already: where the shell has no samples, it is the process that the report names.
    assert!(
        recording.count(|stack| stack.has("work")) > 100,
        "{}",
        recording.report
    );
    remove_perf_map(pid.parse().unwrap());
    Ok(())
}

fn isolated(python: &Python) -> Verdict {
    let stage = Stage::new();
    let (path, file) = (python.path.to_str().unwrap(), stage.text("started.py"));
    let (major, minor) = python.version;
    for option in ["-I", "-E", "-S"] {
        let (output, recording) = stage.run(&mut stage.command(&[], &[path, option, &file, "0.5"]));
        assert_eq!(
            output.status.code(),
            Some(0),
            "{option}: {}",
            recording.report
        );
        assert_eq!(recording.count(|stack| stack.has("work")), 0, "{option}");
        for words in [
            &*format!("CPython {major}.{minor} has no trampolines of its own"),
            &format!("`pyprof-bpf record --python-from perf-map -- python{major}.{minor} app.py`"),
            "-I, -E and -S",
        ] {
            let report = &recording.report;
            assert!(report.contains(words), "{option}: no {words:?} in {report}");
        }
    }
    Ok(())
}

/// The user `nobody`, if it can run this Python.
fn under_sudo(python: &Python) -> Verdict {
    const NOBODY: &str = "65534";
    let stage = Stage::new();
    let (path, file) = (python.path.to_str().unwrap(), stage.text("started.py"));
    // The shell has lost its privileges; setpriv itself still finds what only root may.
    let mut probe = Command::new("setpriv");
    probe
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .args(["sh", "-c", "exec \"$0\" -c ''", path]);
    if !probe
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
    {
        return skip("the user nobody cannot run this Python");
    }
    let run = || {
        let mut command = stage.command(&[], &[path, &file, "0.6"]);
        command
            .envs([("SUDO_UID", NOBODY), ("SUDO_GID", NOBODY)])
            .env("SUDO_USER", "nobody");
        stage.run(&mut command).1
    };
    // Root's map of an earlier process with the same pid may lie there, which nobody can neither write nor remove.
    let is_in_the_way = |recording: &Recording| recording.report.contains("Permission denied");
    let recording = (0..5)
        .map(|_| run())
        .find(|recording| !is_in_the_way(recording));
    let recording = recording.expect("a pid without an old perf map");
    assert_named(&recording, &["<module>"], "as nobody");
    Ok(())
}

fn odd_paths(python: &Python) -> Verdict {
    let stage = Stage::new();
    let path = python.path.to_str().unwrap();
    let folder = "it's a \"folder\" $HOME größe 🐍";
    let file = stage.write(
        &format!("{folder}/odd name.py"),
        "import started, beside\nassert beside.here\nstarted.main(0.6, None)\n",
    );
    stage.write(&format!("{folder} 2/beside.py"), "here = True\n");
    let users = format!("{}:{}", stage.text(&format!("{folder} 2")), stage.text(""));

    let mut command = stage.command(&[], &[path, file.to_str().unwrap()]);
    command.env("PYTHONPATH", &users);
    let (_, recording) = stage.run(&mut command);
    assert_named(&recording, &["<module>"], "an odd script");

    for (place, is_used) in [(folder.to_owned(), true), ("a:b".to_owned(), false)] {
        let _ = fs::create_dir(stage.path(&place));
        let code = "import os; print('folder', os.environ['PYTHONPATH'].split(':')[0])";
        let mut command = stage.command(&[], &[path, "-c", code]);
        let (output, recording) = stage.run(command.env("TMPDIR", stage.path(&place)));
        let used = said(&output, "folder")
            .first()
            .unwrap_or_else(|| panic!("{}", recording.report))
            .to_string();
        assert_eq!(used.starts_with(&stage.text(&place)), is_used, "{used}");
        assert!(!Path::new(&used).exists(), "{used}");
    }
    Ok(())
}

fn noexec(python: &Python) -> Verdict {
    let stage = Stage::new();
    let (path, file) = (python.path.to_str().unwrap(), stage.text("started.py"));
    let recorder = stage.command(&[], &[path, &file, "0.6"]);
    // In a mount namespace of its own, so that nobody else sees it.
    let mount = format!(
        "mount -t tmpfs -o noexec,mode=1777 tmpfs '{}' || exit 99; exec \"$@\"",
        stage.text("tmp")
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &mount, "sh"]);
    command
        .arg(recorder.get_program())
        .args(recorder.get_args());
    command.current_dir(stage.path(""));
    for (name, value) in recorder.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let (output, recording) = stage.run(&mut command);
    if output.status.code() == Some(99) {
        return skip("no file system can be mounted here");
    }
    assert_named(&recording, &["<module>"], "noexec");
    let used = said(&output, "sitecustomize from")[0];
    assert!(!used.starts_with(&stage.text("tmp")), "{used}");
    Ok(())
}

fn folder_stays(python: &Python) -> Verdict {
    let stage = Stage::new();
    let path = python.path.to_str().unwrap();
    let code = "import os, sys\nprint(len(os.listdir(os.environ['TMPDIR'])), flush=True)\n\
                sys.stdin.read()\nprint(len(os.listdir(os.environ['TMPDIR'])), flush=True)";
    let mut command = stage.command(&["-d", "0.2"], &[path, "-c", code]);
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // The recording is over, the command is not.
    eventually("a result", || stage.path("profile.folded").exists());
    assert_eq!(stage.leftovers().len(), 1);
    drop(child.stdin.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stdout), "1\n1\n");
    assert!(stage.leftovers().is_empty());
    fs::remove_file(stage.path("profile.folded")).unwrap();

    // Neither does an end from outside leave one, nor a command that does not begin.
    let mut command = stage.command(&[], &[path, "-c", "import time; time.sleep(600)"]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    eventually("a start", || !stage.leftovers().is_empty());
    signal(child.id(), Signal::TERM);
    child.wait().unwrap();
    assert!(stage.leftovers().is_empty());

    let _ = fs::remove_file(stage.path("profile.folded"));
    let own_interpreter = format!("#!{}\n", stage.text("broken"));
    let broken = stage.write("broken", &own_interpreter);
    let (output, _) = stage.run(&mut stage.command(&[], &[broken.to_str().unwrap()]));
    assert_eq!(output.status.code(), Some(126), "{output:?}");
    Ok(())
}

fn folder_of_killed(python: &Python) -> Verdict {
    let stage = Stage::new();
    let path = python.path.to_str().unwrap();
    let mut command = stage.command(&[], &[path, "-c", "import time; time.sleep(0.5)"]);
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    eventually("a start", || !stage.leftovers().is_empty());
    signal(child.id(), Signal::KILL);
    child.wait().unwrap();
    let leftovers = stage.leftovers();
    let [folder] = leftovers.as_slice() else {
        panic!("{leftovers:?}");
    };

    // What is new may be in the making: it stays.
    let next = || {
        let output = stage.command(&["-d", "0.2"], &[path, "-c", ""]).output();
        let _ = fs::remove_file(stage.path("profile.folded"));
        assert!(output.unwrap().status.code().is_some());
    };
    next();
    assert_eq!(stage.leftovers(), leftovers);
    let hour_ago = SystemTime::now() - Duration::from_hours(1);
    fs::File::open(folder)
        .and_then(|folder| folder.set_modified(hour_ago))
        .unwrap();
    next();
    assert!(stage.leftovers().is_empty());
    Ok(())
}

/// The package is used by the program itself, as one that is installed would be.
const LATE: &str = "
import sys
sys.path.insert(0, sys.argv[1])
import pyprof_trampoline
def work():
    for number in range(1000):
        number * number
def serve():
    pyprof_trampoline.activate()
    print('ready', flush=True)
    while True:
        work()
serve()
";

fn late(python: &Python) -> Verdict {
    let folder = TrampolineFolder::for_command(&["sh".into()]);
    let folder = folder.unwrap().expect("a shell may start anything");
    let target = Running::start(python.plain().args(["-c", LATE]).arg(folder.path()));
    let recording = record(target.pid(), &["-F", "999", "-d", "1.5"]);
    let report = &recording.assert_done(50).report;
    let named = recording.count(|stack| stack.has("work"));
    assert!(named > 0, "{report}");
    assert_eq!(recording.count(|stack| stack.has("serve")), 0, "{report}");
    let (major, minor) = python.version;
    let command =
        format!("`pyprof-bpf record --python-from perf-map -- python{major}.{minor} app.py`");
    for words in ["switched on late", &command] {
        assert!(report.contains(words), "no {words:?} in {report}");
    }
    Ok(())
}

fn left_alone(python: &Python) -> Verdict {
    let stage = Stage::new();
    let path = python.path.to_str().unwrap();
    let code = "import os, sys; print('PYTHONPATH', os.environ.get('PYTHONPATH'), 'sitecustomize' in sys.modules)";
    let script = stage.write("direct", &format!("#!{path}\n{code}\n"));
    for words in [&[path, "-c", code][..], &[script.to_str().unwrap()]] {
        let (output, _) = stage.run(&mut stage.command(&[], words));
        assert!(
            said(&output, "PYTHONPATH")[0].starts_with("None"),
            "{output:?}"
        );
        let mut command = stage.command(&[], words);
        let (output, _) = stage.run(command.env("PYTHONPATH", "/mine:/too"));
        assert!(
            said(&output, "PYTHONPATH")[0].starts_with("/mine:/too"),
            "{output:?}"
        );
    }

    // What a shell starts cannot be known: then ours is there, and stays out of the way.
    let line = format!("exec '{path}' '{}' 0.6", stage.text("started.py"));
    let (output, recording) = stage.run(&mut stage.command(&[], &["sh", "-c", &line]));
    assert_named(&recording, &["<module>"], "a shell");
    assert_eq!(said(&output, "path clean:"), ["True"]);
    Ok(())
}
