//! An ELF file as the symbol process sees it: sections copied out of it, sent there, and parsed.
//!
//! Input: the file. That the process is lost over it is no failure: every place gets an answer all the same.

use std::{cell::RefCell, path::Path, sync::Arc, thread, time::Duration};

use super::input::file_of;
use crate::{
    model::{FileOffset, LocationId},
    process::{FileIdentity, MappedFile},
    symbols::{Module, ModuleKind, NativeOptions, NativeSymbolizer, Place, Request, SymbolProcess},
};

/// Places in a file that are asked for.
const PLACES: u32 = 64;

/// Files that one symbolizer sees: it keeps them open.
const FILES_MAX: u32 = 64;

thread_local! {
    static SYMBOLIZER: RefCell<Option<(NativeSymbolizer, u32)>> = const { RefCell::new(None) };
}

fn symbolizer() -> NativeSymbolizer {
    let options = NativeOptions::default();
    NativeSymbolizer::start(options, SymbolProcess::start()).expect("a thread")
}

/// Every place that is asked for gets an answer, with a frame in it.
pub fn symbols(data: &[u8]) {
    let file = file_of(data);
    let identity = FileIdentity::of(&file).expect("stat");
    let mapped = MappedFile {
        is_from_memory: false,
        file,
        identity,
        display_path: Path::new("/no/such/directory/libx.so").into(),
    };
    let module = Arc::new(Module::new(mapped, ModuleKind::Library));
    let step = data.len() as u64 / u64::from(PLACES) + 1;
    let requests = (0..PLACES).map(|number| Request {
        id: LocationId(number),
        place: Place::Module(Arc::clone(&module), FileOffset(u64::from(number) * step)),
    });
    SYMBOLIZER.with_borrow_mut(|known| {
        if known.as_ref().is_none_or(|(_, files)| *files >= FILES_MAX) {
            *known = None;
        }
        let (symbolizer, files) = known.get_or_insert_with(|| (symbolizer(), 0));
        *files += 1;
        let refused = symbolizer.request(requests.collect());
        assert!(refused.is_empty(), "its queue is empty");
        let mut answered = 0;
        while answered < PLACES {
            for (_, location) in symbolizer.try_answers() {
                assert!(!location.frames.is_empty());
                answered += 1;
            }
            assert!(!symbolizer.is_over(), "it waits for more");
            thread::sleep(Duration::from_micros(20));
        }
    });
}

/// This program as the symbol process, if it was called so: a fuzzer calls this before anything else.
pub fn be_symbol_process() {
    let word = std::env::args_os().nth(1).unwrap_or_default();
    if crate::symbols::worker::run_if_called(&word).is_some() {
        std::process::exit(0);
    }
}
