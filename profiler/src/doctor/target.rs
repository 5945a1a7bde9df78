//! A process: can it be recorded, and will its Python functions have names?

use std::{fs, os::unix::fs::MetadataExt as _, thread, time::Duration};

use super::Check;
use crate::{
    model::Pid,
    process::{
        Children, FileLimit, FileLimits, Halt, Mapping, PythonInfo, Target, TargetError, file_name,
        halt_of, inspect,
        interpreter::{Examined, Memory, Obstacle, PatientReader, Progress, Remedy, examine},
        open_mapped, perf_map_handle, proc_folder, read_executable_mappings,
    },
    symbols::{
        MapState, NameDiagnosis, NameFacts, diagnose,
        perf_map::{PerfMapFile, PerfMapLimits, PerfMapLocation, PerfMapState, Refusal},
    },
};

/// An interpreter without a frame that fits is looked at so often, so long apart.
const LOOKS: u32 = 5;
const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// Children that are shown by their pids.
const CHILDREN_SHOWN: usize = 3;
/// The first CPython that can be given trampolines.
const TRAMPOLINES_SINCE: (u8, u8) = (3, 9);
/// Its memory is waited for so long.
const PATIENCE: Duration = Duration::from_secs(2);

/// A process that was asked about, and may be looked into.
#[derive(Debug)]
pub struct Patient {
    /// Its pid, as we see it.
    pub pid: Pid,
    /// Its pid, as it sees itself.
    pub ns_pid: u32,
    /// Whose it is.
    pub uid: u32,
    /// Its command line, raw.
    pub command: String,
    /// What holds all its threads, if anything does.
    pub halt: Option<Halt>,
    /// Its first thread has ended, and others have not.
    pub first_thread_has_ended: bool,
    /// Those of its children, and of theirs, that run Python.
    pub python_children: Vec<Pid>,
    /// What Python it runs.
    pub python: PythonInfo,
    /// Whether the frames of that can be read.
    pub frames: FrameFacts,
    /// Its perf map.
    pub map: MapFacts,
    /// Kinds of namespaces in which it is apart from us.
    pub apart: Vec<Space>,
    /// Its files that cannot be used as they are.
    pub files: FileLimits,
}

/// Whether the interpreter's own frames can be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FrameFacts {
    /// There is no CPython.
    NoPython,
    /// They can: the interpreter has this `PY_VERSION_HEX`.
    Known(u32),
    /// There were none that could be looked at, and why.
    NotYet(String),
    /// They cannot, and why.
    Refused(Obstacle),
}

impl FrameFacts {
    /// A process whose memory does not answer is not waited for.
    fn read(pid: Pid, mappings: &[Mapping], python: &PythonInfo) -> Self {
        if python.version.is_none() {
            return Self::NoPython;
        }
        let (mappings, python) = (mappings.to_vec(), python.clone());
        let mut reader = PatientReader::default();
        let reading = reader.begin(move || Self::look(pid, &mappings, &python));
        match reading.map(|reading| reading.wait(PATIENCE)) {
            Some(Progress::Done(facts)) => facts,
            _ => Self::NotYet("its memory does not answer".to_owned()),
        }
    }

    fn look(pid: Pid, mappings: &[Mapping], python: &PythonInfo) -> Self {
        let memory = match Memory::open(pid) {
            Ok(memory) => memory,
            Err(error) => {
                return Self::Refused(Obstacle {
                    reason: format!("its memory cannot be read: {error}"),
                    remedy: Remedy::Rights,
                });
            }
        };
        let mut facts = Self::NoPython;
        // A program that runs may be met at a moment in which it has no frame, or half of one.
        for _ in 0..LOOKS {
            match examine(pid, &memory, mappings, python) {
                Examined::Known(interpreter) => return Self::Known(interpreter.version),
                Examined::NoPython => return Self::NoPython,
                Examined::Refused(reason) if reason.is_of_frames() => {
                    facts = Self::Refused(reason.into());
                }
                Examined::Refused(reason) => return Self::Refused(reason.into()),
                Examined::NotYet(reason) => facts = Self::NotYet(reason.to_string()),
            }
            thread::sleep(LOOK_AGAIN);
        }
        facts
    }
}

