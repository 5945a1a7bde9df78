//! Choosing among the processes of this machine.

use std::process::{Child, Command, Stdio};

use super::*;

struct Running(Child);

impl Running {
    fn sleep() -> Self {
        let mut command = Command::new("sleep");
        let child = command.arg("60").stdin(Stdio::null()).spawn();
        Self(child.expect("sleep starts"))
    }

    fn pid(&self) -> Pid {
        Pid(self.0.id())
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn me() -> Pid {
    Pid(std::process::id())
}

fn container(written: &str) -> Selector {
    Selector::Container(Container::new(written).expect("an id"))
}

#[test]
fn given_pids_are_taken_as_they_are_once_each() {
    let selector = Selector::Pids(vec![Pid(9), Pid(4), Pid(9)]);
    assert_eq!(selector.scan().unwrap(), [Pid(4), Pid(9)]);
    assert!(
        !selector.admits(Pid(4)),
        "a new process of that number is another one"
    );
    assert!(!selector.is_open());
}

#[test]
fn a_group_has_its_processes_and_neither_us_nor_the_kernel() {
    let child = Running::sleep();
    let selector = Selector::Cgroup(Cgroup::new(Path::new("/")).unwrap());
    let found = selector.scan().unwrap();
    assert!(found.is_sorted() && found.contains(&child.pid()));
    assert!(
        !found.contains(&me()) && !found.contains(&Pid(2)),
        "{found:?}"
    );
    assert!(selector.admits(child.pid()) && selector.is_open());
    assert!(!selector.admits(me()));
}

#[test]
fn what_has_exited_no_longer_belongs() {
    let selector = Selector::Cgroup(Cgroup::new(Path::new("/")).unwrap());
    let mut child = Running::sleep();
    child.0.kill().unwrap();
    let stat = format!("/proc/{}/stat", child.pid());
    while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
        std::thread::yield_now();
    }
    assert!(!selector.admits(child.pid()), "a zombie runs nothing");
    child.0.wait().unwrap();
    assert!(!selector.admits(child.pid()));
}

#[test]
fn a_group_that_does_not_exist_is_told() {
    for written in ["/no-such-slice/x", "/sys/fs/cgroup/no-such-slice"] {
        let error = Cgroup::new(Path::new(written)).unwrap_err().to_string();
        assert!(error.contains("there is no control group"), "{error}");
        assert!(
            error.contains(written) && error.contains("/proc/PID/cgroup"),
            "{error}"
        );
    }
}

#[test]
fn nothing_selected_says_what_to_do() {
    let nowhere = container(&"0123456789abcdef".repeat(4));
    let error = nowhere.scan().unwrap_err();
    assert!(matches!(error, SelectError::NoSuchContainer { .. }));
    let group = |n| NamedGroup {
        path: format!("/sys/fs/cgroup/docker/{n}\u{1b}").into(),
        owner: Some(n),
    };
    let found = (0..5).map(group).collect();
    let id = "0".to_owned();
    for (error, words) in [
        (error, "docker ps --no-trunc"),
        (
            SelectError::AmbiguousContainer { id, found },
            "docker/2\\u{1b} of user 2, and 2 more",
        ),
        (Selector::AllPython.nothing(0), "pgrep -af python"),
        (Selector::AllPython.nothing(3), "CAP_SYS_PTRACE"),
        (
            Selector::Cgroup(Cgroup::new(Path::new("/")).unwrap()).nothing(0),
            "systemd-cgls",
        ),
    ] {
        let text = error.to_string();
        assert!(text.contains(words), "{text}");
        assert!(text.lines().count() <= 5, "{text}");
    }
}

#[test]
fn a_program_without_a_python_is_not_one() {
    let child = Running::sleep();
    assert!(!Selector::AllPython.admits(child.pid()));
    assert!(!Selector::AllPython.admits(Pid(2)), "a kernel thread");
}
