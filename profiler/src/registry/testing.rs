//! A system of made-up processes, with a clock that only tests move.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    os::fd::OwnedFd,
    path::PathBuf,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{Emit, Examination, Host, PythonFrom, Registry, Summaries};
use crate::{
    model::{Avma, FileOffset, ImageId, KtimeNs, Pid, ProcessChange, ProcessEvent},
    process::{
        CodeCopy, Mapping, MappingKind, ParsedMappings, ProgramChange, ProgramEvent, PythonInfo,
        Search, SelectError, Selector, Target, TargetError,
        interpreter::{Examined, Misfit, NotYet, Refusal, Version, built_in},
    },
    symbols::{NameDiagnosis, ProgramFacts},
};

/// The first pid of a made-up process: no real one is larger than 4,194,304 (`PID_MAX_LIMIT`, include/linux/threads.h).
const FIRST_PID: u32 = 5_000_000;

/// The pid of a made-up process.
pub(super) const fn pid(number: u32) -> Pid {
    Pid(FIRST_PID + number)
}

pub(super) fn number(pid: Pid) -> u32 {
    pid.0 - FIRST_PID
}

/// What the interpreter of a made-up process looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Looks {
    /// It has frames that can be read.
    Known,
    /// It has no frames.
    NoFrames,
    /// It has frames that fit no layout.
    Foreign,
    /// It describes itself wrongly.
    Damaged,
}

/// A made-up process.
#[derive(Debug)]
struct Made {
    /// Since boot.
    started: Duration,
    stack: u64,
    files: Vec<&'static str>,
    python: Option<(u8, u8)>,
    /// What an examination of its interpreter says.
    interpreter: Looks,
    /// Dropped when the process exits, by which its handle becomes readable.
    _alive: io::PipeWriter,
    handle: OwnedFd,
}

/// The system.
#[derive(Debug, Default)]
pub(super) struct MadeUpHost {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    begun: Instant,
    passed: Duration,
    processes: BTreeMap<Pid, Made>,
    /// Processes that an open selector admits.
    admitted: BTreeSet<Pid>,
    next_stack: u64,
    /// How often a process was examined.
    examinations: u32,
}

impl Default for State {
    fn default() -> Self {
        Self {
            begun: Instant::now(),
            passed: Duration::ZERO,
            processes: BTreeMap::new(),
            admitted: BTreeSet::new(),
            next_stack: 0x7000_0000,
            examinations: 0,
        }
    }
}

/// What a Python maps.
pub(super) const PYTHON: &[&str] = &["/usr/bin/python3.12"];

impl MadeUpHost {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Time passes.
    pub(super) fn pass(&self, time: Duration) {
        self.state().passed += time;
    }