/// A perf map as it is now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MapFacts {
    /// Its path, for us.
    pub path: String,
    /// How it stands.
    pub state: MapState,
    /// Why it was refused, as a clause; empty where it was not.
    pub refusal: String,
    /// Entries in it.
    pub entries: u64,
    /// The process has it open.
    pub is_open: bool,
    /// It has no name any more: the process only writes to it.
    pub is_deleted: bool,
    /// It was refused since we may not read it.
    pub is_permission: bool,
}

/// A kind of namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space {
    /// Pids.
    Pid,
    /// Mounted file systems.
    Mount,
    /// Users.
    User,
}

impl Space {
    const ALL: [(Self, &'static str); 3] = [
        (Self::Pid, "pid"),
        (Self::Mount, "mnt"),
        (Self::User, "user"),
    ];

    fn is_apart(file: &str, pid: Pid) -> bool {
        let of = |process: &str| {
            let namespace = fs::metadata(format!("{process}/ns/{file}")).ok()?;
            Some((namespace.dev(), namespace.ino()))
        };
        let (ours, theirs) = (of("/proc/self"), of(&proc_folder(pid)));
        matches!((ours, theirs), (Some(ours), Some(theirs)) if ours != theirs)
    }
}

impl Patient {
    /// Looks at a process.
    pub fn read(pid: Pid) -> Result<Self, TargetError> {
        let target = Target::check(pid)?;
        // A process that ends now has no mappings, and what is missing shows.
        let mappings = read_executable_mappings(pid)
            .map(|parsed| parsed.mappings)
            .unwrap_or_default();
        let spaces = Space::ALL.iter();
        let python = inspect(&target, &mappings);
        Ok(Self {
            pid,
            ns_pid: target.ns_pid,
            uid: target.uid,
            command: target.command(),
            halt: halt_of(pid),
            first_thread_has_ended: target.first_thread_has_ended,
            python_children: python_children(pid),
            frames: FrameFacts::read(pid, &mappings, &python),
            python,
            map: MapFacts::read(&target),
            apart: spaces
                .filter(|(_, file)| Space::is_apart(file, pid))
                .map(|(space, _)| *space)
                .collect(),
            files: file_limits(pid, &mappings),
        })
    }

    /// The checks, in order; that of names is [`diagnosis`](Self::diagnosis), in words that are not ours to choose.
    pub fn checks(&self) -> Vec<Check> {
        vec![
            Check::ok("process", format!("{}, of user {}", self.command, self.uid)),
            self.state(),
            self.namespaces(),
            self.interpreter(),
            self.frames(),
            self.trampolines(),
            self.perf_map(),
            self.files(),
        ]
    }

    /// What a recording would say of the names of its functions if it were made of it now.
    pub fn diagnosis(&self) -> NameDiagnosis {
        // The map of an earlier process with this pid names nothing.
        let is_its_own = self.map.is_open || self.python.trampolines_asked;
        diagnose(&NameFacts {
            frames_are_read: self.has_frames(),
            python: &self.python,
            map: self.map.state,
            map_is_open: self.map.is_open,
            trampoline_frames: 0,
            named_frames: if is_its_own && self.map.state == MapState::Ok {
                self.map.entries
            } else {
                0
            },
            interpreter_samples: 0,
            samples_without_outer_trampoline: 0,
        })
    }

    /// Why it cannot be looked into.
    pub fn refused(error: &TargetError) -> Check {
        Check::missing("process", error.finding(), error.next_step())
    }

    /// Whether it can run.
    fn state(&self) -> Check {
        const NAME: &str = "state";
        match &self.halt {
            Some(halt) => Check::limited(
                NAME,
                format!("{halt}: what does not run is not sampled"),
                halt.remedy(self.pid),
            ),
            None if self.first_thread_has_ended => Check::ok(
                NAME,
                "it can run; its first thread has ended, others have not",
            ),
            None => Check::ok(NAME, "it can run"),
        }
    }

