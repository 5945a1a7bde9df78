//! An ELF file as the symbolizer sees it: symbols copied out of it, then parsed by the library.
//!
//! Input: the file. A panic of the library is no failure: its thread catches them, and the file goes without names.

use std::{
    cell::RefCell,
    panic,
    path::Path,
    sync::{Arc, Once},
    thread,
    time::Duration,
};

use super::input::file_of;
use crate::{
    model::{FileOffset, LocationId},
    process::{FileIdentity, MappedFile},
    symbols::{Module, ModuleKind, NativeOptions, NativeSymbolizer, Place, Request, THREAD_NAME},
};

/// Places in a file that are asked for.
const PLACES: u32 = 64;

thread_local! {
    static SYMBOLIZER: RefCell<NativeSymbolizer> = {
        tolerate_caught_panics();
        NativeSymbolizer::start(NativeOptions::default()).expect("a thread").into()
    };
}

/// Every place that is asked for gets an answer, with a frame in it.
pub fn symbols(data: &[u8]) {
    let file = file_of(data);
    let identity = FileIdentity::of(&file).expect("stat");
    let mapped = MappedFile {
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
    SYMBOLIZER.with_borrow(|symbolizer| {
        let refused = symbolizer.request(requests.collect());
        assert!(refused.is_empty(), "its queue is empty");
        let mut answered = 0;
        while answered < PLACES {
            for (_, location) in symbolizer.try_answers() {
                assert!(!location.frames.is_empty());
                answered += 1;
            }
            thread::sleep(Duration::from_micros(20));
        }
    });
}

/// libFuzzer's hook ends the process at any panic, caught or not.
fn tolerate_caught_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if thread::current().name() != Some(THREAD_NAME) {
                hook(info);
            }
        }));
    });
}
