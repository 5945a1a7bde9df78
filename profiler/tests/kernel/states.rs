//! Processes in states that few are in: without their first thread, held, Pythons by another name; and groups that only
//! look like containers.

use std::{
    fs,
    os::unix::fs::{PermissionsExt as _, chown},
    path::{Path, PathBuf},
    process::Command,
};

use rustix::process::Signal;

use super::{
    Python, Skip, Test, Verdict, eventually,
    recording::{Recording, WHOLE, pyprof, record},
    running::{Running, signal},
    scratch, skip, workload,
};

pub(super) const TESTS: &[Test] = &[
    (
        "a_process_whose_first_thread_has_ended_is_recorded",
        first_thread,
    ),
    ("a_stopped_process_is_named_as_such", stopped),
    ("a_frozen_process_is_named_as_such", frozen),
    (
        "children_that_are_pythons_by_another_name_are_named",
        other_names,
    ),
    (
        "a_group_that_a_user_named_like_a_container_is_not_recorded",
        intruder,
    ),
];

/// The interpreter's own frames, which need nothing of the process.
fn own_frames(mut command: Command) -> Command {
    command.env_remove("PYPROF_PYTHON_FROM");
    command
}

fn report_of(command: &mut Command) -> (Option<i32>, String) {
    let output = command.output().unwrap();
    (
        output.status.code(),
        String::from_utf8(output.stderr).unwrap(),
    )
}

fn doctor(pid: u32) -> String {
    let output = pyprof()
        .args(["doctor", "--pid", &pid.to_string()])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn first_thread(python: &Python) -> Verdict {
    let code = "
import ctypes, threading
def inner():
    return sum(i * i for i in range(2000))
def worker():
    while True: inner()
threading.Thread(target=worker).start()
print('ready', flush=True)
ctypes.CDLL(None).pthread_exit(None)";
    for command in [&mut python.plain(), &mut python.perf()] {
        let target = Running::start(command.args(["-c", code]));
        let pid = target.pid();
        eventually("the end of its first thread", || {
            fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| stat.contains(") Z "))
        });
        let mut command = own_frames(pyprof());
        command.args(["--pid", &pid.to_string(), "-d", "1.5", "-F", "499"]);
        command.args(["-f", "folded", "-o", "-"]);
        let recording = of_stdout(&mut command);
        recording.assert_done(50).assert_whole(WHOLE);
        let share = recording.share(|stack| stack.has("inner") && stack.has("worker"));
        assert!(share > 0.9, "{share}: {:?}", recording.stacks);
        assert!(
            recording.report.contains(" of pid ") && !recording.report.contains("exited"),
            "{}",
            recording.report
        );
        let said = doctor(pid);
        assert!(
            said.contains("its first thread has ended")
                && said.contains("Python functions have names"),
            "{said}"
        );
        // Selected as well, not only by its pid.
        let (code, said) = report_of(own_frames(pyprof()).args([
            "--all-python",
            "-d",
            "1",
            "-f",
            "folded",
            "-o",
            "-",
        ]));
        assert_eq!(code, Some(0), "{said}");
    }
    Ok(())
}

fn of_stdout(command: &mut Command) -> Recording {
    let output = command.output().unwrap();
    let files = scratch();
    let file = files.path().join("profile.folded");
    fs::write(&file, &output.stdout).unwrap();
    Recording::of(&output, &file)
}

fn stopped(python: &Python) -> Verdict {
    let target = Running::start(python.plain().arg(workload("chain")));
    signal(target.pid(), Signal::STOP);
    eventually("its stop", || {
        fs::read_to_string(format!("/proc/{}/stat", target.pid()))
            .is_ok_and(|stat| stat.contains(") T "))
    });
    let recording = record(target.pid(), &["-d", "1"]);
    let remedy = format!("`kill -CONT {}`", target.pid());
    assert_eq!(recording.status.code(), Some(3), "{}", recording.report);
    // Once when it begins, and once when it is over.
    assert_eq!(
        recording.report.matches(&remedy).count(),
        2,
        "{}",
        recording.report
    );
    let said = doctor(target.pid());
    assert!(
        said.contains(&remedy) && said.contains("stopped by a signal"),
        "{said}"
    );
    signal(target.pid(), Signal::CONT);
    let recording = record(target.pid(), &["-d", "1", "-F", "499"]);
    assert!(
        !recording.report.contains("stopped"),
        "{}",
        recording.report
    );
    Ok(())
}

fn frozen(python: &Python) -> Verdict {
    let (root, freeze, on, off) = freezer()?;
    let group = Group::new(&root.join(format!("pyprof-frozen-{}", std::process::id())))?;
    let target = Running::start(python.plain().arg(workload("chain")));
    group.enter(target.pid());
    fs::write(group.0.join(freeze), on).unwrap();
    let recording = record(target.pid(), &["-d", "1"]);
    let said = doctor(target.pid());
    fs::write(group.0.join(freeze), off).unwrap();
    drop(target);
    for text in [&recording.report, &said] {
        assert!(
            text.contains("frozen with its control group") && text.contains(freeze),
            "{text}"
        );
    }
    assert_eq!(recording.status.code(), Some(3), "{}", recording.report);
    Ok(())
}

