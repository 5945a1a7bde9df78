//! Why no thread of a process can run: a signal, a tracer or its control group holds all of them.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use rustix::process::Signal;

use super::{
    cgroup::{self, Mount},
    status::Stat,
};
use crate::model::Pid;

/// Threads that are looked at. Where the first ones run, the process does.
const THREADS_MAX: usize = 256;

/// What holds all threads of a process. Displayed as a clause: `it is stopped by a signal …`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Halt {
    /// A signal has stopped it.
    Stopped,
    /// A tracer (ptrace(2)) holds it, this process where it can be seen.
    Traced(Option<Pid>),
    /// Its control group is frozen: this folder.
    Frozen(PathBuf),
    /// The same, and a signal has stopped it as well: thawed, it would not run yet.
    FrozenAndStopped(PathBuf),
}

impl fmt::Display for Halt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stopped => f.write_str("stopped by a signal (SIGSTOP, or Ctrl-Z)"),
            Self::Traced(None) => f.write_str("held by a tracer, such as a debugger"),
            Self::Traced(Some(tracer)) => {
                write!(f, "held by a tracer, such as a debugger: pid {tracer}")
            }
            Self::Frozen(folder) | Self::FrozenAndStopped(folder) => {
                write!(
                    f,
                    "frozen with its control group {}",
                    folder.display().to_string().escape_debug()
                )?;
                if matches!(self, Self::FrozenAndStopped(_)) {
                    write!(f, ", and {}", Self::Stopped)?;
                }
                Ok(())
            }
        }
    }
}

impl Halt {
    /// What lets the process run again.
    pub fn remedy(&self, pid: Pid) -> String {
        match self {
            Self::Stopped => format!("`kill -CONT {pid}` lets it run"),
            Self::Traced(_) => "let it run there, or end the tracer".to_owned(),
            Self::FrozenAndStopped(folder) => format!(
                "it takes both steps: {}; {}",
                Self::Frozen(folder.clone()).remedy(pid),
                Self::Stopped.remedy(pid)
            ),
            Self::Frozen(folder) => {
                let (file, word) = if folder.join(FREEZE).exists() {
                    (folder.join(FREEZE), "0")
                } else {
                    (folder.join(STATE), "THAWED")
                };
                format!(
                    "`echo {word} > {}` lets it run, or `docker unpause` where docker has paused it",
                    file.display().to_string().escape_debug()
                )
            }
        }
    }
}

/// Version 2: the switch of a group, and what is true of it.
const FREEZE: &str = "cgroup.freeze";
const EVENTS: &str = "cgroup.events";
/// Version 1: what is true of a group, and whether that is for its own sake.
const STATE: &str = "freezer.state";
const SELF_FREEZING: &str = "freezer.self_freezing";

/// What holds all threads of a process now; `None`: nothing does, or it has ended. Reads a file of each thread until one
/// is found that can run, and then two of its control groups.
pub fn halt_of(pid: Pid) -> Option<Halt> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let (mut stopped, mut traced) = (0_u32, None);
    let mut can_run = false;
    for thread in threads.flatten().take(THREADS_MAX) {
        let stat = fs::read(thread.path().join("stat"));
        let Some(stat) = stat.ok().and_then(|text| Stat::parse(&text)) else {
            continue;
        };
        if stat.is_traced() {
            traced.get_or_insert_with(|| thread.path());
        } else if stat.is_stopped() {
            stopped += 1;
        } else if !stat.is_dead() {
            can_run = true;
            break;
        }
    }
    if can_run {
        // A thread in a frozen group looks as if it slept.
        return frozen(pid).map(|folder| {
            if is_stopped_below(Path::new(&format!("/proc/{pid}"))) {
                Halt::FrozenAndStopped(folder)
            } else {
                Halt::Frozen(folder)
            }
        });
    }
    match traced {
        Some(thread) => Some(Halt::Traced(tracer_of(&thread))),
        None if stopped > 0 => Some(Halt::Stopped),
        None => None,
    }
}

