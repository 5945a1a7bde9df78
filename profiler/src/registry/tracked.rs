//! One process that is recorded: what is mapped in it, what it runs, how much CPU time it used.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Emit, Host, PythonFrom, PythonSource,
    interpreter::{InterpreterState, Pending, Subject, TIMEOUT},
};
use crate::{
    model::{ImageId, Pid},
    process::{
        Mapping, Pace, ProgramChange, ProgramEvent, PythonInfo, Search, Target, file_name,
        interpreter::PatientReader,
    },
};

/// A process without a Python is inspected again after this time: it may still be starting.
const INSPECT_AGAIN: Duration = Duration::from_secs(2);
/// A program maps its libraries in this time after it began, and may have no others.
const YOUNG_FOR: Duration = Duration::from_millis(300);
/// A program that is another one than is known is taken for what it is once its event has not come for this time.
const EVENT_TIMEOUT: Duration = Duration::from_millis(500);
/// A process that gives itself a title does so in this time after it was seen first.
const NEW_FOR: Duration = Duration::from_secs(3);
/// Bytes of a command line that are kept of a program that has ended.
const COMMAND_BYTES_MAX: usize = 1024;

/// What a program is called, and which Python it is. A forked child begins with those of its parent.
#[derive(Clone, Debug)]
pub(super) struct ProgramInfo {
    pub(super) command: Arc<str>,
    /// A few words for it.
    pub(super) label: Arc<str>,
    pub(super) python: PythonInfo,
    /// The extension module of `greenlet`, which switches between C stacks, is loaded.
    pub(super) has_greenlets: bool,
    /// What is known about the interpreter.
    pub(super) interpreter: InterpreterState,
}

/// One process.
#[derive(Debug)]
pub(super) struct Tracked {
    pub(super) image: ImageId,
    /// `None`: it was gone, or could not be checked, when it was seen first.
    pub(super) target: Option<Target>,
    pub(super) info: ProgramInfo,
    first_seen: Instant,
    inspected: Instant,
    pub(super) cpu_at_start: Duration,
    /// Samples of its program in windows that have ended.
    pub(super) counted: u64,
    /// Known from the event of its exit.
    pub(super) cpu_at_end: Option<Duration>,
    /// Its CPU time when sampling stopped: what it uses while the recording is finished does not count.
    cpu_at_stop: Option<Duration>,
    /// What about it must be read again.
    stale: Stale,
    /// An examination of its interpreter whose result is not there yet.
    pending: Option<Pending>,
    /// Time spent on reading it.
    pace: Pace,
    young_until: Option<Instant>,
    was_gone: bool,
    /// It was found to run another program, which no event has told.
    differs_since: Option<Instant>,
    /// Where the stack of its program begins, if known: each `exec` puts it elsewhere.
    pub(super) stack: Option<u64>,
    /// Mappings past the limits, at most.
    pub(super) left_out: u32,
    /// Its mappings and its interpreter were not read yet, or not all of them.
    pub(super) is_unexamined: bool,
    /// Longest wait for an examination of its interpreter.
    pub(super) examination_timeout: Duration,
}

/// What about a process must be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Stale {
    Nothing,
    /// Its mappings may have changed, or could not be handed on.
    Mappings,
    /// It runs another program.
    Program,
}

/// What it takes to read a process and to report what was found.
pub(super) struct Means<'m> {
    pub(super) host: &'m Arc<dyn Host>,
    pub(super) reader: &'m mut PatientReader,
    pub(super) emit: &'m mut dyn Emit,
}

impl Means<'_> {
    fn emit(&mut self, pid: Pid, image: ImageId, change: ProgramChange<'_>) -> bool {
        self.emit.emit(&ProgramEvent { pid, image, change })
    }
}

impl Tracked {
    /// A process that runs already. `search`: how much of its files may be read now to find its interpreter.
    pub(super) fn running(
        target: Target,
        image: ImageId,
        from: PythonFrom,
        search: Search,
        host: &dyn Host,
    ) -> Self {
        let mappings = mappings_of(host, target.pid);
        let python = host.inspect(&target, &mappings, search);
        let python = python.unwrap_or_else(PythonInfo::unknown);
        let info = ProgramInfo::of(&target, python, InterpreterState::wanted(from));
        let (stack, cpu_at_start) = (host.stack_of(target.pid), target.cpu_time());
        Self {
            cpu_at_start,
            stack,
            ..Self::new(Some(target), image, info, host.now())
        }
    }

    /// A child process, as it begins.
    pub(super) fn forked(
        target: Option<Target>,
        image: ImageId,
        parent: ProgramInfo,
        stack: Option<u64>,
        now: Instant,
    ) -> Self {
        Self {
            stack,
            ..Self::new(target, image, parent, now)
        }
    }

    fn new(target: Option<Target>, image: ImageId, info: ProgramInfo, now: Instant) -> Self {
        Self {
            image,
            target,
            info,
            first_seen: now,
            inspected: now,
            cpu_at_start: Duration::ZERO,
            counted: 0,
            cpu_at_end: None,
            cpu_at_stop: None,
            stale: Stale::Nothing,
            pending: None,
            pace: Pace::default(),
            young_until: None,
            was_gone: false,
            differs_since: None,
            stack: None,
            left_out: 0,
            is_unexamined: false,
            examination_timeout: TIMEOUT,
        }
    }