    /// A process begins now, and maps these files.
    pub(super) fn start(&self, number: u32, files: &[&'static str]) {
        let (handle, alive) = io::pipe().expect("a pipe");
        let mut state = self.state();
        state.next_stack += 0x1000;
        let made = Made {
            started: state.passed,
            stack: state.next_stack,
            files: files.to_vec(),
            python: is_python(files),
            interpreter: Looks::Known,
            _alive: alive,
            handle: handle.into(),
        };
        state.admitted.insert(pid(number));
        state.processes.insert(pid(number), made);
    }

    fn change(&self, number: u32, change: impl FnOnce(&mut Made)) {
        change(self.state().processes.get_mut(&pid(number)).expect("runs"));
    }

    /// A child of a process begins: it has what its parent has.
    pub(super) fn fork(&self, parent: u32, child: u32) {
        let (files, stack) = {
            let state = self.state();
            let parent = &state.processes[&pid(parent)];
            (parent.files.clone(), parent.stack)
        };
        self.start(child, &files);
        self.change(child, |made| made.stack = stack);
    }

    /// A process runs another program, which maps these files.
    pub(super) fn exec(&self, number: u32, files: &[&'static str]) {
        let stack = {
            let mut state = self.state();
            state.next_stack += 0x1000;
            state.next_stack
        };
        self.change(number, |made| made.stack = stack);
        self.map(number, files);
    }

    /// A process has these files mapped now.
    pub(super) fn map(&self, number: u32, files: &[&'static str]) {
        self.change(number, |made| {
            made.files = files.to_vec();
            made.python = is_python(files);
        });
    }

    /// From now on the interpreter of a process looks like this.
    pub(super) fn show(&self, number: u32, looks: Looks) {
        self.change(number, |made| made.interpreter = looks);
    }

    /// A process exits.
    pub(super) fn exit(&self, number: u32) {
        self.state().processes.remove(&pid(number));
    }

    /// An open selector admits this process no more.
    pub(super) fn deselect(&self, number: u32) {
        self.state().admitted.remove(&pid(number));
    }

    /// How often an interpreter was examined.
    pub(super) fn examinations(&self) -> u32 {
        self.state().examinations
    }
}

fn is_python(files: &[&str]) -> Option<(u8, u8)> {
    files
        .iter()
        .any(|file| file.contains("python"))
        .then_some((3, 12))
}

fn mapping(index: usize, file: &str) -> Mapping {
    let begin = 0x1000_0000 + 0x10_0000 * index as u64;
    Mapping {
        begin: Avma(begin),
        end: Avma(begin + 0x1000),
        file_offset: FileOffset(0),
        executable: true,
        kind: MappingKind::File {
            path: std::path::Path::new(file).into(),
            deleted: false,
        },
        device: (8, 1),
        inode: 7 + index as u64,
        head: None,
        copy: CodeCopy::None,
    }
}

fn gone() -> io::Error {
    io::Error::from(io::ErrorKind::NotFound)
}

impl Host for MadeUpHost {
    fn now(&self) -> Instant {
        let state = self.state();
        state.begun + state.passed
    }

    fn since_boot(&self) -> Duration {
        self.state().passed
    }

    fn work_time(&self) -> Duration {
        Duration::ZERO
    }

    fn check(&self, pid: Pid) -> Result<Target, TargetError> {
        let state = self.state();
        let made = state.processes.get(&pid);
        let made = made.ok_or(TargetError::NoSuchProcess { pid })?;
        let handle = made.handle.try_clone().expect("a descriptor");
        let ticks = made.started.as_millis() as u64 / 10;
        Ok(Target::made_up(pid, ticks, handle))
    }

    fn mappings(&self, pid: Pid) -> io::Result<ParsedMappings> {
        let state = self.state();
        let made = state.processes.get(&pid).ok_or_else(gone)?;
        let files = made.files.iter().enumerate();
        Ok(ParsedMappings {
            mappings: files.map(|(index, file)| mapping(index, file)).collect(),
            left_out: 0,
            malformed: 0,
        })
    }

    fn inspect(&self, target: &Target, _: &[Mapping], search: Search) -> Option<PythonInfo> {
        let state = self.state();
        let made = state.processes.get(&target.pid)?;
        (search != Search::Nothing).then(|| PythonInfo {
            version: made.python,
            interpreter_files: made
                .files
                .iter()
                .filter(|file| file.contains("python"))
                .map(|&file| file.to_owned())
                .collect(),
            ..PythonInfo::unknown()
        })
    }

    fn stack_of(&self, pid: Pid) -> Option<u64> {
        self.state().processes.get(&pid).map(|made| made.stack)
    }

    fn perf_map_handle(&self, _: &Target) -> Option<PathBuf> {
        None
    }

    fn scan(&self, selector: &Selector, _: Search) -> Result<(Vec<Pid>, u64), SelectError> {
        let found = match selector {
            Selector::Pids(pids) => pids.clone(),
            _ => self.state().admitted.iter().copied().collect(),
        };
        Ok((found, 0))
    }

    fn admits(&self, _: &Selector, pid: Pid) -> bool {
        self.state().admitted.contains(&pid)
    }

    fn descendants_of(&self, _: &[Pid]) -> Vec<Pid> {
        Vec::new()
    }

    fn examine(&self, pid: Pid, _: &[Mapping], _: &PythonInfo) -> Examination {
        let mut state = self.state();
        state.examinations += 1;
        let made = state.processes.get(&pid).ok_or_else(gone)?;
        let version = Version(0x030c_00f0);
        let refused = |refusal| Ok((Examined::Refused(refusal), Vec::new()));
        match made.interpreter {
            Looks::Known => {
                let interpreter = built_in(12, 0x1000, 0x2000, version.0).expect("is known");
                Ok((Examined::Known(Box::new(interpreter)), vec![(1, 2)]))
            }
            Looks::NoFrames => Ok((Examined::NotYet(NotYet::NoFrames), Vec::new())),
            Looks::Foreign => refused(Refusal::Foreign {
                version,
                misfit: Misfit::NotCode,
            }),
            Looks::Damaged => refused(Refusal::NoDescription(version)),
        }
    }
}

/// Writes down the events of a registry.
#[derive(Debug, Default)]
pub(super) struct Written {
    events: Vec<String>,
    /// Samples of programs.
    samples: BTreeMap<ImageId, u64>,
    /// The same of the window that has not been cut yet.
    pub(super) window: FxHashMap<ImageId, u64>,
    /// Programs that are known and not retired yet.
    known: BTreeSet<ImageId>,
    /// How often mappings are refused.
    refusals: u32,
    /// Interpreter files that the last mappings came with.
    pub(super) interpreter_files: usize,
}

impl Written {
    /// How many programs were not retired yet.
    pub(super) fn known(&self) -> usize {
        self.known.len()
    }
}

impl Emit for Written {
    fn emit(&mut self, event: &ProgramEvent<'_>) -> bool {
        let ProgramEvent { pid, image, change } = *event;
        let what = match change {
            ProgramChange::Started { is_sampled, .. } => {
                self.known.insert(image);
                if is_sampled { "found" } else { "started" }.to_owned()
            }
            ProgramChange::Forked { from, child } => {
                self.known.insert(image);
                format!("forked from #{} over {}", from.0, child.between.len())
            }
            ProgramChange::Replaced {
                before, is_fresh, ..
            } => {
                self.known.insert(image);
                let fresh = if is_fresh { " just now" } else { "" };
                format!("replaced #{}{fresh}", before.0)
            }
            ProgramChange::Described { .. } => "described".to_owned(),
            ProgramChange::Mapped {
                mappings, python, ..
            } => {
                self.interpreter_files = python.interpreter_files.len();
                format!("mapped {}", mappings.len())
            }
            ProgramChange::InterpreterFound { .. } => "interpreter".to_owned(),
            ProgramChange::Exited => "exited".to_owned(),
            ProgramChange::Retired => {
                assert!(self.known.remove(&image), "{image:?} is retired once");
                "retired".to_owned()
            }
            ProgramChange::Expelled => {
                self.events.push(format!("{} expelled", number(pid)));
                return true;
            }
        };
        self.events
            .push(format!("{} #{} {what}", number(pid), image.0));
        if matches!(change, ProgramChange::Mapped { .. }) && self.refusals > 0 {
            self.refusals -= 1;
            return false;
        }
        true
    }

    fn room_for_mappings(&mut self, _: ImageId, wanted: usize) -> usize {
        wanted
    }

    fn facts(&self, image: ImageId) -> Option<ProgramFacts> {
        Some(ProgramFacts {
            names: NameDiagnosis::Named,
            complaints: Vec::new(),
            samples: self.samples.get(&image).copied().unwrap_or_default(),
            rival: None,
        })
    }

    fn take_retired(&mut self, image: ImageId) -> Option<ProgramFacts> {
        let facts = self.facts(image);
        self.samples.remove(&image);
        facts
    }

    fn wait_until_taken(&mut self) {}
}

/// A registry of made-up processes, and what it emits.
pub(super) struct Scene {
    pub(super) host: Arc<MadeUpHost>,
    pub(super) registry: Registry,
    pub(super) written: Written,
}

impl Scene {
    /// Records these processes, which run already, with their children or without.
    pub(super) fn of(host: MadeUpHost, numbers: &[u32], trees: bool) -> Self {
        let pids = numbers.iter().map(|&number| pid(number)).collect();
        Self::selected(host, &Selector::Pids(pids), trees, PythonFrom::Auto)
    }

    /// Records what is selected.
    pub(super) fn selected(
        host: MadeUpHost,
        selector: &Selector,
        trees: bool,
        from: PythonFrom,
    ) -> Self {
        Self::selected_while(host, selector, trees, from, |_| ())
    }

    /// The same, while something happens between the selection and the first event.
    pub(super) fn selected_while(
        host: MadeUpHost,
        selector: &Selector,
        trees: bool,
        from: PythonFrom,
        meanwhile: impl FnOnce(&MadeUpHost),
    ) -> Self {
        let host = Arc::new(host);
        let shared: Arc<dyn Host> = Arc::<MadeUpHost>::clone(&host);
        let mut registry = Registry::select(shared, selector, trees, from).expect("selects");
        let mut written = Written::default();
        meanwhile(&host);
        registry.introduce(true, &|| true, &mut written);
        registry.begin_counting();
        Self {
            host,
            registry,
            written,
        }
    }

    /// Ends a window.
    pub(super) fn cut(&mut self) -> Summaries {
        let samples = std::mem::take(&mut self.written.window);
        self.registry.cut(&samples, &mut self.written)
    }

    /// Ends the last window.
    pub(super) fn finish(&mut self) -> Summaries {
        let samples = std::mem::take(&mut self.written.window);
        self.registry.finish(&samples, &mut self.written)
    }

    /// The events since the last call.
    pub(super) fn events(&mut self) -> Vec<String> {
        std::mem::take(&mut self.written.events)
    }

    /// Mappings are refused so often from now on.
    pub(super) fn refuse_mappings(&mut self, times: u32) {
        self.written.refusals = times;
    }

    fn event(&mut self, number: u32, change: ProcessChange) -> bool {
        let event = ProcessEvent {
            ktime: KtimeNs(0),
            boottime: self.host.since_boot(),
            pid: pid(number),
            change,
        };
        self.registry.process_event(&event, &mut self.written)
    }

    /// A process forks, and the kernel says so.
    pub(super) fn fork(&mut self, parent: u32, child: u32) {
        self.host.fork(parent, child);
        self.event(
            child,
            ProcessChange::Forked {
                parent: pid(parent),
                ns_pid: child,
            },
        );
    }

    /// A process calls `exec`, and the kernel says so.
    pub(super) fn exec(&mut self, number: u32, files: &[&'static str]) {
        self.host.exec(number, files);
        let stack = self.host.stack_of(pid(number));
        self.event(number, ProcessChange::Executed { stack });
    }

    /// A process exits after this CPU time, and the kernel says so.
    pub(super) fn exit(&mut self, number: u32, cpu_time: Duration) {
        self.host.exit(number);
        self.event(number, ProcessChange::Exited { cpu_time });
    }

    /// A sample of a process.
    pub(super) fn sample(&mut self, number: u32) -> Option<ImageId> {
        let image = self
            .registry
            .program_of_sample(pid(number), &mut self.written)?;
        *self.written.samples.entry(image).or_default() += 1;
        *self.written.window.entry(image).or_default() += 1;
        Some(image)
    }

    /// A sample of a program that comes late.
    pub(super) fn late_sample(&mut self, image: ImageId) {
        *self.written.samples.entry(image).or_default() += 1;
        *self.written.window.entry(image).or_default() += 1;
    }

    /// What is done in each tick.
    pub(super) fn catch_up(&mut self) {
        self.registry.catch_up(&mut self.written);
    }

    /// What is done twice a second.
    pub(super) fn revisit(&mut self) {
        self.registry.revisit(&mut self.written);
        self.registry.catch_up(&mut self.written);
    }
}
