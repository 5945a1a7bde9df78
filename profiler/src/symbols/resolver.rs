//! Who is asked in which order, and what is remembered of the answers.
//!
//! | address lies in | asked | name comes |
//! |---|---|---|
//! | a mapped file, the vDSO | [`NativeSymbolizer`] | later, from its thread |
//! | memory of no file | the process's perf map | at once |
//! | the kernel | [`NativeSymbolizer`] | later |
//!
//! Gets [`UnwoundStack`]s, gives [`ResolvedStack`]s: addresses become [`LocationId`]s, whose frames are filled in when
//! their names arrive. Must not know how stacks were found or what becomes of them.

mod programs;

use std::{
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;
use rustix::process::{Resource, getrlimit};

use super::{
    CrossCheck, Module, ModuleKind, NameDiagnosis, NativeOptions, NativeSymbolizer, Place, Request,
    SymbolProcess,
    budgets::Budgets,
    locations::{LocationKey, Locations, late_kernel_frame, offset_frame, unknown_frame},
    module::c_library_directory,
    process::{ModuleIndex, Process},
    python_codes::{Lookup, PythonCodes},
};
use crate::{
    model::{
        Avma, CodeAddress, FileOffset, FrameKind, ImageId, LocationId, LocationTable, Pid,
        PythonFrame, ResolveMiss, ResolvedStack, UnwoundStack, UserFrame,
    },
    process::{
        FileIdentity, FileLimits, Mapping, MappingKind, OpenMappedError, ProcessMap, PythonInfo,
        file_name, interpreter::PatientReader, open_mapped, vdso_file,
    },
};

pub use programs::ProgramFacts;

/// Kernel addresses remembered; past it they are looked up again.
const CACHED_ADDRESSES_MAX: usize = 1 << 20;

/// Files kept open, if the limit on open files allows for twice as many. A process that has more mapped is a rarity or
/// an attack; code in the others is shown as `file+0xoffset`.
const MODULES_MAX: usize = 4096;

/// Files opened while samples wait; the rest of them a little later. One takes up to a tenth of a millisecond, and a process can
/// map thousands.
const OPENED_AT_ONCE: usize = 256;

/// New places wait for their names until there are so many of them, or for so long: waking the symbolizer's thread for
/// one address costs more than finding its name.
const BATCH: usize = 128;
const BATCH_EVERY: Duration = Duration::from_secs(2);

/// At the end, names are looked for at this interval.
const NAMES_STEP: Duration = Duration::from_millis(1);

/// Turns addresses into locations, and sees that these get names.
pub struct Resolver {
    native: NativeSymbolizer,
    processes: FxHashMap<ImageId, Process>,
    /// Of programs that were retired, until it is fetched.
    retired: FxHashMap<ImageId, ProgramFacts>,
    budgets: Budgets,
    vdso: Option<ModuleIndex>,
    modules: Vec<Arc<Module>>,
    module_ids: FxHashMap<FileIdentity, ModuleIndex>,
    kernel_cache: FxHashMap<Avma, LocationId>,
    locations: Locations,
    waiting: Vec<Request>,
    handed_over: Option<Instant>,
    modules_max: usize,
    cross_check: Option<CrossCheck>,
    reader: PatientReader,
    limits: FileLimits,
    /// A file could not be opened yet.
    is_any_pending: bool,
}

impl std::fmt::Debug for Resolver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Resolver")
            .field("modules", &self.modules.len())
            .finish_non_exhaustive()
    }
}

impl Resolver {
    /// Starts the symbolizer's thread; `process` is where symbols are parsed.
    pub fn start(process: SymbolProcess) -> std::io::Result<Self> {
        Ok(Self {
            native: NativeSymbolizer::start(NativeOptions::default(), process)?,
            processes: FxHashMap::default(),
            retired: FxHashMap::default(),
            budgets: Budgets::new(),
            vdso: None,
            modules: Vec::new(),
            module_ids: FxHashMap::default(),
            kernel_cache: FxHashMap::default(),
            locations: Locations::default(),
            waiting: Vec::new(),
            handed_over: None,
            modules_max: modules_max(),
            cross_check: None,
            reader: PatientReader::default(),
            limits: FileLimits::default(),
            is_any_pending: false,
        })
    }

