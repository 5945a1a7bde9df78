//! One process of a recording: what is mapped in it, what it runs, what it used.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    PythonFrom, PythonSource,
    python_frames::{Looking, PATIENCE, Program, PythonFrames},
};
use crate::{
    model::{ImageId, Pid},
    process::{
        Mapping, Pace, ParsedMappings, PythonInfo, Search, Target, file_name, inspect_within,
        perf_map_handle, read_executable_mappings, stack_of,
    },
    symbols::Resolver,
    unwind::TableBuilder,
};

/// A process without a Python is looked at again this often: it may still be starting.
const INSPECT_AGAIN: Duration = Duration::from_secs(2);
/// A program maps its libraries in its first moments, and may have no others.
const YOUNG_FOR: Duration = Duration::from_millis(300);
/// A process that has a title gives it to itself soon.
const NEW_FOR: Duration = Duration::from_secs(3);
/// Bytes of a command line that are kept of a process that has ended.
const COMMAND_BYTES_MAX: usize = 1024;

/// What a process is called, and what it runs. Its forked children begin with the same.
#[derive(Clone, Debug)]
pub(super) struct Identity {
    pub(super) command: Arc<str>,
    /// A few words for it.
    pub(super) label: Arc<str>,
    pub(super) python: PythonInfo,
    /// It has the library of that name, which switches between C stacks.
    pub(super) has_greenlets: bool,
    /// What is known of the interpreter.
    pub(super) interpreter: PythonFrames,
}

/// One process.
pub(super) struct Followed {
    pub(super) image: ImageId,
    /// `None`: it was gone, or could not be looked at, when it was met.
    pub(super) target: Option<Target>,
    pub(super) identity: Identity,
    met: Instant,
    inspected: Instant,
    pub(super) cpu_at_start: Duration,
    /// Known from its end.
    pub(super) cpu_at_end: Option<Duration>,
    /// Its CPU time when sampling stopped: what it uses while the recording is finished does not count.
    cpu_at_stop: Option<Duration>,
    /// What has happened to it and was not looked at yet.
    news: News,
    /// A look at its interpreter that has not come back yet.
    looking: Option<Looking>,
    /// Looking at it.
    pace: Pace,
    young_until: Option<Instant>,
    seen_gone: bool,
    /// Where the stack of its program begins, if known.
    pub(super) stack: Option<u64>,
    /// Mappings past the limits, at most.
    pub(super) left_out: u32,
    /// Nobody has looked at its mappings and its interpreter yet, or not at all of them.
    pub(super) is_unexamined: bool,
    /// A look at its interpreter is waited for so long.
    pub(super) waits_for_interpreter: Duration,
}

/// What has happened to a process since it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum News {
    None,
    /// Its mappings may have changed, or could not be handed on.
    Mappings,
    /// It runs another program.
    Program,
}

impl Followed {
    /// One that runs already. `search`: how much of its files may be read now to find its interpreter.
    pub(super) fn attached(
        target: Target,
        image: ImageId,
        from: PythonFrom,
        search: Search,
    ) -> Self {
        let mappings = mappings_of(target.pid).unwrap_or_default();
        let python = inspect_within(&target, &mappings, search);
        let python = python.unwrap_or_else(PythonInfo::unknown);
        let identity = Identity::of(&target, python, PythonFrames::wanted(from));
        let cpu_at_start = target.cpu_time();
        Self {
            cpu_at_start,
            stack: stack_of(target.pid),
            ..Self::new(Some(target), image, identity)
        }
    }

    /// Makes its program known to the resolver.
    pub(super) fn introduce(&self, resolver: &mut Resolver) {
        if let Some(target) = &self.target {
            let python = self.identity.python.clone();
            resolver.add_process(self.image, target, python);
        }
    }

    /// A child process, as it begins.
    pub(super) fn forked(
        target: Option<Target>,
        image: ImageId,
        parent: Identity,
        stack: Option<u64>,
    ) -> Self {
        Self {
            stack,
            ..Self::new(target, image, parent)
        }
    }

    fn new(target: Option<Target>, image: ImageId, identity: Identity) -> Self {
        Self {
            image,
            target,
            identity,
            met: Instant::now(),
            inspected: Instant::now(),
            cpu_at_start: Duration::ZERO,
            cpu_at_end: None,
            cpu_at_stop: None,
            news: News::None,
            looking: None,
            pace: Pace::default(),
            young_until: None,
            seen_gone: false,
            stack: None,
            left_out: 0,
            is_unexamined: false,
            waits_for_interpreter: PATIENCE,
        }
    }

