//! From an offset in a file to the functions there. The only file that knows the symbolizer library (blazesym).
//!
//! Its symbolizer cannot move between threads and never forgets by itself: it lives on the thread of
//! [`super::native_thread`] and is emptied here. What it parses is a copy of a module's symbol tables
//! ([`super::symbol_file`]), not the module.

use std::{
    collections::HashMap,
    fs::File,
    panic::{AssertUnwindSafe, catch_unwind},
    path::PathBuf,
    sync::Arc,
};

use blazesym::symbolize::{
    CodeInfo, Input, Sym, Symbolized, Symbolizer,
    evict::{self, Evict},
    source::{self, Source},
};

use crate::{
    model::{FileOffset, Frame, Location, LocationId, ResolveMiss},
    process::FileIdentity,
};

use super::{
    KernelSymbols, Module,
    locations::offset_frame,
    native_thread::{NativeOptions, Place, Request},
    symbol_file::SymbolFile,
};

/// Modules whose symbols are kept at a time. Each has two open files.
const MODULES_MAX: usize = 128;

/// Bytes of symbols that are kept at a time, one module's more at most. Only what is looked at is resident memory.
const SYMBOL_BYTES_MAX: u64 = 96 << 20;

/// Frames of one place: a function, and calls inlined into it. Compilers stop far below; a hostile file need not.
const FRAMES_MAX: usize = 64;

/// Longest name or path that is kept, in bytes. C++ templates reach some thousand; a symbol table may claim anything.
const NAME_BYTES_MAX: usize = 16 << 10;

/// An address without a function: no program has code there. The library adds to addresses, so it is not the last one.
const NOWHERE: u64 = 1 << 63;

type PlaceInFile = (LocationId, FileOffset);

/// The symbolizer with everything that it has loaded.
pub(super) struct Worker {
    symbolizer: Symbolizer,
    modules: HashMap<FileIdentity, Loaded>,
    debug_bytes_left: u64,
    kernel: Kernel,
    /// Counts lookups in modules: which one was used last.
    now: u64,
}

struct Loaded {
    /// `None`: cannot be symbolized. Kept, so that it is not tried again and again.
    symbols: Option<SymbolFile>,
    used: u64,
}

enum Kernel {
    Unread(Option<File>),
    Read(KernelSymbols),
}

impl Worker {
    pub(super) fn new(options: NativeOptions, kallsyms: Option<File>) -> Self {
        Self {
            symbolizer: symbolizer(),
            modules: HashMap::new(),
            debug_bytes_left: options.debug_bytes_max,
            kernel: Kernel::Unread(kallsyms),
            now: 0,
        }
    }

    /// One answer for each request.
    pub(super) fn answer(&mut self, batch: Vec<Request>) -> Vec<(LocationId, Location)> {
        let mut answers = Vec::with_capacity(batch.len());
        let mut by_module: HashMap<FileIdentity, (Arc<Module>, Vec<PlaceInFile>)> = HashMap::new();
        for Request { id, place } in batch {
            match place {
                Place::Kernel(address) => answers.push((id, self.kernel.symbols().locate(address))),
                Place::Module(module, at) => {
                    let places = by_module
                        .entry(module.identity)
                        .or_insert_with(|| (module, Vec::new()));
                    places.1.push((id, at));
                }
            }
        }
        for (module, places) in by_module.into_values() {
            self.answer_module(&module, &places, &mut answers);
        }
        answers
    }

    fn answer_module(
        &mut self,
        module: &Module,
        places: &[PlaceInFile],
        answers: &mut Vec<(LocationId, Location)>,
    ) {
        self.load(module);
        let miss = |(id, at): PlaceInFile| (id, unnamed(module, at.0, ResolveMiss::FileUnreadable));
        let Some(symbols) = self
            .modules
            .get(&module.identity)
            .and_then(|loaded| loaded.symbols.as_ref())
        else {
            answers.extend(places.iter().copied().map(miss));
            return;
        };
        // An offset that is not loaded cannot be code: looked up where no function is.
        let addresses: Vec<u64> = places
            .iter()
            .map(|&(_, at)| {
                symbols
                    .svma_of(at)
                    .map_or(NOWHERE, |svma| svma.0.min(NOWHERE))
            })
            .collect();
        let mut elf = source::Elf::new(symbols.path());
        elf.debug_syms = symbols.debug_bytes > 0;
        let source = Source::Elf(elf);

        // The file is hostile. A panic leaves a symbolizer that cannot be trusted, and a module that is not tried again.
        let found = catch_unwind(AssertUnwindSafe(|| {
            let found = self
                .symbolizer
                .symbolize(&source, Input::VirtOffset(&addresses))
                .ok()?;
            Some(
                found
                    .iter()
                    .map(|symbolized| named(module, symbolized))
                    .collect::<Vec<_>>(),
            )
        }));
        match found {
            Ok(Some(found)) if found.len() == places.len() => {
                for ((&(id, at), &address), location) in places.iter().zip(&addresses).zip(found) {
                    let shown = if address == NOWHERE { at.0 } else { address };
                    answers.push((
                        id,
                        location.unwrap_or_else(|| unnamed(module, shown, ResolveMiss::NoSymbol)),
                    ));
                }
            }
            Ok(_) => answers.extend(places.iter().copied().map(miss)),
            Err(_panic) => {
                answers.extend(places.iter().copied().map(miss));
                self.start_over(module.identity);
            }
        }
    }