    /// Finds out what frames are called whose stack is not whole yet: until it is, they may be gone.
    pub fn meet(&mut self, image: ImageId, frames: impl Iterator<Item = PythonFrame>) {
        if let Some(codes) = self
            .processes
            .get_mut(&image)
            .and_then(|it| it.codes.as_mut())
        {
            codes.meet(frames, &mut self.reader);
        }
    }

    /// From now on, all waits for memory of processes together take no longer than `total`: the recording is to end.
    pub const fn limit_waits(&mut self, total: Duration) {
        self.reader.limit_waits(total);
    }

    /// Compares the interpreter's frames with trampolines in each sample that has both.
    pub fn check_against_perf_maps(&mut self) {
        self.cross_check = Some(CrossCheck::default());
    }

    /// How they compared since this was asked last, if it was asked for.
    pub fn take_cross_check(&mut self) -> Option<CrossCheck> {
        self.cross_check.as_mut().map(std::mem::take)
    }

    /// How many of the `wanted` mappings of a program are to be followed: the memory for the mappings of all processes is
    /// bounded.
    pub fn room_for_mappings(&mut self, image: ImageId, wanted: usize) -> usize {
        let process = self.processes.get_mut(&image);
        process.map_or(wanted, |process| process.room_for_mappings(wanted))
    }

    /// Files are opened while they can be. False: see [`apply`](Self::apply).
    fn update(
        &mut self,
        image: ImageId,
        mappings: &[Mapping],
        python: &PythonInfo,
        map_handle: Option<&Path>,
    ) -> bool {
        let Some(mut process) = self.processes.remove(&image) else {
            return true;
        };
        process.python = python.clone();
        if let Some(handle) = map_handle {
            process.follow_handle(handle);
        }
        let mut modules = FxHashMap::default();
        let mut to_open = OPENED_AT_ONCE;
        let c_library = c_library_directory(mappings.iter().filter_map(Mapping::path));
        self.is_any_pending = false;
        for mapping in mappings {
            let same = process
                .mappings
                .find(mapping.begin)
                .is_some_and(|known| known.key() == mapping.key());
            let known = process
                .modules
                .get(&mapping.begin)
                .copied()
                .filter(|&module| same && self.has_right_kind(module, mapping, &process.python));
            let module = known.or_else(|| {
                to_open = to_open.checked_sub(mapping.is_of_file().into())?;
                self.open(process.pid, mapping, &process.python, c_library)
            });
            if let Some(module) = module {
                modules.insert(mapping.begin, module);
            }
        }
        process.modules = Arc::new(modules);
        process.mappings = Arc::new(ProcessMap::new(mappings.iter().cloned()));
        process.forget_addresses();
        self.processes.insert(image, process);
        to_open > 0 && !self.is_any_pending
    }

    /// Opens the file of a mapping, or finds it among those open already.
    fn open(
        &mut self,
        pid: Pid,
        mapping: &Mapping,
        python: &PythonInfo,
        c_library: Option<&Path>,
    ) -> Option<ModuleIndex> {
        let opened = match mapping.kind {
            MappingKind::File { .. } => {
                let opened = open_mapped(pid, mapping);
                self.is_any_pending |= matches!(opened, Err(OpenMappedError::NotYet { .. }));
                self.limits.note(pid, mapping, &opened);
                if mapping.is_changed_code() {
                    return None;
                }
                opened
                    .inspect_err(|error| {
                        tracing::debug!("no symbols for a mapping of pid {pid}: {error}");
                    })
                    .ok()?
            }
            // One for all processes: a copy has an identity of its own.
            MappingKind::Vdso if self.vdso.is_some() => return self.vdso,
            MappingKind::Vdso => vdso_file().ok()?,
            MappingKind::Anonymous | MappingKind::Special => return None,
        };
        if mapping.may_hold_jit_code() && !opened.is_elf() {
            return None;
        }
        if let Some(&index) = self.module_ids.get(&opened.identity)
            && self.has_right_kind(index, mapping, python)
        {
            return Some(index);
        }
        let kind = match mapping.path() {
            Some(path) if is_interpreter(path, python) => ModuleKind::Interpreter,
            Some(path) => ModuleKind::of_file(path, c_library),
            None => ModuleKind::Vdso,
        };
        if self.modules.len() >= self.modules_max {
            return None;
        }
        let index = self.modules.len() as ModuleIndex;
        self.module_ids.insert(opened.identity, index);
        if kind == ModuleKind::Vdso {
            self.vdso = Some(index);
        }
        self.modules.push(Arc::new(Module::new(opened, kind)));
        Some(index)
    }