/// A frozen process, of this folder in /proc, will be stopped once it is thawed: it was stopped before, or the signal is
/// waiting.
fn is_stopped_below(process: &Path) -> bool {
    let read = |name| fs::read_to_string(process.join(name)).unwrap_or_default();
    read("wchan").trim() == "do_signal_stop" || stops(&read("status"))
}

/// A signal that stops is pending, by a /proc/PID/status, and nothing keeps it from doing so.
fn stops(status: &str) -> bool {
    let set = |name: &str| {
        let mut lines = status.lines();
        let set = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
        set.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok())
            .unwrap_or_default()
    };
    let bit = |signal: Signal| 1_u64 << (signal.as_raw() - 1);
    let always = bit(Signal::STOP);
    let usually = bit(Signal::TSTP) | bit(Signal::TTIN) | bit(Signal::TTOU);
    let usually = usually & !(set("SigBlk") | set("SigIgn") | set("SigCgt"));
    (set("SigPnd") | set("ShdPnd")) & (always | usually) != 0
}

fn tracer_of(thread: &Path) -> Option<Pid> {
    let status = fs::read_to_string(thread.join("status")).ok()?;
    let mut lines = status.lines();
    let tracer = lines.find_map(|line| line.strip_prefix("TracerPid:"))?;
    // 0: it is in another pid namespace.
    tracer.trim().parse().ok().filter(|pid| *pid > 0).map(Pid)
}

/// The group that is frozen, with the process in it or below it.
fn frozen(pid: Pid) -> Option<PathBuf> {
    let cgroups = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    frozen_group(&String::from_utf8_lossy(&cgroups), &cgroup::mounts(&mounts))
}

fn frozen_group(cgroups: &str, mounts: &[Mount]) -> Option<PathBuf> {
    cgroup::memberships(cgroups).find_map(|membership| {
        let mut folders = mounts
            .iter()
            .filter_map(|mount| mount.folder_of(&membership));
        let (root, folder) = folders.find(|(_, folder)| folder.is_dir())?;
        is_frozen(&folder)?;
        let mut groups = folder
            .ancestors()
            .take_while(|group| group.starts_with(root));
        let switched = groups.find(|group| is_switched(group));
        Some(switched.unwrap_or(&folder).to_path_buf())
    })
}

/// All that is in the group is frozen, for its own sake or for that of one above it.
fn is_frozen(group: &Path) -> Option<()> {
    let events = fs::read_to_string(group.join(EVENTS)).unwrap_or_default();
    let state = fs::read_to_string(group.join(STATE)).unwrap_or_default();
    let is_frozen = events.lines().any(|line| line == "frozen 1") || state.trim() == "FROZEN";
    is_frozen.then_some(())
}