    /// Makes the symbols of a module ready, if they can be, and forgets those not used for longest.
    fn load(&mut self, module: &Module) {
        self.now += 1;
        let now = self.now;
        if let Some(loaded) = self.modules.get_mut(&module.identity) {
            loaded.used = now;
            return;
        }
        while self.modules.len() >= MODULES_MAX || self.symbol_bytes() > SYMBOL_BYTES_MAX {
            self.evict_oldest();
        }
        let symbols = SymbolFile::of(module, self.debug_bytes_left).ok();
        let debug_bytes = symbols.as_ref().map_or(0, |symbols| symbols.debug_bytes);
        self.debug_bytes_left = self.debug_bytes_left.saturating_sub(debug_bytes);
        self.modules
            .insert(module.identity, Loaded { symbols, used: now });
    }

    fn symbol_bytes(&self) -> u64 {
        self.modules
            .values()
            .filter_map(|loaded| loaded.symbols.as_ref())
            .map(|symbols| symbols.bytes)
            .sum()
    }

    fn evict_oldest(&mut self) {
        let oldest = self
            .modules
            .iter()
            .min_by_key(|(_, loaded)| loaded.used)
            .map(|(&identity, _)| identity);
        let Some(symbols) = oldest
            .and_then(|identity| self.modules.remove(&identity))
            .and_then(|l| l.symbols)
        else {
            return;
        };
        self.debug_bytes_left = self.debug_bytes_left.saturating_add(symbols.debug_bytes);
        // Before the copy is closed: its path would lead to another file then.
        let _best_effort = self
            .symbolizer
            .evict(&Evict::Elf(evict::Elf::new(symbols.path())));
    }

    /// After a panic: a new symbolizer, and nothing more of that module.
    fn start_over(&mut self, culprit: FileIdentity) {
        // Left behind, it would keep the copies of all modules in memory, once for each file that does this. Its
        // destructor may trip over the same state.
        let broken = std::mem::replace(&mut self.symbolizer, symbolizer());
        let _ = catch_unwind(AssertUnwindSafe(move || drop(broken)));
        if let Some(loaded) = self.modules.get_mut(&culprit) {
            loaded.symbols = None;
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

/// Files are copies that never change, and have no links to others.
fn symbolizer() -> Symbolizer {
    let no_directories: Option<[PathBuf; 0]> = Some([]);
    Symbolizer::builder()
        .enable_demangling(true)
        .enable_inlined_fns(true)
        .enable_code_info(true)
        .set_debug_dirs(no_directories)
        .build()
}

fn named(module: &Module, symbolized: &Symbolized<'_>) -> Option<Location> {
    let Symbolized::Sym(Sym {
        name,
        code_info,
        inlined,
        ..
    }) = symbolized
    else {
        return None;
    };
    let frame = |name: &str, code: Option<&CodeInfo<'_>>| Frame {
        kind: module.frame_kind(),
        name: clipped(name).into(),
        file: code.map(|code| clipped(&code.to_path().to_string_lossy()).into()),
        line: code.and_then(|code| code.line),
        first_line: None,
        module: Some(module.name.clone()),
        miss: None,
    };
    // Calls are given as they nest: the innermost comes last.
    let calls = inlined
        .iter()
        .rev()
        .take(FRAMES_MAX)
        .map(|call| frame(&call.name, call.code_info.as_ref()));
    let mut frames: Vec<Frame> = calls.collect();
    frames.push(frame(name, code_info.as_deref()));
    Some(Location { frames })
}

/// The beginning of a name, if it is too long.
fn clipped(name: &str) -> &str {
    &name[..name.floor_char_boundary(NAME_BYTES_MAX)]
}

/// `module+0xaddress`, by the file's own address where it has one: what `addr2line` and `objdump` take.
fn unnamed(module: &Module, at: u64, miss: ResolveMiss) -> Location {
    Location {
        frames: vec![offset_frame(module.frame_kind(), &module.name, at, miss)],
    }
}