    /// False: the file of a mapping was opened before it was known to be an interpreter.
    fn has_right_kind(&self, module: ModuleIndex, mapping: &Mapping, python: &PythonInfo) -> bool {
        let is_interpreter = mapping
            .path()
            .is_some_and(|path| is_interpreter(path, python));
        !is_interpreter || self.modules[module as usize].kind == ModuleKind::Interpreter
    }

    /// Reads what was added to perf maps: of all processes, or of those that have one of these pids in their own
    /// namespaces. Two system calls each when it is nothing. Returns true when more is to be read: it takes no longer than
    /// samples can wait.
    pub fn refresh_perf_maps(&mut self, of: Option<&[u32]>) -> bool {
        let mut more = false;
        for process in self.processes.values_mut() {
            if of.is_none_or(|pids| pids.contains(&process.map_ns_pid())) {
                more |= process.refresh_map();
            }
        }
        more
    }

    /// Reads all perf maps to their ends, for which no sample may have to wait: before and after a recording. Stops when
    /// `may_go_on` says so, which is asked before each piece.
    pub fn read_perf_maps(&mut self, mut may_go_on: impl FnMut() -> bool) {
        for process in self.processes.values_mut() {
            process.read_map_while(&mut may_go_on);
        }
    }

    /// Turns a stack's addresses into locations. `resolved` is a buffer that is used again and again.
    pub fn resolve(&mut self, stack: &UnwoundStack, resolved: &mut ResolvedStack) {
        let UnwoundStack {
            ktime,
            pid,
            image,
            tid,
            thread_name,
            in_kernel,
            guessed,
            end,
            ref user,
            ref trampolines,
            ref kernel,
        } = *stack;
        self.locations.set_owner(pid);
        resolved.ktime = ktime;
        resolved.pid = pid;
        resolved.image = image;
        resolved.tid = tid;
        resolved.thread_name = thread_name;
        resolved.in_kernel = in_kernel;
        resolved.guessed = guessed;
        resolved.end = end;
        resolved.locations.clear();
        for &address in kernel {
            let id = self.kernel_location(address.lookup());
            resolved.locations.push(id);
        }
        let Some(mut process) = self.processes.remove(&image) else {
            let unknown = self
                .locations
                .intern_frame(unknown_frame(ResolveMiss::NoMapping));
            resolved.locations.extend(user.iter().map(|_| unknown));
            return;
        };
        process.begin_sample(ktime);
        let (kernel_frames, map_version) = (resolved.locations.len(), process.map_version());
        let common = process.recent.in_common(user);
        let (inner, known) = user.split_at(user.len() - common);
        if let Some(codes) = &mut process.codes {
            let python = inner.iter().filter_map(|frame| match frame {
                UserFrame::Python(frame) => Some(*frame),
                UserFrame::Native(_) => None,
            });
            codes.meet(python, &mut self.reader);
        }
        for &frame in inner {
            let id = self.user_location(&mut process, frame);
            resolved.locations.push(id);
        }
        // These look-ups may have read more of the perf map, and so forgotten the stack before.
        let locations = &mut resolved.locations;
        if !process.recent.append_outermost(common, locations) {
            for &frame in known {
                locations.push(self.user_location(&mut process, frame));
            }
        }
        let (ids, traits) = (&resolved.locations[kernel_frames..], &self.locations);
        let recent = &mut process.recent;
        recent.replace(common, user, ids, |id| traits.traits(id));
        process.counts.add(recent.seen());
        if let Some(check) = &mut self.cross_check {
            let python = ids.iter().filter(|&&id| traits.traits(id).is_python);
            let frames = python.flat_map(|&id| traits.table().frames(id));
            let names = trampolines
                .iter()
                .map(|address| process.name_of(address.lookup()));
            check.compare(frames, &names.collect::<Vec<_>>());
        }
        resolved
            .locations
            .retain(|&id| !self.locations.traits(id).is_hidden);
        if process.map_version() != map_version {
            // The first of these look-ups may be out of date.
            process.recent.clear();
        }
        self.processes.insert(image, process);
    }