    /// It runs another program now. Gives what is left of the old one, which keeps the CPU time used so far.
    /// `stack`: where the new one's begins, by which it is known.
    pub(super) fn replaced(&mut self, image: ImageId, stack: Option<u64>) -> (ImageId, Identity) {
        self.stack = stack;
        let before = std::mem::replace(&mut self.image, image);
        let nothing = Identity {
            python: PythonInfo::unknown(),
            interpreter: self.identity.interpreter.replaced(),
            ..self.identity.clone()
        };
        self.begins();
        self.news = News::Program;
        (before, std::mem::replace(&mut self.identity, nothing))
    }

    /// It has just begun with its program.
    pub(super) fn begins(&mut self) {
        self.young_until = Some(Instant::now() + YOUNG_FOR);
    }

    /// Its first moments, in which it is looked at more often.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        self.young_until.is_some_and(|until| now < until)
    }

    /// It is a Python, and its frames are not read yet.
    pub(super) fn is_python_starting(&self) -> bool {
        self.identity.python.version.is_some() && self.identity.interpreter.may_change()
    }

    /// Something has happened. It is looked at now or, where that was done too much of late, another time.
    pub(super) fn note(&mut self, news: News) {
        self.news = self.news.max(news);
    }

    /// There is something to look at.
    pub(super) fn has_news(&self) -> bool {
        self.news != News::None || self.identity.interpreter.is_waiting()
    }

    /// No interpreter has been found in it for a while.
    pub(super) fn is_due(&self) -> bool {
        self.identity.python.version.is_none() && self.inspected.elapsed() >= INSPECT_AGAIN
    }

    /// Finds out what is new, unless that was done a moment ago. Gives the time that it took.
    pub(super) fn look(
        &mut self,
        pid: Pid,
        builder: &TableBuilder,
        resolver: &mut Resolver,
    ) -> Duration {
        let interpreter = &self.identity.interpreter;
        let is_idle =
            self.news == News::None && !(interpreter.is_waiting() && interpreter.is_due());
        if is_idle || self.pace.is_resting() {
            return Duration::ZERO;
        }
        let began = Instant::now();
        match std::mem::replace(&mut self.news, News::None) {
            News::None => {
                let mappings = mappings_of(pid).unwrap_or_default();
                self.look_at_interpreter(pid, &mappings, builder, resolver);
            }
            News::Mappings => self.read_mappings(pid, Search::All, builder, resolver),
            News::Program => self.read_program(pid, builder, resolver),
        }
        let took = began.elapsed();
        self.pace.spent(took);
        took
    }

    fn read_program(&mut self, pid: Pid, builder: &TableBuilder, resolver: &mut Resolver) {
        if let Ok(target) = Target::check(pid)
            && self.is_still_it(pid)
        {
            // What Python it is shows in its mappings.
            let interpreter = self.identity.interpreter.replaced();
            self.identity = Identity::of(&target, PythonInfo::unknown(), interpreter);
            resolver.describe(self.image, &target, self.identity.python.clone());
            self.target = Some(target);
        }
        self.read_mappings(pid, Search::All, builder, resolver);
    }

    /// It is to be examined later.
    pub(super) fn put_off(&mut self) {
        self.is_unexamined = true;
        self.news = self.news.max(News::Mappings);
    }

    /// Reads what is mapped, and hands it on. `search`: see [`attached`](Self::attached).
    pub(super) fn read_mappings(
        &mut self,
        pid: Pid,
        search: Search,
        builder: &TableBuilder,
        resolver: &mut Resolver,
    ) {
        // A process that is gone has no mappings, but samples of it are still being resolved.
        let Ok(ParsedMappings {
            mut mappings,
            mut left_out,
            ..
        }) = read_executable_mappings(pid)
        else {
            return;
        };
        let room = resolver.room_for_mappings(self.image, mappings.len());
        left_out = left_out.saturating_add(mappings.len().saturating_sub(room) as u32);
        mappings.truncate(room);
        if !self.is_still_it(pid) {
            // It runs yet another program, of which will be told.
            return;
        }
        self.left_out = self.left_out.max(left_out);
        if mappings.is_empty() {
            return;
        }
        let Some(target) = self.target.as_ref().filter(|target| target.is_alive()) else {
            // Another process's, maybe.
            return;
        };
        self.is_unexamined = false;
        if self.identity.python.version.is_none() || self.identity.interpreter.may_change() {
            let interpreter = self.identity.interpreter.clone();
            if let Some(python) = inspect_within(target, &mappings, search) {
                self.identity = Identity::of(target, python, interpreter);
                self.inspected = Instant::now();
            } else {
                self.is_unexamined = true;
                self.news = News::Mappings;
            }
        }
        self.identity.has_greenlets = mappings.iter().any(is_greenlets);
        let handle = perf_map_handle(target);
        let python = self.identity.python.clone();
        let all_opened = resolver.update(self.image, &mappings, python, handle.as_deref());
        builder.update(pid, self.image, mappings.clone());
        if !all_opened {
            self.news = self.news.max(News::Mappings);
        }
        if self.identity.interpreter.may_change() {
            self.look_at_interpreter(pid, &mappings, builder, resolver);
        }
    }

    /// Finds out whether its interpreter's frames can be read, if that is not known yet.
    fn look_at_interpreter(
        &mut self,
        pid: Pid,
        mappings: &[Mapping],
        builder: &TableBuilder,
        resolver: &mut Resolver,
    ) {
        let Identity {
            python,
            interpreter,
            ..
        } = &mut self.identity;
        let is_alive = self.target.as_ref().is_some_and(Target::is_alive);
        if python.version.is_some() && is_alive {
            let program = Program {
                pid,
                image: self.image,
                python,
                mappings,
                patience: self.waits_for_interpreter,
            };
            interpreter.look(&program, &mut self.looking, builder, resolver);
        }
    }

    /// Processes change their titles: gunicorn's workers say what they are some time after they were forked. One that has
    /// exited keeps the last that was seen.
    pub(super) fn read_title(&mut self) {
        if let Some(target) = &mut self.target {
            target.read_title();
            let Identity {
                python,
                has_greenlets,
                interpreter,
                ..
            } = self.identity.clone();
            self.identity = Identity {
                has_greenlets,
                ..Identity::of(target, python, interpreter)
            };
        }
    }

    /// It was met not long ago.
    pub(super) fn is_new(&self) -> bool {
        self.met.elapsed() < NEW_FOR
    }

    /// It was found to be gone. True if it was so the last time, too: then nothing more will come of it.
    pub(super) fn was_gone_before(&mut self) -> bool {
        std::mem::replace(&mut self.seen_gone, true)
    }

    /// The process still runs this program, as far as can be known.
    pub(super) fn is_still_it(&self, pid: Pid) -> bool {
        self.stack
            .zip(stack_of(pid))
            .is_none_or(|(known, now)| known == now)
    }

    /// Sampling has stopped.
    pub(super) fn stopped(&mut self) {
        self.cpu_at_stop = self.cpu_now();
    }

    fn cpu_now(&self) -> Option<Duration> {
        self.target.as_ref().map(Target::cpu_time)
    }

    /// CPU time used since sampling began, until it stopped.
    pub(super) fn cpu_time(&self) -> Duration {
        // The kernel side's number lacks threads that were ending at the same moment.
        let seen = self.cpu_at_stop.or_else(|| self.cpu_now());
        let now = self.cpu_at_end.max(seen).unwrap_or_default();
        now.saturating_sub(self.cpu_at_start)
    }
}