    /// It runs another program now. Gives what is left of the old one. `stack`: where the new one's begins.
    pub(super) fn replaced(
        &mut self,
        image: ImageId,
        stack: Option<u64>,
        now: Instant,
    ) -> (ImageId, ProgramInfo) {
        self.stack = stack;
        self.differs_since = None;
        let before = std::mem::replace(&mut self.image, image);
        let unknown = ProgramInfo {
            python: PythonInfo::unknown(),
            interpreter: self.info.interpreter.replaced(),
            ..self.info.clone()
        };
        self.begins(now);
        self.stale = Stale::Program;
        (before, std::mem::replace(&mut self.info, unknown))
    }

    /// It has just begun with its program.
    pub(super) fn begins(&mut self, now: Instant) {
        self.young_until = Some(now + YOUNG_FOR);
    }

    /// Its program has just begun, so that it should be read more often.
    pub(super) fn is_young(&self, now: Instant) -> bool {
        self.young_until.is_some_and(|until| now < until)
    }

    /// It is a Python, and its frames are not read yet.
    pub(super) fn is_python_starting(&self) -> bool {
        self.info.python.version.is_some() && self.info.interpreter.may_change()
    }

    /// This must be read again: now or, where too much of that was done of late, later.
    pub(super) fn mark(&mut self, stale: Stale) {
        self.stale = self.stale.max(stale);
    }

    /// Something about it must be read.
    pub(super) fn is_stale(&self) -> bool {
        self.stale != Stale::Nothing || self.info.interpreter.is_waiting()
    }