    fn kernel_location(&mut self, at: Avma) -> LocationId {
        if let Some(&id) = self.kernel_cache.get(&at) {
            return id;
        }
        let (id, is_new) = self
            .locations
            .intern(LocationKey::Kernel(at), FrameKind::Kernel);
        if is_new {
            self.waiting.push(Request {
                id,
                place: Place::Kernel(at.0),
            });
        }
        if self.kernel_cache.len() < CACHED_ADDRESSES_MAX {
            self.kernel_cache.insert(at, id);
        }
        id
    }

    fn user_location(&mut self, process: &mut Process, frame: UserFrame) -> LocationId {
        match frame {
            UserFrame::Native(address) => self.code_location(process, address),
            UserFrame::Python(frame) => self.python_location(process, frame),
        }
    }

    fn python_location(&mut self, process: &mut Process, frame: PythonFrame) -> LocationId {
        let Some(codes) = &mut process.codes else {
            // Read for a program that this one has replaced.
            return self
                .locations
                .intern_frame(unknown_frame(ResolveMiss::NoMapping));
        };
        match codes.look_up(frame) {
            Lookup::Location(id) => id,
            Lookup::Later => codes.waiting_location(frame).unwrap_or_else(|| {
                let id = self.locations.unnamed_python();
                codes.wait_for_name(frame, id);
                id
            }),
            Lookup::Frame(shown) => {
                let (line, is_named) = (shown.line, shown.miss.is_none());
                let id = self.locations.intern_frame(shown);
                if is_named {
                    codes.remember(frame, line, id);
                }
                id
            }
        }
    }

    fn code_location(&mut self, process: &mut Process, address: CodeAddress) -> LocationId {
        let at = address.lookup();
        if let Some(id) = process.remembered(at) {
            return id;
        }
        let mut named = true;
        let mapping = process.mappings.find(at);
        let id =
            match mapping.map(|mapping| (mapping, process.modules.get(&mapping.begin).copied())) {
                Some((mapping, Some(module))) if mapping.file_offset_of(at).is_some() => {
                    let offset = mapping.file_offset_of(at).unwrap_or_default();
                    self.native_location(module, offset)
                }
                Some((mapping, _)) if !mapping.may_hold_jit_code() => {
                    let name = mapping
                        .path()
                        .map_or_else(|| "[special]".to_owned(), file_name);
                    let offset = mapping.file_offset_of(at).unwrap_or_default();
                    let miss = ResolveMiss::FileUnreadable;
                    let frame = offset_frame(FrameKind::Native, &name, offset.0, miss);
                    self.locations.intern_frame(frame)
                }
                in_mapping => {
                    let miss = match in_mapping {
                        Some(_) if process.may_have_trampolines() => ResolveMiss::NotInPerfMap,
                        Some(_) => ResolveMiss::ForeignJit,
                        None => ResolveMiss::NoMapping,
                    };
                    let frame = process.name_of(at);
                    named = frame.is_some();
                    self.locations
                        .intern_frame(frame.unwrap_or_else(|| unknown_frame(miss)))
                }
            };
        process.remember(at, id, named);
        id
    }

