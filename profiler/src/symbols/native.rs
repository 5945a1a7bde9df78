//! From an offset in a file to the functions there: what is asked of the symbol process, in which order, and how often.
//!
//! Files that cost little go first, and names before debug information, so that no file keeps the names of another one
//! waiting. A file over which the process was lost is not tried again: first without its debug information, then not at
//! all. What others had asked for is asked again.

use std::{
    collections::HashMap,
    fs::File,
    sync::Arc,
    time::{Duration, Instant},
};

use crate::{
    model::{FileOffset, Frame, Location, LocationId, ResolveMiss},
    process::{CopyOf, ElfFile, FileIdentity, thread_time},
};

use super::{
    KernelSymbols, Module,
    locations::offset_frame,
    native_thread::{NativeOptions, Place, Request},
    symbol_file::{SymbolFile, separate_file},
    worker::{
        Answer, Connection, Failure, Found, FoundPlace, Image, PLACES_MAX, Part, SymbolProcess,
    },
};

/// Bytes of symbols and debug information that the process keeps; past it, it begins anew.
const KEPT_BYTES_MAX: u64 = 96 << 20;

/// Files with less go before those that were not looked at yet, which takes time, too.
const UNKNOWN_BYTES: u64 = 16 << 20;

/// CPU time for names: for each request, and for each MiB of symbols.
const NAMES_TIME: Duration = Duration::from_millis(250);
const NAMES_TIME_MIB: Duration = Duration::from_millis(10);

/// The same with debug information.
const DEBUG_TIME: Duration = Duration::from_millis(400);
const DEBUG_TIME_MIB: Duration = Duration::from_millis(50);

/// After the process was lost so often, debug information is not read any more: many files do that, and each costs time.
const LOSSES_MAX: u64 = 32;

/// CPU time, ours and the process's, for names that are missing when the recording ends.
const LAST_TIME: Duration = Duration::from_millis(700);

/// Before the last moment that answers are waited for, what is there is given.
const LAST_MOMENT: Duration = Duration::from_millis(200);

/// An address without a function: no program has code there. The library adds to addresses, so it is not the last one.
const NOWHERE: u64 = 1 << 63;

type PlaceInFile = (LocationId, FileOffset);
type Named = (LocationId, Location);

/// What is waiting, and the process that is asked.
pub(super) struct Worker {
    process: Connection,
    numbers: HashMap<FileIdentity, usize>,
    files: Vec<FileState>,
    /// Files with places that wait.
    busy: Vec<usize>,
    /// Places that wait.
    waiting: usize,
    debug_bytes_left: u64,
    kernel: Kernel,
    end: Option<End>,
}

struct FileState {
    module: Arc<Module>,
    /// `None`: it was not looked at yet, or there is nothing to be read.
    symbols: Option<SymbolFile>,
    use_of: Use,
    /// The process was lost over it through no fault of its own, perhaps. That is believed once.
    was_asked_again: bool,
    /// Places without a name.
    unnamed: Vec<PlaceInFile>,
    /// Places with a name that debug information may still say more about.
    named: Vec<(PlaceInFile, Location)>,
}

/// How much of a file is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Use {
    /// It is not known yet how much there is.
    Unknown,
    Everything,
    Symbols,
    Nothing(ResolveMiss),
}

/// When to stop.
struct End {
    until: Instant,
    work_until: Duration,
}

enum Kernel {
    Unread(Option<File>),
    Read(KernelSymbols),
}

impl Worker {
    pub(super) fn new(
        options: NativeOptions,
        kallsyms: Option<File>,
        process: SymbolProcess,
    ) -> Self {
        Self {
            process: Connection::new(process),
            numbers: HashMap::new(),
            files: Vec::new(),
            busy: Vec::new(),
            waiting: 0,
            debug_bytes_left: options.debug_bytes_max,
            kernel: Kernel::Unread(kallsyms),
            end: None,
        }
    }

    /// Places that wait.
    pub(super) const fn waiting(&self) -> usize {
        self.waiting
    }

    /// Symbol processes that were lost.
    pub(super) const fn losses(&self) -> u64 {
        self.process.stopped()
    }

