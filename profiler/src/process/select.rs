//! Which processes are to be recorded: those of given pids, all Pythons, those of a control group or a container.

use std::{
    fmt::Write as _,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use crate::model::Pid;

use super::{
    cgroup::{self, Group},
    container::{Container, NamedGroup},
    first_thread::has_exited,
    pace::thread_time,
    python::{Search, runs_python_within},
    status::Stat,
};

/// This program's first word where it runs as one of the parts beside a recording, which are no targets: what starts
/// the process that parses symbols, and that process. Not for people.
pub const PARTS: [&str; 2] = ["__keep-symbols", "__symbols"];

/// Bytes of a command line that are looked at for that.
const PATH_MAX: u64 = 4096 + 64;

/// CPU time for searching files in one scan, where that is limited. What was searched is remembered.
const SEARCH_TIME: Duration = Duration::from_millis(200);

/// What chooses processes.
#[derive(Clone, Debug)]
pub enum Selector {
    /// These, and no others.
    Pids(Vec<Pid>),
    /// Every process that [runs a Python](super::runs_python).
    AllPython,
    /// Those in a control group or below it.
    Cgroup(Cgroup),
    /// Those in a container, or in a Kubernetes pod.
    Container(Container),
}

/// A control group as the user wrote it.
#[derive(Clone, Debug)]
pub struct Cgroup {
    written: PathBuf,
    group: Group,
}

/// Why nothing is selected. Each says what to do next.
#[derive(Debug, thiserror::Error)]
pub enum SelectError {
    /// There is no Python.
    #[error(
        "no Python process is running: `pgrep -af python` lists those by name, and --pid takes any process{}\n  \
        In a container only its own processes are seen, unless it runs with --pid=host.",
        hidden(*refused)
    )]
    NoPython {
        /// Processes that could not be looked into.
        refused: usize,
    },
    /// There is no such group.
    #[error(
        "there is no control group {written:?}\n  \
        `cat /proc/PID/cgroup` shows those of a process, `systemd-cgls` all of them; give a path from there, or one \
        below /sys/fs/cgroup."
    )]
    NoSuchCgroup {
        /// As the user wrote it.
        written: PathBuf,
    },
    /// The group has no processes.
    #[error(
        "no process is in the control group {written:?} or below it: `systemd-cgls` shows which are in use\n  \
        In a container only its own processes are seen, unless it runs with --pid=host."
    )]
    EmptyCgroup {
        /// As the user wrote it.
        written: PathBuf,
    },
    /// No process is in such a container.
    #[error(
        "no process is in a container {id}\n  \
        `docker ps --no-trunc`, `podman ps --no-trunc` or `crictl ps --no-trunc` lists the ids of those that run; names \
        are not known here.\n  \
        From inside a container, only its own processes are seen, unless it runs with --pid=host."
    )]
    NoSuchContainer {
        /// As the user wrote it.
        id: String,
    },
    /// Several are meant.
    #[error(
        "{id} is the id, or its beginning, of several containers: give more of it, or one of their groups to --cgroup:{}",
        listed(found)
    )]
    AmbiguousContainer {
        /// As the user wrote it.
        id: String,
        /// A group of each.
        found: Vec<NamedGroup>,
    },
    /// There is no list of processes.
    #[error(
        "cannot list the processes in /proc: {source}; pyprof-bpf needs a /proc (`mount -t proc proc /proc`)"
    )]
    Proc {
        /// What the operating system said.
        #[source]
        source: io::Error,
    },
}

impl Cgroup {
    /// A control group: a folder below `/sys/fs/cgroup`, or a path as in `/proc/PID/cgroup`.
    pub fn new(written: &Path) -> Result<Self, SelectError> {
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = cgroup::mounts(&mounts);
        let none = || SelectError::NoSuchCgroup {
            written: written.to_owned(),
        };
        let folder = fs::canonicalize(written)
            .ok()
            .and_then(|folder| Group::of_folder(&folder, &mounts));
        let group = match folder {
            Some(group) => group,
            None if cgroup::is_folder_path(written, &mounts) => return Err(none()),
            None => Group::anywhere(&written.to_string_lossy()),
        };
        if !group.may_exist(&mounts) {
            return Err(none());
        }
        Ok(Self {
            written: written.to_owned(),
            group,
        })
    }
}

impl Selector {
    /// The processes that belong now, in ascending order; at least one. Never pyprof-bpf itself, nor the kernel's threads.
    ///
    /// Those of [`Selector::Pids`] are as they were given: whether they can be recorded,
    /// [`Target::check`](super::Target::check) says best. Of the others, a process that exits meanwhile is left out. Reads
    /// one or two files of each process.
    pub fn scan(&self) -> Result<Vec<Pid>, SelectError> {
        self.scan_within(Search::All).map(|(found, _)| found)
    }

    /// [`scan`](Self::scan), and of how many processes it is not known whether they belong: their files have not been searched
    /// for an interpreter. [`Search::Little`]: that takes a limited time, and the next call goes on.
    pub fn scan_within(&self, search: Search) -> Result<(Vec<Pid>, u64), SelectError> {
        if let Self::Pids(pids) = self {
            let mut pids = pids.clone();
            pids.sort_unstable();
            pids.dedup();
            return Ok((pids, 0));
        }
        let until = thread_time() + SEARCH_TIME;
        let (mut found, mut refused, mut undecided) = (Vec::new(), 0, 0);
        if let Self::Container(container) = self {
            container.settle(&places_of_all(container)?)?;
        }
        for pid in all_pids().map_err(|source| SelectError::Proc { source })? {
            let search = if search == Search::Little && thread_time() >= until {
                Search::Nothing
            } else {
                Search::All
            };
            match self.asks(pid, search) {
                Answer::Yes => found.push(pid),
                Answer::Undecided => undecided += 1,
                Answer::No => {}
                Answer::Refused => refused += 1,
            }
        }
        if found.is_empty() {
            if undecided > 0 {
                // Whether there is anything to record at all must be known.
                return self.scan_within(Search::All);
            }
            return Err(self.nothing(refused));
        }
        found.sort_unstable();
        Ok((found, undecided))
    }