    fn native_location(&mut self, module: ModuleIndex, offset: FileOffset) -> LocationId {
        let file = &self.modules[module as usize];
        let (id, is_new) = self
            .locations
            .intern(LocationKey::Module(module, offset), file.frame_kind());
        if is_new {
            self.waiting.push(Request {
                id,
                place: Place::Module(Arc::clone(file), offset),
            });
        }
        id
    }

    /// Takes the names that are ready, and hands new locations to the symbolizer: the first ones at once, so that it
    /// reads its files early, then in batches. Never waits.
    pub fn pump(&mut self) {
        for process in self.processes.values_mut() {
            process.name_late_code(&mut self.locations, &mut self.reader, None);
        }
        for (id, location) in self.native.try_answers() {
            self.locations.name(id, location);
        }
        let is_due = self
            .handed_over
            .is_none_or(|before| before.elapsed() >= BATCH_EVERY);
        if is_due || self.waiting.len() >= BATCH {
            self.hand_over();
        }
    }

    fn hand_over(&mut self) {
        if !self.waiting.is_empty() {
            self.waiting = self.native.request(std::mem::take(&mut self.waiting));
            self.handed_over = Some(Instant::now());
        }
    }

    /// The locations so far; those that have no name yet are empty.
    pub const fn locations(&self) -> &LocationTable {
        self.locations.table()
    }

    /// Mapped files that could not be used as they are.
    pub const fn file_limits(&self) -> &FileLimits {
        &self.limits
    }

    /// Asks for all names that are missing, at once, and gives those of these locations that have none yet. Names that have
    /// come are taken by [`pump`](Self::pump).
    pub fn ask_for(&mut self, ids: &[LocationId]) -> Vec<LocationId> {
        self.hand_over();
        self.locations.unnamed_of(ids).collect()
    }

    /// The names of these locations, in this order. Those that are not known yet are counted as not found in time.
    pub fn names_of(&mut self, ids: &[LocationId]) -> LocationTable {
        self.table_of(ids, false)
    }

    /// Symbol processes that were lost so far.
    pub fn symbol_processes_lost(&self) -> u64 {
        self.native.losses()
    }

    /// The same for the last time, after waiting for the names that are missing, at most `timeout`. No more names are known
    /// afterwards.
    pub fn last_names_of(&mut self, ids: &[LocationId], timeout: Duration) -> LocationTable {
        let until = Instant::now() + timeout;
        self.native.hurry(until);
        let mut missing = ids.to_vec();
        loop {
            // Its last answers may come between the two.
            let is_over = self.native.is_over();
            self.pump();
            missing = self.ask_for(&missing);
            // What is missing of Python functions was in programs that have ended, and will not come.
            missing.retain(|&id| !self.locations.traits(id).is_python);
            if missing.is_empty() || is_over || Instant::now() >= until {
                return self.table_of(ids, true);
            }
            std::thread::sleep(NAMES_STEP);
        }
    }

    fn table_of(&mut self, ids: &[LocationId], last: bool) -> LocationTable {
        let modules = &self.modules;
        self.locations.table_of(ids, last, |key| match key {
            LocationKey::Module(module, offset) => {
                let module = &modules[module as usize];
                let kind = module.frame_kind();
                offset_frame(kind, &module.name, offset.0, ResolveMiss::NotInTime)
            }
            LocationKey::Kernel(at) => late_kernel_frame(at),
        })
    }
}

/// Leaves half of the files that may be open to everything else.
fn modules_max() -> usize {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    MODULES_MAX.min(usize::try_from(files / 2).unwrap_or(MODULES_MAX))
}

fn is_interpreter(path: &Path, python: &PythonInfo) -> bool {
    python
        .interpreter_files
        .iter()
        .any(|file| Path::new(file) == path)
}

#[cfg(test)]
#[path = "resolver_tests.rs"]
mod tests;