    /// Takes requests; gives the answers that need no symbol process.
    pub(super) fn take(&mut self, batch: Vec<Request>) -> Vec<Named> {
        let mut answers = Vec::new();
        for Request { id, place } in batch {
            match place {
                Place::Kernel(address) => answers.push((id, self.kernel.symbols().locate(address))),
                Place::Module(module, at) => {
                    let file = self.number_of(module);
                    let state = &mut self.files[file];
                    if state.unnamed.is_empty() && state.named.is_empty() {
                        self.busy.push(file);
                    }
                    state.unnamed.push((id, at));
                    self.waiting += 1;
                }
            }
        }
        answers
    }

    /// The recording has ended: only so much more time is spent.
    pub(super) fn hurry(&mut self, until: Instant) {
        if self.end.is_none() {
            self.end = Some(End {
                until: until.checked_sub(LAST_MOMENT).unwrap_or(until),
                work_until: self.work() + LAST_TIME,
            });
        }
    }

    /// No more is to be asked.
    pub(super) fn is_over(&self) -> bool {
        let end = self.end.as_ref();
        end.is_some_and(|end| Instant::now() >= end.until || self.work() >= end.work_until)
    }

    /// Answers to all that wait, as far as is known by now.
    pub(super) fn give_up(&mut self) -> Vec<Named> {
        let mut answers = Vec::new();
        for file in std::mem::take(&mut self.busy) {
            let state = &mut self.files[file];
            answers.extend(state.named.drain(..).map(|((id, _), known)| (id, known)));
            let unnamed = std::mem::take(&mut state.unnamed);
            answers.extend(state.misses(&unnamed, ResolveMiss::NotInTime));
        }
        self.waiting = 0;
        answers
    }

    /// Does a piece of work for the file that costs least: looks at it, or asks for some of its places. Gives the answers.
    pub(super) fn step(&mut self) -> Vec<Named> {
        let next = self.busy.iter().enumerate().min_by_key(|&(_, &file)| {
            let state = &self.files[file];
            (state.unnamed.is_empty(), state.cost())
        });
        let Some((at, &file)) = next else {
            return Vec::new();
        };
        if self.files[file].use_of == Use::Unknown {
            self.look_at(file);
            return Vec::new();
        }
        let answers = if self.files[file].unnamed.is_empty() {
            self.add_debug_info(file)
        } else {
            self.name(file)
        };
        let state = &self.files[file];
        if state.unnamed.is_empty() && state.named.is_empty() {
            self.busy.remove(at);
        }
        self.waiting = self.waiting.saturating_sub(answers.len());
        answers
    }

    fn number_of(&mut self, module: Arc<Module>) -> usize {
        if let Some(&known) = self.numbers.get(&module.identity) {
            return known;
        }
        let number = self.files.len();
        self.numbers.insert(module.identity, number);
        self.files.push(FileState {
            module,
            symbols: None,
            use_of: Use::Unknown,
            was_asked_again: false,
            unnamed: Vec::new(),
            named: Vec::new(),
        });
        number
    }

    /// Finds out how much there is to be read.
    fn look_at(&mut self, file: usize) {
        let state = &mut self.files[file];
        let symbols = SymbolFile::of(&state.module, self.debug_bytes_left);
        state.use_of = match &symbols {
            Ok(symbols) if symbols.debug_bytes > 0 => Use::Everything,
            Ok(_) => Use::Symbols,
            Err(error) if error.kind() == std::io::ErrorKind::FileTooLarge => {
                Use::Nothing(ResolveMiss::SymbolsTooCostly)
            }
            Err(_) => Use::Nothing(ResolveMiss::FileUnreadable),
        };
        state.symbols = symbols.ok();
        let debug_bytes = state.symbols.as_ref().map_or(0, |it| it.debug_bytes);
        self.debug_bytes_left = self.debug_bytes_left.saturating_sub(debug_bytes);
    }