impl Identity {
    pub(super) fn of(target: &Target, python: PythonInfo, interpreter: PythonFrames) -> Self {
        Self {
            command: target.command().into(),
            label: target.label().into(),
            python,
            has_greenlets: false,
            interpreter,
        }
    }

    /// Why its interpreter's frames are not read, if that is sure.
    pub(super) fn obstacle(&self) -> Option<String> {
        match self.interpreter.source() {
            PythonSource::Refused(obstacle) => Some(obstacle.reason),
            PythonSource::NotYet if self.python.version.is_none() => {
                Some("no CPython is loaded in it".to_owned())
            }
            _ => None,
        }
    }

    /// What is kept of it when the process has ended: there may be ten thousands of them.
    pub(super) fn shortened(mut self) -> Self {
        if self.command.len() > COMMAND_BYTES_MAX {
            let end = self.command.floor_char_boundary(COMMAND_BYTES_MAX);
            self.command = self.command[..end].into();
        }
        self.python.interpreter_files = Vec::new();
        self
    }
}

/// The extension module of the package `greenlet`, `_greenlet.cpython-39-x86_64-linux-gnu.so`; `greenlet.….so` before 1.0.
fn is_greenlets(mapping: &Mapping) -> bool {
    mapping.path().is_some_and(|path| {
        let name = file_name(path);
        name.starts_with("_greenlet.") || name.starts_with("greenlet.")
    })
}

pub(super) fn mappings_of(pid: Pid) -> Option<Vec<Mapping>> {
    read_executable_mappings(pid)
        .ok()
        .map(|parsed| parsed.mappings)
}