    fn namespaces(&self) -> Check {
        const NAME: &str = "namespaces";
        if self.apart.is_empty() {
            return Check::ok(NAME, "ours");
        }
        let words = self.apart.iter().map(|space| match space {
            Space::Pid => format!("pids (it is {} there)", self.ns_pid),
            Space::Mount => "mounts (its files are looked for there)".to_owned(),
            Space::User => "users".to_owned(),
        });
        let words: Vec<String> = words.collect();
        Check::ok(NAME, format!("its own for {}", words.join(", ")))
    }

    /// Where the Python is that it does not run itself.
    fn children_step(&self) -> Option<String> {
        let children = self.python_children.iter().take(CHILDREN_SHOWN);
        let pids: Vec<String> = children.map(ToString::to_string).collect();
        let more = if self.python_children.len() > CHILDREN_SHOWN {
            ", …"
        } else {
            ""
        };
        (!pids.is_empty()).then(|| {
            let pids = pids.join(", ");
            format!("processes that it started run Python (pid {pids}{more}): -s records them too")
        })
    }

    fn interpreter(&self) -> Check {
        const NAME: &str = "Python";
        let Some((major, minor)) = self.python.version else {
            return Check::limited(
                NAME,
                "no CPython was found in it: native stacks only",
                self.children_step()
                    .unwrap_or_else(|| "if it starts Python, -s records that too".to_owned()),
            );
        };
        let file = self.python.interpreter_files.first();
        let file = file.map_or("a file without a name", String::as_str);
        let kind = if file_name(file.as_ref()).starts_with("libpython") {
            "shared library"
        } else {
            "static"
        };
        Check::ok(NAME, format!("CPython {major}.{minor}, {kind}: {file}"))
    }

    /// Its functions have names, whatever its perf map is like.
    fn has_frames(&self) -> bool {
        matches!(self.frames, FrameFacts::Known(_))
    }

    fn frames(&self) -> Check {
        const NAME: &str = "Python frames";
        match &self.frames {
            FrameFacts::NoPython => Check::ok(NAME, "no Python that could have them"),
            FrameFacts::Known(version) => {
                let [_, patch, minor, major] = version.to_le_bytes();
                let version = match patch {
                    0 => format!("{major}.{minor}"),
                    patch => format!("{major}.{minor}.{patch}"),
                };
                Check::ok(
                    NAME,
                    format!("read from the interpreter, CPython {version}, with lines"),
                )
            }
            FrameFacts::NotYet(reason) => Check::limited(
                NAME,
                format!("none to be read at this moment: {reason}"),
                self.children_step()
                    .unwrap_or_else(|| "a recording looks again and again".to_owned()),
            ),
            FrameFacts::Refused(obstacle) => {
                Check::limited(NAME, obstacle.reason.clone(), "see names")
            }
        }
    }

    /// The names' check has the next step.
    fn trampolines(&self) -> Check {
        const NAME: &str = "trampolines";
        let on = |how: &str| Check::ok(NAME, format!("on: {how}"));
        let Some((major, minor)) = self.python.version else {
            return Check::ok(NAME, "no Python that could have them");
        };
        if (major, minor) < TRAMPOLINES_SINCE {
            let finding = format!("none: CPython {major}.{minor} cannot have any");
            return if self.has_frames() {
                Check::ok(NAME, format!("{finding}; not needed"))
            } else {
                Check::limited(NAME, finding, "see names")
            };
        }
        match (self.map.is_open, self.python.trampolines_asked) {
            (true, true) => on("since its start"),
            (true, false) => on("switched on while it ran"),
            (false, true) => Check::ok(
                NAME,
                "asked for at its start (-X perf or PYTHONPERFSUPPORT)",
            ),
            (false, false) if self.has_frames() => Check::ok(NAME, "off, and not needed"),
            (false, false) => Check::limited(NAME, "off", "see names"),
        }
    }