    /// Names of functions, from symbol tables alone.
    fn name(&mut self, file: usize) -> Vec<Named> {
        let state = &mut self.files[file];
        let from = state.unnamed.len().saturating_sub(PLACES_MAX);
        let places = state.unnamed.split_off(from);
        if let Use::Nothing(miss) = state.use_of {
            return state.misses(&places, miss);
        }
        match self.ask(file, &places, false) {
            Ok(found) => {
                let state = &mut self.files[file];
                let located = places.into_iter().zip(found).map(|(place, found)| {
                    let start = found.start;
                    let location = state.location(found.frames).unwrap_or_else(|| match start {
                        Some(start) => state.unnamed_function(start),
                        None => state.unnamed_place(place.1, ResolveMiss::NoSymbol),
                    });
                    (place, location)
                });
                let located: Vec<_> = located.collect();
                if state.use_of == Use::Everything {
                    state.named.extend(located);
                    return Vec::new();
                }
                located.into_iter().map(|((id, _), it)| (id, it)).collect()
            }
            Err(Lost::Again) => {
                self.files[file].unnamed.extend(places);
                Vec::new()
            }
            Err(Lost::Miss(miss)) => {
                let state = &mut self.files[file];
                if miss != ResolveMiss::NotInTime {
                    state.use_of = Use::Nothing(miss);
                }
                state.misses(&places, miss)
            }
        }
    }

    /// Inlined calls, files and lines, of places that have their names.
    fn add_debug_info(&mut self, file: usize) -> Vec<Named> {
        let too_many = self.process.stopped() >= LOSSES_MAX;
        let state = &mut self.files[file];
        let from = state.named.len().saturating_sub(PLACES_MAX);
        let named = state.named.split_off(from);
        let as_known = |named: Vec<(PlaceInFile, Location)>| {
            named.into_iter().map(|((id, _), it)| (id, it)).collect()
        };
        if state.use_of != Use::Everything || too_many {
            return as_known(named);
        }
        let places: Vec<_> = named.iter().map(|(place, _)| *place).collect();
        match self.ask(file, &places, true) {
            Ok(found) => {
                let state = &self.files[file];
                let better = named
                    .into_iter()
                    .zip(found)
                    .map(|(((id, _), known), found)| {
                        (id, state.location(found.frames).unwrap_or(known))
                    });
                better.collect()
            }
            Err(Lost::Again) => {
                self.files[file].named.extend(named);
                Vec::new()
            }
            Err(Lost::Miss(miss)) => {
                if miss != ResolveMiss::NotInTime {
                    self.files[file].use_of = Use::Symbols;
                }
                as_known(named)
            }
        }
    }

    /// Asks the process for places in a file, of which it gets what it needs and does not have.
    fn ask(
        &mut self,
        file: usize,
        places: &[PlaceInFile],
        with_debug_info: bool,
    ) -> Result<Vec<FoundPlace>, Lost> {
        let state = &self.files[file];
        let unreadable = Lost::Miss(ResolveMiss::FileUnreadable);
        let Some(symbols) = &state.symbols else {
            return Err(unreadable);
        };
        // An offset that is not loaded cannot be code: looked up where no function is.
        let addresses: Vec<u64> = places
            .iter()
            .map(|&(_, at)| symbols.svma_of(at).map_or(NOWHERE, |at| at.0.min(NOWHERE)))
            .collect();
        let cost = symbols.symbol_bytes
            + if with_debug_info {
                symbols.debug_bytes
            } else {
                0
            };
        let number = file as u32;
        let (own, debug) = (
            self.process.has(number, Part::Own),
            !with_debug_info || self.process.has(number, Part::DebugInfo),
        );
        if !(own && debug) && self.process.bytes() > 0 {
            let is_too_much = self.process.bytes().saturating_add(cost) > KEPT_BYTES_MAX;
            if is_too_much {
                self.process.start_over();
            }
        }
        let mib = u32::try_from(cost >> 20).unwrap_or(u32::MAX);
        let (base, each) = if with_debug_info {
            (DEBUG_TIME, DEBUG_TIME_MIB)
        } else {
            (NAMES_TIME, NAMES_TIME_MIB)
        };
        let full = base + each * mib;
        let left = self
            .end
            .as_ref()
            .map_or(full, |end| end.work_until.saturating_sub(self.work()));
        if state.was_asked_again && self.process.has_others(number) {
            self.process.start_over();
        }
        let may_be_others = !state.was_asked_again && self.process.has_others(number);

        let elf = ElfFile::parse(&state.module.file).map_err(|_| unreadable)?;
        let separate = separate_file(&elf);
        let separate = separate.as_ref().and_then(|file| ElfFile::parse(file).ok());
        let debug = separate.as_ref().unwrap_or(&elf);
        let mut copies = vec![(Part::Own, elf.copy_of(CopyOf::Symbols))];
        copies.extend(
            separate
                .as_ref()
                .map(|it| (Part::Separate, it.copy_of(CopyOf::Symbols))),
        );
        if with_debug_info {
            copies.push((Part::DebugInfo, debug.copy_of(CopyOf::DebugInfo)));
        }
        let images: Vec<Image<'_, '_>> = copies
            .iter()
            .filter_map(|(part, copy)| Some((*part, copy.as_ref().ok()?)))
            .map(|(part, copy)| Image { part, copy })
            .collect();
        let asked = self
            .process
            .find(number, &images, with_debug_info, &addresses, full.min(left));
        match asked {
            Ok(Answer::Found(found)) => Ok(found),
            Err(Failure::NoProcess) => Err(Lost::Miss(ResolveMiss::NoSymbolProcess)),
            Err(Failure::TooLong) if left < full => Err(Lost::Miss(ResolveMiss::NotInTime)),
            Err(failure) if failure.is_of_memory() && may_be_others => {
                self.files[file].was_asked_again = true;
                Err(Lost::Again)
            }
            Ok(Answer::Unusable) | Err(_) => Err(Lost::Miss(ResolveMiss::SymbolsTooCostly)),
        }
    }