    /// No interpreter has been found in it for a while.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        let since = now.saturating_duration_since(self.inspected);
        self.info.python.version.is_none() && since >= INSPECT_AGAIN
    }

    /// Reads what is stale, unless much of that was done of late. Gives the time that it took.
    pub(super) fn refresh(&mut self, pid: Pid, means: &mut Means<'_>) -> Duration {
        let began = means.host.now();
        let interpreter = &self.info.interpreter;
        let is_idle = self.stale == Stale::Nothing
            && !(interpreter.is_waiting() && interpreter.is_due(began));
        if is_idle || self.pace.is_resting(began) {
            return Duration::ZERO;
        }
        match std::mem::replace(&mut self.stale, Stale::Nothing) {
            Stale::Nothing => {
                let mappings = mappings_of(&**means.host, pid);
                self.examine_interpreter(pid, &mappings, means);
            }
            Stale::Mappings => self.read_mappings(pid, Search::All, means),
            Stale::Program => self.read_program(pid, means),
        }
        let now = means.host.now();
        let took = now.saturating_duration_since(began);
        self.pace.spent(now, took);
        took
    }

    fn read_program(&mut self, pid: Pid, means: &mut Means<'_>) {
        if let Ok(target) = means.host.check(pid)
            && self.runs_same_program(pid, &**means.host)
        {
            // Which Python it is shows in its mappings.
            let interpreter = self.info.interpreter.replaced();
            self.info = ProgramInfo::of(&target, PythonInfo::unknown(), interpreter);
            let described = ProgramChange::Described {
                target: &target,
                python: &self.info.python,
            };
            means.emit(pid, self.image, described);
            self.target = Some(target);
        }
        self.read_mappings(pid, Search::All, means);
    }

    /// It is to be examined later.
    pub(super) fn postpone(&mut self) {
        self.is_unexamined = true;
        self.mark(Stale::Mappings);
    }

    /// Reads its mappings, and reports them. `search`: see [`running`](Self::running).
    pub(super) fn read_mappings(&mut self, pid: Pid, search: Search, means: &mut Means<'_>) {
        // A process that is gone has no mappings, but samples of it are still being resolved.
        let Ok(mut parsed) = means.host.mappings(pid) else {
            return;
        };
        let room = means
            .emit
            .room_for_mappings(self.image, parsed.mappings.len());
        parsed.keep_largest(room);
        if !self.runs_same_program(pid, &**means.host) {
            // It runs yet another program, whose event is on its way, unless it came before there were events of this process.
            self.differs_since.get_or_insert(means.host.now());
            return;
        }
        self.differs_since = None;
        self.left_out = self.left_out.max(parsed.left_out);
        let mappings = parsed.mappings;
        if mappings.is_empty() {
            return;
        }
        let Some(target) = self.target.as_ref().filter(|target| target.is_alive()) else {
            // The mappings may be those of another process.
            return;
        };
        self.is_unexamined = false;
        if self.may_find_another_python() {
            let interpreter = self.info.interpreter.clone();
            if let Some(python) = means.host.inspect(target, &mappings, search) {
                self.info = ProgramInfo::of(target, python, interpreter);
                self.inspected = means.host.now();
            } else {
                self.is_unexamined = true;
                self.stale = Stale::Mappings;
            }
        }
        self.info.has_greenlets = mappings.iter().any(is_greenlets);
        let perf_map = means.host.perf_map_handle(target);
        let mapped = ProgramChange::Mapped {
            mappings: &mappings,
            python: &self.info.python,
            perf_map: perf_map.as_deref(),
        };
        if !means.emit(pid, self.image, mapped) {
            self.mark(Stale::Mappings);
        }
        if self.info.interpreter.may_change() {
            self.examine_interpreter(pid, &mappings, means);
        }
    }

    /// Its mappings may show a Python that was not found yet. A program that is linked with libpython is known as a Python
    /// by its name before the dynamic loader maps the libpython, which holds the interpreter.
    fn may_find_another_python(&self) -> bool {
        let ProgramInfo {
            python,
            interpreter,
            ..
        } = &self.info;
        let may_lack_library = !interpreter.is_wanted() && !python.has_library();
        python.version.is_none() || interpreter.may_change() || may_lack_library
    }

    /// Finds out whether its interpreter's frames can be read, if that is not known yet.
    fn examine_interpreter(&mut self, pid: Pid, mappings: &[Mapping], means: &mut Means<'_>) {
        let ProgramInfo {
            python,
            interpreter,
            ..
        } = &mut self.info;
        let is_alive = self.target.as_ref().is_some_and(Target::is_alive);
        if python.version.is_none() || !is_alive {
            return;
        }
        let subject = Subject {
            pid,
            image: self.image,
            python,
            mappings,
            timeout: self.examination_timeout,
        };
        let found = interpreter.examine(&subject, &mut self.pending, means.reader, means.host);
        if let Some((interpreter, threads)) = found {
            let found = ProgramChange::InterpreterFound {
                interpreter: &interpreter,
                threads: &threads,
            };
            means.emit(pid, self.image, found);
        }
    }

    /// Reads the title of the process: gunicorn's workers say what they are some time after they were forked. A process
    /// that has exited keeps the last one.
    pub(super) fn read_title(&mut self) {
        if let Some(target) = &mut self.target {
            target.read_title();
            let ProgramInfo {
                python,
                has_greenlets,
                interpreter,
                ..
            } = self.info.clone();
            self.info = ProgramInfo {
                has_greenlets,
                ..ProgramInfo::of(target, python, interpreter)
            };
        }
    }

    /// It was seen first not long ago.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        now.saturating_duration_since(self.first_seen) < NEW_FOR
    }

    /// It was found to be gone. True if it was so the last time, too: then no more events of it will come.
    pub(super) fn was_gone_before(&mut self) -> bool {
        std::mem::replace(&mut self.was_gone, true)
    }

    /// The process still runs this program, as far as can be known.
    pub(super) fn runs_same_program(&self, pid: Pid, host: &dyn Host) -> bool {
        self.stack
            .zip(host.stack_of(pid))
            .is_none_or(|(known, now)| known == now)
    }

    /// It was found to run another program a while ago, whose event did not come.
    pub(super) fn differs_for_long(&self, now: Instant) -> bool {
        self.differs_since
            .is_some_and(|since| now.saturating_duration_since(since) >= EVENT_TIMEOUT)
    }

    /// Sampling has stopped.
    pub(super) fn sampling_stopped(&mut self) {
        self.cpu_at_stop = self.cpu_now();
    }

    /// CPU time used since sampling began or this was asked last.
    pub(super) fn take_cpu_time(&mut self) -> Duration {
        let used = self.cpu_time();
        self.cpu_at_start += used;
        used
    }

    fn cpu_now(&self) -> Option<Duration> {
        self.target.as_ref().map(Target::cpu_time)
    }

    /// CPU time used since sampling began or it was taken last, until sampling stopped.
    pub(super) fn cpu_time(&self) -> Duration {
        // The number of the exit event lacks threads that were exiting at the same moment.
        let seen = self.cpu_at_stop.or_else(|| self.cpu_now());
        let now = self.cpu_at_end.max(seen).unwrap_or_default();
        now.saturating_sub(self.cpu_at_start)
    }
}

impl ProgramInfo {
    pub(super) fn of(target: &Target, python: PythonInfo, interpreter: InterpreterState) -> Self {
        Self {
            command: target.command().into(),
            label: target.label().into(),
            python,
            has_greenlets: false,
            interpreter,
        }
    }

    /// Why its interpreter's frames are not read, if that is certain.
    pub(super) fn obstacle(&self) -> Option<String> {
        match self.interpreter.source() {
            PythonSource::Refused(obstacle) => Some(obstacle.reason),
            PythonSource::NotYet if self.python.version.is_none() => {
                Some("no CPython is loaded in it".to_owned())
            }
            _ => None,
        }
    }

    /// What is kept of it when the program has ended: there may be ten thousands of them.
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

/// Executable mappings of a process; none where they cannot be read.
pub(super) fn mappings_of(host: &dyn Host, pid: Pid) -> Vec<Mapping> {
    host.mappings(pid)
        .map_or(Vec::new(), |parsed| parsed.mappings)
}