/// This group itself is asked to freeze.
fn is_switched(group: &Path) -> bool {
    [FREEZE, SELF_FREEZING]
        .into_iter()
        .any(|file| fs::read_to_string(group.join(file)).is_ok_and(|switch| switch.trim() == "1"))
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command, Stdio};

    use super::*;

    struct Sleeping(Child);

    impl Sleeping {
        fn start() -> Self {
            let mut command = Command::new("sleep");
            let child = command.arg("60").stdin(Stdio::null()).spawn();
            Self(child.expect("sleep starts"))
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }

        fn signal(&self, name: &str) {
            let pid = self.pid().to_string();
            let status = Command::new("kill").args([name, &pid]).status();
            assert!(status.expect("kill runs").success());
        }
    }

    impl Drop for Sleeping {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn eventually(is_so: impl Fn() -> bool) -> bool {
        (0..1000).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(10));
            is_so()
        })
    }

    #[test]
    fn a_process_that_a_signal_has_stopped_is_known_until_it_goes_on() {
        let process = Sleeping::start();
        let pid = process.pid();
        assert_eq!(halt_of(pid), None);
        process.signal("-STOP");
        assert!(eventually(|| halt_of(pid) == Some(Halt::Stopped)));
        let halt = Halt::Stopped;
        assert!(halt.to_string().contains("SIGSTOP"), "{halt}");
        assert!(halt.remedy(pid).contains(&format!("kill -CONT {pid}")));
        process.signal("-CONT");
        assert!(eventually(|| halt_of(pid).is_none()));
    }

    #[test]
    fn a_frozen_process_that_a_signal_will_stop_is_known_as_both() {
        let pending = |set: &str, caught: &str| {
            stops(&format!(
                "SigPnd:\t0000000000000000\nShdPnd:\t{set}\nSigBlk:\t0000000000000000\n\
                 SigIgn:\t0000000000000000\nSigCgt:\t{caught}\n"
            ))
        };
        assert!(pending("0000000000040000", "0000000000000000"), "SIGSTOP");
        assert!(pending("0000000000080000", "0000000000000000"), "SIGTSTP");
        assert!(!pending("0000000000080000", "0000000000080000"), "caught");
        assert!(!pending("0000000000004000", "0000000000000000"), "SIGTERM");
        assert!(!stops(""));
        let process = Sleeping::start();
        process.signal("-STOP");
        let folder = format!("/proc/{}", process.pid());
        // Who may not look where it waits knows only of signals that are pending.
        let may_look = fs::read_to_string("/proc/self/wchan").is_ok_and(|at| at.trim() == "0")
            && rustix::process::geteuid().is_root();
        if may_look {
            assert!(eventually(|| is_stopped_below(Path::new(&folder))));
        }
        let halt = Halt::FrozenAndStopped("/sys/fs/cgroup/web".into());
        let remedy = halt.remedy(Pid(7));
        assert!(
            remedy.contains("THAWED") && remedy.contains("kill -CONT 7"),
            "{remedy}"
        );
    }

    #[test]
    fn a_frozen_group_is_found_where_it_was_frozen() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let group = root.join("outer/inner");
        fs::create_dir_all(&group).expect("made");
        let mounts = format!("25 24 0:22 / {} rw - cgroup2 cgroup2 rw\n", root.display());
        let mounts = cgroup::mounts(&mounts);
        let found = || frozen_group("1:cpu:/x\n0::/outer/inner\n", &mounts);
        fs::write(group.join(EVENTS), "populated 1\nfrozen 0\n").expect("written");
        assert_eq!(found(), None);
        // Frozen for the sake of the outer one.
        fs::write(group.join(EVENTS), "populated 1\nfrozen 1\n").expect("written");
        fs::write(group.join(FREEZE), "0\n").expect("written");
        fs::write(root.join("outer").join(FREEZE), "1\n").expect("written");
        assert_eq!(found(), Some(root.join("outer")));
        let halt = Halt::Frozen(root.join("outer"));
        let remedy = halt.remedy(Pid(7));
        assert!(
            remedy.contains("echo 0 > ") && remedy.contains("outer/cgroup.freeze"),
            "{remedy}"
        );
    }

    #[test]
    fn a_frozen_group_of_version_1_is_thawed_in_its_own_way() {
        let root = tempfile::tempdir().expect("a folder");
        let root = root.path();
        let group = root.join("web");
        fs::create_dir_all(&group).expect("made");
        let mounts = format!(
            "25 24 0:22 / {} rw - cgroup cgroup rw,freezer\n",
            root.display()
        );
        fs::write(group.join(STATE), "FROZEN\n").expect("written");
        fs::write(group.join(SELF_FREEZING), "1\n").expect("written");
        let found = frozen_group("6:freezer:/web\n0::/\n", &cgroup::mounts(&mounts));
        assert_eq!(found.as_deref(), Some(&*group));
        let remedy = Halt::Frozen(group).remedy(Pid(7));
        assert!(remedy.contains("echo THAWED > "), "{remedy}");
    }
}