    /// CPU time so far, of this thread and of the symbol processes.
    fn work(&self) -> Duration {
        thread_time() + self.process.cpu_time()
    }
}

/// Why there is no answer for some places.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// Through no fault of the file: it is to be asked again.
    Again,
    /// What is said of the places, and of the file's others.
    Miss(ResolveMiss),
}

impl FileState {
    /// Bytes that must be parsed for the next answer.
    fn cost(&self) -> u64 {
        match (&self.symbols, self.use_of) {
            (_, Use::Unknown) => UNKNOWN_BYTES,
            (None, _) | (_, Use::Nothing(_)) => 0,
            (Some(symbols), _) if self.unnamed.is_empty() => symbols.debug_bytes,
            (Some(symbols), _) => symbols.symbol_bytes,
        }
    }

    /// Frames with all that is known of them; `None`: there are none.
    fn location(&self, frames: Vec<Found>) -> Option<Location> {
        let frames = frames.into_iter().map(|Found { name, file, line }| Frame {
            kind: self.module.frame_kind_of(&name),
            name: name.into(),
            file: file.map(Into::into),
            line,
            first_line: None,
            module: Some(self.module.name.clone()),
            miss: None,
        });
        let frames: Vec<Frame> = frames.collect();
        (!frames.is_empty()).then_some(Location { frames })
    }

    fn misses(&self, places: &[PlaceInFile], miss: ResolveMiss) -> Vec<Named> {
        let misses = places
            .iter()
            .map(|&(id, at)| (id, self.unnamed_place(at, miss)));
        misses.collect()
    }

    /// `module+0xaddress`, by the file's own address where it has one: what `addr2line` and `objdump` take.
    fn unnamed_place(&self, at: FileOffset, miss: ResolveMiss) -> Location {
        let svma = self.symbols.as_ref().and_then(|it| it.svma_of(at));
        self.offset(svma.map_or(at.0, |svma| svma.0), miss)
    }

    /// The same for all addresses of a function whose beginning is known, but not its name.
    fn unnamed_function(&self, start: u64) -> Location {
        self.offset(start, ResolveMiss::NoSymbol)
    }

    fn offset(&self, at: u64, miss: ResolveMiss) -> Location {
        let module = &self.module;
        Location {
            frames: vec![offset_frame(module.frame_kind(), &module.name, at, miss)],
        }
    }
}

impl Kernel {
    fn symbols(&mut self) -> &KernelSymbols {
        if let Self::Unread(kallsyms) = self {
            let symbols = kallsyms
                .take()
                .and_then(|file| KernelSymbols::read(&file).ok());
            *self = Self::Read(symbols.unwrap_or_default());
        }
        match self {
            Self::Read(symbols) => symbols,
            Self::Unread(_) => unreachable!("it was read just now"),
        }
    }
}
