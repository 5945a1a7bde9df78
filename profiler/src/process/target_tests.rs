use std::{
    io::{BufRead as _, BufReader},
    process::{Child, Command, Stdio},
};

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
fn a_process_that_may_not_be_read_says_whose_it_is() {
    let refused = File::open("/proc/1/maps")
        .is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied);
    if refused {
        let message = message(Pid(1));
        assert!(
            message.contains("of user 0") && message.contains("CAP_SYS_PTRACE"),
            "{message}"
        );
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
fn a_name_cannot_write_control_characters_to_the_terminal() {
    let error = TargetError::KernelThread {
        pid: Pid(7),
        comm: "\u{1b}[2J".to_owned(),
    };
    assert!(
        error
            .to_string()
            .starts_with("7 (\\u{1b}[2J) is a kernel thread")
    );
}

#[test]
fn arguments_are_split_at_zeros_and_empty_ones_stay() {
    assert_eq!(arguments(b"python\0-c\0\0"), ["python", "-c", ""]);
    assert!(arguments(b"").is_empty());
    assert_eq!(arguments(b"rewritten title"), ["rewritten title"]);
}

/// Stops the outer program and, by the kernel's rule for a namespace's first process, all that run inside.
#[test]
fn a_process_in_a_namespace_of_its_own_knows_itself_by_another_pid() {
    let inside = Command::new("unshare")
        .args(["--pid", "--fork", "--kill-child", "sleep", "60"])
        .stderr(Stdio::null())
        .spawn();
    let Ok(outer) = inside.map(Running) else {
        return;
    };
    let children = format!("/proc/{0}/task/{0}/children", outer.pid());
    for _ in 0..200 {
        let child = fs::read_to_string(&children)
            .unwrap_or_default()
            .trim()
            .parse()
            .ok()
            .map(Pid);
        if let Some(target) = child
            .and_then(|pid| Target::check(pid).ok())
            .filter(|target| target.comm == "sleep")
        {
            assert_eq!(target.ns_pid, 1);
            assert_ne!(target.pid, Pid(1));
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    // Not allowed to make a namespace: nothing to test.
}

/// A shell, a subshell of it, which is a fork, and in that a program, which is not.
#[test]
fn forks_since_the_last_exec_lead_to_the_ancestors() {
    let script = "(sleep 60 & echo $!; wait) & echo $!; wait";
    let mut shell = Running(
        Command::new("sh")
            .args(["-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .expect("sh starts"),
    );
    let output = shell.0.stdout.take().expect("it is piped");
    let lines = BufReader::new(output).lines();
    let pids: Vec<u32> = lines
        .take(2)
        .map(|line| line.expect("readable").parse().expect("a pid"))
        .collect();
    let parent_of =
        |pid: u32| Stat::parse(&read(Pid(pid), "stat").expect("it runs")).map(|stat| stat.parent);
    let (subshell, program) = if parent_of(pids[1]) == Some(pids[0]) {
        (pids[0], pids[1])
    } else {
        (pids[1], pids[0])
    };
    // Until `exec` has made it what it is to be.
    while fs::read(path(Pid(program), "cmdline")).is_ok_and(|line| !line.starts_with(b"sleep")) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let ancestors = |pid: u32| -> Vec<u32> {
        let target = Target::check(Pid(pid)).expect("a target");
        target.forked_from().iter().map(|one| one.pid.0).collect()
    };
    let found = (
        ancestors(subshell),
        ancestors(program),
        ancestors(shell.pid().0),
    );
    let shell_pid = shell.pid().0;
    // The others wait for it.
    let _ = Command::new("kill").arg(program.to_string()).status();
    drop(shell);
    assert_eq!(found, (vec![shell_pid], vec![], vec![]));
}