    /// A process that is new, or runs another program now, belongs. `false` for one that is gone or cannot be looked
    /// into. Costs two or three system calls; for [`Selector::AllPython`] a look at what is mapped, which a program that
    /// loads its libpython later does not have yet: [`scan`](Self::scan) finds it then.
    ///
    /// With [`Selector::Pids`] nothing new belongs: those processes were there from the start, and a new one of the same
    /// number is another one.
    pub fn admits(&self, pid: Pid) -> bool {
        self.asks(pid, Search::Little) == Answer::Yes
    }

    /// Which processes these are may change while they are recorded.
    pub const fn is_open(&self) -> bool {
        !matches!(self, Self::Pids(_))
    }

    fn asks(&self, pid: Pid, search: Search) -> Answer {
        let belongs = match self {
            Self::Pids(_) => return Answer::No,
            Self::AllPython => match runs_python_within(pid, search) {
                Ok(Some(belongs)) => belongs,
                Ok(None) => return Answer::Undecided,
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Answer::Refused;
                }
                Err(_) => false,
            },
            Self::Cgroup(Cgroup { group, .. }) => {
                cgroups_of(pid).is_some_and(|text| group.holds(&text))
            }
            Self::Container(container) => {
                cgroups_of(pid).is_some_and(|text| !container.places_in(&text).is_empty())
            }
        };
        if belongs && can_be_recorded(pid) {
            Answer::Yes
        } else {
            Answer::No
        }
    }

    fn nothing(&self, refused: usize) -> SelectError {
        match self {
            Self::Pids(_) | Self::AllPython => SelectError::NoPython { refused },
            Self::Cgroup(Cgroup { written, .. }) => SelectError::EmptyCgroup {
                written: written.clone(),
            },
            Self::Container(container) => SelectError::NoSuchContainer {
                id: container.beginning.clone(),
            },
        }
    }
}

/// What is to be said of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Yes,
    No,
    /// It may not be looked into.
    Refused,
    /// More of its files would have to be read.
    Undecided,
}

/// Every process that is seen from here.
pub(super) fn all_pids() -> io::Result<Vec<Pid>> {
    let names = fs::read_dir("/proc")?.filter_map(|entry| Some(entry.ok()?.file_name()));
    Ok(names
        .filter_map(|name| Some(Pid(name.to_str()?.parse().ok()?)))
        .collect())
}

/// The groups with the id of a container, of each process that is in one and can be recorded.
fn places_of_all(container: &Container) -> Result<Vec<Vec<cgroup::Place>>, SelectError> {
    let pids = all_pids().map_err(|source| SelectError::Proc { source })?;
    let places = pids.into_iter().filter_map(|pid| {
        let places = container.places_in(&cgroups_of(pid)?);
        (!places.is_empty() && can_be_recorded(pid)).then_some(places)
    });
    Ok(places.collect())
}

fn cgroups_of(pid: Pid) -> Option<String> {
    let bytes = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// It lives, has memory of its own, and is neither us nor one of the processes that parse symbols for us.
fn can_be_recorded(pid: Pid) -> bool {
    pid.0 != std::process::id()
        && stat_of(pid).is_some_and(|stat| {
            !stat.is_kernel_thread() && !has_exited(pid, &stat) && !is_ours(pid, stat.parent)
        })
}

fn stat_of(pid: Pid) -> Option<Stat> {
    let text = fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::parse(&text)
}

/// It is this program, called as one of the parts that run beside it: a child of this process, or of that child.
fn is_ours(pid: Pid, parent: u32) -> bool {
    let me = std::process::id();
    let is_near = || parent == me || stat_of(Pid(parent)).is_some_and(|it| it.parent == me);
    let mut words = Vec::new();
    if let Ok(command_line) = fs::File::open(format!("/proc/{pid}/cmdline")) {
        // What cannot be read is not ours.
        let _ = command_line.take(PATH_MAX).read_to_end(&mut words);
    }
    let word = words.split(|&byte| byte == 0).nth(1).unwrap_or_default();
    PARTS.iter().any(|part| part.as_bytes() == word) && is_near()
}

fn hidden(refused: usize) -> String {
    match refused {
        0 => String::new(),
        1 => "\n  One process could not be looked into: that takes sudo or CAP_SYS_PTRACE."
            .to_owned(),
        _ => format!(
            "\n  {refused} processes could not be looked into: that takes sudo or CAP_SYS_PTRACE."
        ),
    }
}

/// The first few groups, a line each.
fn listed(groups: &[NamedGroup]) -> String {
    const SHOWN: usize = 3;
    let mut text = String::new();
    for (at, NamedGroup { path, owner }) in groups.iter().take(SHOWN).enumerate() {
        // Writing to a `String` cannot fail.
        let _ = write!(text, "\n  {}", path.display().to_string().escape_debug());
        if let Some(uid) = owner {
            let _ = write!(text, " of user {uid}");
        }
        if at == SHOWN - 1 && groups.len() > SHOWN {
            let _ = write!(text, ", and {} more", groups.len() - SHOWN);
        }
    }
    text
}

#[cfg(test)]
#[path = "select_tests.rs"]
mod tests;