/// A hierarchy with a freezer, the file that switches it, and what is written there.
fn freezer() -> Result<(PathBuf, &'static str, &'static str, &'static str), Skip> {
    for (root, file, on, off) in [
        ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
        (
            "/sys/fs/cgroup/freezer",
            "freezer.state",
            "FROZEN",
            "THAWED",
        ),
    ] {
        let root = Path::new(root);
        let probe = root.join(format!("pyprof-probe-{}", std::process::id()));
        if root.join("cgroup.procs").exists() && fs::create_dir(&probe).is_ok() {
            let can_freeze = probe.join(file).exists();
            fs::remove_dir(&probe).unwrap();
            if can_freeze {
                return Ok((root.to_owned(), file, on, off));
            }
        }
    }
    skip("no control group can be frozen here")
}

/// A control group of a test.
struct Group(PathBuf);

impl Group {
    fn new(folder: &Path) -> Result<Self, Skip> {
        match fs::create_dir_all(folder) {
            Ok(()) => Ok(Self(folder.to_owned())),
            Err(error) => skip(format!("no control group can be made here: {error}")),
        }
    }

    fn enter(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // What was in it may be on its way out.
        for _ in 0..500 {
            if fs::remove_dir(&self.0).is_ok() || !self.0.exists() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// A copy of the program under another name, and the program started by the dynamic loader.
fn other_names(python: &Python) -> Verdict {
    let files = scratch();
    let copy = files.path().join("worker-process");
    let program = fs::canonicalize(&python.path).unwrap();
    fs::copy(&program, &copy).unwrap();
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
    let home = program.parent().and_then(Path::parent).unwrap();
    let loader = "/lib64/ld-linux-x86-64.so.2";
    let mut commands = vec![vec![copy.clone()]];
    if Path::new(loader).exists() {
        commands.push(vec![loader.into(), program.clone()]);
    }
    for command in commands {
        let mut shell = Command::new("sh");
        shell
            .args(["-c", "setpriv --pdeathsig KILL \"$@\" & wait", "sh"])
            .args(&command)
            .arg(workload("chain"))
            .env("PYTHONHOME", home)
            .env("LD_LIBRARY_PATH", home.join("lib"))
            .env("PYTHONDONTWRITEBYTECODE", "1");
        let shell = Running::start(&mut shell);
        let recording = record(shell.pid(), &["-d", "1.5"]);
        assert_eq!(recording.status.code(), Some(3), "{}", recording.report);
        assert!(
            recording.report.contains("-s records them too"),
            "{command:?}: {}",
            recording.report
        );
        let said = doctor(shell.pid());
        assert!(
            said.contains("processes that it started run Python (pid "),
            "{said}"
        );
        let mut command = own_frames(pyprof());
        command.args(["--pid", &shell.pid().to_string(), "-s", "-d", "1.5"]);
        let recording = of_stdout(command.args(["-F", "499", "-f", "folded", "-o", "-"]));
        recording.assert_done(20);
        let share = recording.share(|stack| stack.has("foo"));
        assert!(share > 0.9, "{share}: {}", recording.report);
    }
    Ok(())
}

fn intruder(python: &Python) -> Verdict {
    if !rustix::process::geteuid().is_root() {
        return skip("giving a control group to a user takes root");
    }
    let root = ["", "unified"]
        .map(|hierarchy| Path::new("/sys/fs/cgroup").join(hierarchy))
        .into_iter()
        .find(|root| root.join("cgroup.controllers").exists());
    let Some(root) = root else {
        return skip("there is no hierarchy of version 2");
    };
    let own = std::process::id();
    let id = format!("{own:08x}{}", "0123456789abcdef".repeat(4).split_at(56).0);
    let other = format!("{own:08x}{}", "fedcba9876543210".repeat(4).split_at(56).0);
    let system = Group::new(&root.join(format!("pyprof-system-{own}")))?;
    let real = Group::new(&system.0.join(format!("docker-{id}.scope")))?;
    let user = Group::new(&root.join(format!("pyprof-user-{own}")))?;
    chown(&user.0, Some(1000), Some(1000)).unwrap();
    let same = Group::new(&user.0.join(format!("docker-{id}.scope")))?;
    let alike = Group::new(&user.0.join(format!("libpod-{other}.scope")))?;
    for group in [&same, &alike] {
        chown(&group.0, Some(1000), Some(1000)).unwrap();
    }
    let targets = [&real, &same, &alike].map(|group| {
        let target = Running::start(python.plain().arg(workload("chain")));
        group.enter(target.pid());
        target
    });
    let recorded = |id: &str| {
        let mut command = own_frames(pyprof());
        command.args(["--container", id, "-d", "1", "-F", "499"]);
        of_stdout(command.args(["-f", "folded", "-o", "-"]))
    };
    let by_id = [&id[..8], &id[..12], &id].map(recorded);
    // Rootless: the one group of that id.
    let rootless = recorded(&other);
    let [inside, ..] = targets.each_ref().map(Running::pid);
    let second = Group::new(&user.0.join(format!("crio-{other}.scope")))?;
    second.enter(targets[1].pid());
    let (code, said) = report_of(pyprof().args(["--container", &other, "-d", "1"]));
    drop(targets);
    for recording in &by_id {
        recording.assert_done(10);
        let report = &recording.report;
        assert!(report.contains(&format!(" of pid {inside} ")), "{report}");
        assert!(
            report.contains("not recorded: control group ") && report.contains(" of user 1000"),
            "{report}"
        );
    }
    rootless.assert_done(10);
    let report = &rootless.report;
    assert!(
        report.contains("recorded: control group ") && report.contains(" of user 1000"),
        "{report}"
    );
    assert_eq!(code, Some(1), "{said}");
    assert!(
        said.contains("--cgroup") && said.contains("/libpod-") && said.contains("/crio-"),
        "{said}"
    );
    Ok(())
}
