use std::process::{Child, Command};

use super::*;

struct Running(Child);

impl Running {
    fn sleep() -> Self {
        let running = Self(
            Command::new("sleep")
                .arg("60")
                .spawn()
                .expect("sleep starts"),
        );
        for _ in 0..500 {
            if fs::read(path(running.pid(), "cmdline")).is_ok_and(|line| line == b"sleep\x0060\0") {
                break;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        running
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

fn message(pid: Pid) -> String {
    Target::check(pid).expect_err("not a target").to_string()
}

#[test]
fn a_running_program_is_a_target() {
    let running = Running::sleep();
    let target = Target::check(running.pid()).expect("a target");
    assert_eq!(target.command(), "sleep 60");
    assert_eq!(target.comm, "sleep");
    assert_eq!(target.uid, rustix::process::getuid().as_raw());
    assert!(target.exe.as_ref().is_some_and(|exe| exe.is_absolute()));
    assert!(target.start_ticks > 0);
    assert!(target.is_alive());
    assert_eq!(
        target.perf_map_directory(),
        PathBuf::from(format!("/proc/{}/root/tmp", running.pid()))
    );
}

#[test]
fn an_exit_is_noticed_and_the_last_cpu_time_kept() {
    let mut child = Command::new("sh")
        .args(["-c", "while :; do :; done"])
        .spawn()
        .expect("sh starts");
    let target = Target::check(Pid(child.id())).expect("a target");
    while target.cpu_time() < Duration::from_millis(30) {
        std::thread::sleep(Duration::from_millis(5));
    }
    let exited = target.exited().expect("a handle");
    child.kill().expect("kill");
    let mut polled = [PollFd::new(&exited, PollFlags::IN)];
    rustix::event::poll(&mut polled, None).expect("poll");
    assert!(!target.is_alive());
    let as_zombie = target.cpu_time();
    assert!(as_zombie >= Duration::from_millis(30));
    assert!(message(target.pid).contains("has exited"));
    child.wait().expect("wait");
    assert_eq!(target.cpu_time(), as_zombie);
    assert!(message(target.pid).contains("there is no process"));
}

#[test]
fn pids_that_cannot_exist_are_no_processes() {
    for pid in [0, 999_999_999, u32::MAX] {
        assert!(
            matches!(
                Target::check(Pid(pid)),
                Err(TargetError::NoSuchProcess { .. })
            ),
            "{pid}"
        );
    }
}

#[test]
fn we_do_not_profile_ourselves_nor_our_threads() {
    let own = Pid(std::process::id());
    assert!(matches!(
        Target::check(own),
        Err(TargetError::Ourselves { .. })
    ));
    let tid = rustix::thread::gettid()
        .as_raw_nonzero()
        .get()
        .cast_unsigned();
    assert!(matches!(
        Target::check(Pid(tid)),
        Err(TargetError::Ourselves { .. })
    ));
}

#[test]
fn a_thread_id_names_its_process() {
    // Some process of this system that has more than one thread, if there is one.
    let of_threads =
        |pid: u32| fs::read_dir(format!("/proc/{pid}/task")).map_or(0, Iterator::count);
    let numbers = fs::read_dir("/proc").expect("/proc").flatten();
    let many = numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok())
        .find(|&pid| pid != std::process::id() && of_threads(pid) > 1);
    let Some(process) = many else { return };
    let threads = fs::read_dir(format!("/proc/{process}/task"))
        .expect("task")
        .flatten();
    let thread = threads
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|&tid: &u32| tid != process);
    match Target::check(Pid(thread.expect("a second thread"))) {
        Err(TargetError::Thread { process: named, .. }) => assert_eq!(named, Pid(process)),
        Err(TargetError::NoSuchProcess { .. } | TargetError::NotPermitted { .. }) => {}
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_kernel_thread_is_recognised() {
    // kthreadd is pid 2 wherever the first pid namespace is seen.
    if fs::read("/proc/2/comm").is_ok_and(|comm| comm == b"kthreadd\n") {
        assert!(matches!(
            Target::check(Pid(2)),
            Err(TargetError::KernelThread { .. })
        ));
    }
}

#[test]
fn every_refusal_says_what_to_do_next() {
    let pid = Pid(7);
    let comm = || "worker".to_owned();
    let all = [
        TargetError::NoSuchProcess { pid },
        TargetError::Thread {
            pid,
            process: Pid(5),
            comm: comm(),
        },
        TargetError::KernelThread { pid, comm: comm() },
        TargetError::Zombie {
            pid,
            comm: comm(),
            parent: Pid(5),
        },
        TargetError::Ourselves { pid },
        TargetError::NotPermitted {
            pid,
            owner: " of user 1000".to_owned(),
        },
        unreadable(pid, "stat"),
    ];
    for error in all {
        let text = error.to_string();
        assert!(text.contains('7'), "{text}");
        assert!(
            ["use ", "choose ", "run ", "lists ", "needs "]
                .iter()
                .any(|hint| text.contains(hint)),
            "{text}"
        );
        assert!(!text.contains('\n'));
    }
}

#[test]
fn arguments_are_split_at_zeros_and_empty_ones_stay() {
    assert_eq!(arguments(b"python\0-c\0\0"), ["python", "-c", ""]);
    assert!(arguments(b"").is_empty());
    assert_eq!(arguments(b"rewritten title"), ["rewritten title"]);
}