    fn perf_map(&self) -> Check {
        const NAME: &str = "perf map";
        let MapFacts {
            path,
            state,
            refusal,
            entries,
            is_open: _,
            is_deleted,
            is_permission,
        } = &self.map;
        match state {
            MapState::Ok if *is_deleted => Check::ok(
                NAME,
                format!("{entries} entries, read from the process: {path} is deleted"),
            ),
            MapState::Ok => Check::ok(NAME, format!("{entries} entries: {path}")),
            MapState::Missing if self.has_frames() => {
                Check::ok(NAME, format!("none, and not needed: {path}"))
            }
            MapState::Missing => Check::limited(NAME, format!("there is no {path}"), "see names"),
            MapState::Refused | MapState::Unreadable if self.has_frames() => {
                Check::ok(NAME, format!("not read, and not needed: {refusal}: {path}"))
            }
            MapState::Refused | MapState::Unreadable => Check::limited(
                NAME,
                format!("not read: {refusal}: {path}"),
                if *is_permission {
                    "run pyprof-bpf with sudo, or as the user of the process"
                } else {
                    "remove it and restart the process, or ask its owner to"
                },
            ),
        }
    }

    fn files(&self) -> Check {
        const NAME: &str = "files";
        let Some((limit, names)) = self.files.iter().next() else {
            return Check::ok(NAME, "its program and libraries can be read");
        };
        let first = names.first().map(String::as_str).unwrap_or_default();
        let more = if names.len() > 1 { ", …" } else { "" };
        let files = format!("{} ({first}{more})", names.len());
        let (finding, next) = match limit {
            FileLimit::OutOfReach => (
                "deleted or out of reach: stacks break off there",
                "CAP_CHECKPOINT_RESTORE reads them, as root has; or restart the process",
            ),
            FileLimit::Unreadable => (
                "neither to be opened nor to be read from memory: stacks break off there",
                "put them on a file system that this user may read",
            ),
            FileLimit::LoadedOutOfReach => (
                "deleted or out of reach: functions that they do not export have no names",
                "CAP_CHECKPOINT_RESTORE names them, as root has; or restart the process",
            ),
            FileLimit::Loaded => (
                "not to be opened, read from memory: functions that they do not export have no names",
                "stacks are complete; for all names put the files where this user may read them",
            ),
            FileLimit::Changed => (
                "replaced by other code while the process runs: native stacks are incomplete",
                "Python functions are not affected",
            ),
        };
        Check::limited(NAME, format!("{files} {finding}"), next)
    }
}

impl MapFacts {
    fn read(target: &Target) -> Self {
        let location = PerfMapLocation {
            directory: target.perf_map_directory(),
            ns_pid: target.ns_pid,
            owner_uid: target.uid,
        };
        let path = location.path().display().to_string();
        let mut map = PerfMapFile::new(location, PerfMapLimits::default());
        map.refresh();
        let had_name = matches!(map.state(), PerfMapState::Following);
        let handle = perf_map_handle(target);
        if let Some(handle) = &handle {
            map.follow_handle(handle);
        }
        let is_permission = matches!(
            map.state(),
            PerfMapState::Refused(Refusal::PermissionDenied)
        );
        let (state, refusal) = match map.state() {
            PerfMapState::Missing => (MapState::Missing, String::new()),
            PerfMapState::Following => (MapState::Ok, String::new()),
            PerfMapState::Refused(why @ Refusal::Io { .. }) => {
                (MapState::Unreadable, why.to_string())
            }
            PerfMapState::Refused(why) => (MapState::Refused, why.to_string()),
        };
        Self {
            path,
            state,
            refusal,
            entries: map.map().len() as u64,
            is_open: handle.is_some(),
            is_deleted: state == MapState::Ok && !had_name,
            is_permission,
        }
    }
}

fn python_children(pid: Pid) -> Vec<Pid> {
    let mut children = Children::default();
    children.look(pid);
    children.pythons().collect()
}

fn file_limits(pid: Pid, mappings: &[Mapping]) -> FileLimits {
    let mut limits = FileLimits::default();
    for mapping in mappings.iter().filter(|mapping| mapping.is_of_file()) {
        limits.note(pid, mapping, &open_mapped(pid, mapping));
    }
    limits
}

#[cfg(test)]
#[path = "target_tests.rs"]
mod tests;
