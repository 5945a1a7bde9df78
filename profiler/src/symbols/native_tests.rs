use std::{fs, path::Path, process::Command, time::Duration};

use super::*;
use crate::{
    model::{FrameKind, Pid, ResolveMiss},
    process::{
        ElfFile, FileIdentity, MappedFile, Mapping, SymbolTable,
        elf_testing::{TestSection, elf_of, symbol},
        file_name, open_mapped, read_executable_mappings,
    },
    symbols::ModuleKind,
};

fn module(path: &Path, kind: ModuleKind) -> Arc<Module> {
    let file = File::open(path).expect("open");
    let identity = FileIdentity::of(&file).expect("stat");
    Arc::new(Module::new(
        MappedFile {
            is_from_memory: false,
            file,
            identity,
            display_path: path.to_path_buf(),
        },
        kind,
    ))
}

/// Own mapping that an address lies in, opened.
fn own_module(address: u64) -> (Arc<Module>, FileOffset) {
    let pid = Pid(std::process::id());
    let mappings = read_executable_mappings(pid).expect("maps").mappings;
    let at = crate::model::Avma(address);
    let mapping: &Mapping = mappings
        .iter()
        .find(|mapping| mapping.contains(at))
        .expect("mapped");
    let opened = open_mapped(pid, mapping).expect("opens");
    (
        Arc::new(Module::new(opened, ModuleKind::Library)),
        mapping.file_offset_of(at).expect("a file"),
    )
}

/// All answers that are still to come, by the ids of what was asked, and how many symbol processes were lost.
fn finish(symbolizer: NativeSymbolizer) -> (Vec<Location>, u64) {
    symbolizer.hurry(Instant::now() + Duration::from_mins(1));
    let NativeSymbolizer {
        requests,
        answers,
        shared,
    } = symbolizer;
    drop(requests);
    let mut all: Vec<_> = answers.iter().flatten().collect();
    all.sort_by_key(|(id, _)| *id);
    let all = all.into_iter().map(|(_, location)| location);
    (all.collect(), shared.losses.load(Ordering::Relaxed))
}

fn resolve(options: NativeOptions, places: Vec<Place>) -> Vec<Location> {
    let symbolizer = NativeSymbolizer::start(options, SymbolProcess::start()).expect("starts");
    let requests: Vec<_> = places
        .into_iter()
        .zip(0..)
        .map(|(place, id)| Request {
            id: LocationId(id),
            place,
        })
        .collect();
    let requested = requests.len();
    assert!(symbolizer.request(requests).is_empty());
    let (answers, _) = finish(symbolizer);
    assert_eq!(answers.len(), requested);
    answers
}

fn resolve_one(options: NativeOptions, module: &Arc<Module>, at: FileOffset) -> Location {
    resolve(options, vec![Place::Module(Arc::clone(module), at)]).remove(0)
}

const NAMES_ONLY: NativeOptions = NativeOptions { debug_bytes_max: 0 };
const EVERYTHING: NativeOptions = NativeOptions {
    debug_bytes_max: 64 << 20,
};

#[inline(never)]
fn a_function_with_a_name(n: u64) -> u64 {
    std::hint::black_box(n).wrapping_mul(3)
}

#[test]
fn own_functions_have_their_demangled_names() {
    let (module, at) = own_module(a_function_with_a_name as *const () as u64);
    for options in [NAMES_ONLY, EVERYTHING] {
        let location = resolve_one(options, &module, at);
        let outermost = location.frames.last().expect("a frame");
        assert!(
            outermost.name.ends_with("a_function_with_a_name"),
            "{}",
            outermost.name
        );
        assert_eq!(outermost.kind, FrameKind::Native);
        assert_eq!(outermost.miss, None);
    }
}

#[test]
fn debug_information_gives_lines_and_inlined_calls() {
    let (module, at) = own_module(a_function_with_a_name as *const () as u64);
    let location = resolve_one(EVERYTHING, &module, at);
    let outermost = location.frames.last().expect("a frame");
    assert!(
        outermost
            .file
            .as_deref()
            .is_some_and(|file| file.ends_with("native_tests.rs")),
        "{outermost:?}"
    );
    assert!(outermost.line.is_some());
    // The function's code is mostly that of the calls in it.
    let inlined = (0..64).map(|byte| resolve_one(EVERYTHING, &module, FileOffset(at.0 + byte)));
    let inlined = inlined.take_while(|location| {
        location
            .frames
            .last()
            .is_some_and(|frame| frame.name.ends_with("a_function_with_a_name"))
    });
    let with_calls = inlined.filter(|location| location.frames.len() > 1).count();
    if !cfg!(debug_assertions) {
        assert!(with_calls > 0);
    }
    assert!(
        resolve_one(NAMES_ONLY, &module, at).frames[0]
            .line
            .is_none()
    );
}

#[test]
fn functions_of_the_c_library_have_names() {
    let libc = read_executable_mappings(Pid(std::process::id()))
        .expect("maps")
        .mappings;
    let Some(mapping) = libc.iter().find(|m| {
        m.path()
            .is_some_and(|path| file_name(path).starts_with("libc."))
    }) else {
        return;
    };
    let opened = open_mapped(Pid(std::process::id()), mapping).expect("opens");
    let elf = ElfFile::parse(&opened.file).expect("parses");
    let [malloc] = elf.symbols(SymbolTable::Dynamic, ["malloc"]);
    // In a library, addresses of code and offsets in the file are often the same.
    let at = FileOffset(malloc.expect("every C library has it").0);
    assert_eq!(elf.segments().svma_of(at).map(|svma| svma.0), Some(at.0));
    let module = Arc::new(Module::new(opened, ModuleKind::Library));
    let frame = resolve_one(NAMES_ONLY, &module, at).frames.remove(0);
    assert!(frame.name.contains("malloc"), "{}", frame.name);
    assert_eq!(frame.module.as_deref(), Some(&*module.name));
}

#[test]
fn functions_of_the_vdso_have_names() {
    let module = Arc::new(Module::vdso().expect("a vDSO"));
    let [svma] = ElfFile::parse(&module.file)
        .expect("parses")
        .symbols(SymbolTable::Dynamic, ["__vdso_clock_gettime"]);
    let Some(svma) = svma else { return };
    let frame = resolve_one(NAMES_ONLY, &module, FileOffset(svma.0))
        .frames
        .remove(0);
    assert!(frame.name.contains("clock_gettime"), "{}", frame.name);
    assert_eq!(frame.module.as_deref(), Some("[vdso]"));
}

#[test]
fn what_has_no_name_is_shown_as_an_address_in_its_file() {
    let (module, _) = own_module(a_function_with_a_name as *const () as u64);
    let frame = resolve_one(NAMES_ONLY, &module, FileOffset(u64::MAX / 2))
        .frames
        .remove(0);
    assert_eq!(frame.miss, Some(ResolveMiss::NoSymbol));
    assert_eq!(*frame.name, format!("{}+0x7fffffffffffffff", module.name));

    let text = tempfile::NamedTempFile::new().expect("temporary file");
    fs::write(&text, "no ELF file").expect("write");
    let text = module_of_interpreter(text.path());
    let frame = resolve_one(NAMES_ONLY, &text, FileOffset(4))
        .frames
        .remove(0);
    assert_eq!(
        (frame.miss, frame.kind),
        (Some(ResolveMiss::FileUnreadable), FrameKind::Interpreter)
    );
}

#[test]
fn jump_stubs_and_functions_without_symbols_are_one_frame_each() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/elf_names/");
    let stripped = module(&Path::new(corpus).join("stripped"), ModuleKind::Library);
    // In these files, addresses and offsets are the same.
    for (at, name, miss) in [
        (0x371, "ext2@plt", None),
        (0x3b1, "stripped+0x3b0", Some(ResolveMiss::NoSymbol)),
        (0x3e0, "stripped+0x3b0", Some(ResolveMiss::NoSymbol)),
        (0x3e7, "visible", None),
        (0x42c, "stripped+0x42c", Some(ResolveMiss::NoSymbol)),
    ] {
        for options in [NAMES_ONLY, EVERYTHING] {
            let frame = resolve_one(options, &stripped, FileOffset(at))
                .frames
                .remove(0);
            assert_eq!((&*frame.name, frame.miss), (name, miss), "{at:#x}");
        }
    }
}

/// The dynamic loader needs no section headers, and `sstrip` takes them away.
#[test]
fn a_file_without_section_headers_has_the_names_that_are_left() {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/elf_names/");
    let mut bytes = fs::read(format!("{corpus}stripped")).expect("read");
    bytes[40..48].fill(0);
    bytes[60..64].fill(0);
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    fs::write(&file, &bytes).expect("write");
    let stripped = module(file.path(), ModuleKind::Library);
    let own = |at: &str| format!("{}+{at}", stripped.name);
    for (at, name) in [
        (0x371, "ext2@plt".to_owned()),
        (0x39f, "by_cpu@plt".to_owned()),
        (0x3b1, own("0x3b0")),
        (0x3e7, "visible".to_owned()),
        (0x42a, "calls".to_owned()),
        (0x42c, own("0x42c")),
    ] {
        let frame = resolve_one(NAMES_ONLY, &stripped, FileOffset(at))
            .frames
            .remove(0);
        assert_eq!(*frame.name, *name, "{at:#x}");
    }
}

fn module_of_interpreter(path: &Path) -> Arc<Module> {
    module(path, ModuleKind::Interpreter)
}

#[test]
fn a_deleted_program_still_has_names_while_it_runs() {
    let directory = tempfile::tempdir().expect("temporary directory");
    let path = directory.path().join("deleted");
    fs::copy(std::env::current_exe().expect("own path"), &path).expect("copy");
    // A copy of this test program that waits for a line of input in one of its tests.
    let mut child = Command::new(&path)
        .args([
            "--exact",
            "symbols::native_thread::tests::waits_when_asked",
            "--nocapture",
        ])
        .env("PYPROF_TEST_WAIT", "1")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("starts");
    let pid = Pid(child.id());
    let find = || {
        let mappings = read_executable_mappings(pid).expect("maps").mappings;
        mappings
            .into_iter()
            .find(|m| m.path().is_some_and(|path| file_name(path) == "deleted"))
    };
    while find().is_none() {
        thread::sleep(Duration::from_millis(5));
    }
    fs::remove_file(&path).expect("remove");
    let opened = open_mapped(pid, &find().expect("still mapped"));
    child.kill().expect("kill");
    child.wait().expect("wait");
    // Without the capability there is nothing to test.
    let Ok(opened) = opened else { return };
    let module = Arc::new(Module::new(opened, ModuleKind::Library));
    let (_, at) = own_module(a_function_with_a_name as *const () as u64);
    let frame = resolve_one(NAMES_ONLY, &module, at).frames.remove(0);
    assert!(
        frame.name.ends_with("a_function_with_a_name"),
        "{}",
        frame.name
    );
    assert_eq!(frame.module.as_deref(), Some("deleted"));
}

#[test]
fn waits_when_asked() {
    if std::env::var_os("PYPROF_TEST_WAIT").is_some() {
        let _ = io::stdin().read_line(&mut String::new());
    }
}

#[test]
fn a_damaged_file_costs_its_names_only() {
    let whole = fs::read(std::env::current_exe().expect("own path")).expect("read");
    let (good, at) = own_module(a_function_with_a_name as *const () as u64);
    let mut places = Vec::new();
    for seed in 1..20_usize {
        let mut bytes = whole[..whole.len().min(4 << 20)].to_vec();
        bytes.extend_from_slice(&whole[whole.len() - 64 * 64..]);
        for step in 0..200 {
            let position = (seed * 7919 + step * step * 104_729) % bytes.len();
            bytes[position] = bytes[position].wrapping_add(seed as u8 | 1);
        }
        let file = tempfile::NamedTempFile::new().expect("temporary file");
        fs::write(&file, &bytes).expect("write");
        places.push(Place::Module(module(file.path(), ModuleKind::Library), at));
    }
    places.push(Place::Module(good, at));
    let locations = resolve(EVERYTHING, places);
    assert_eq!(locations.len(), 20);
    assert!(
        locations[19]
            .frames
            .last()
            .is_some_and(|frame| frame.name.ends_with("a_function_with_a_name"))
    );
}

fn first_answer(worker: &mut Worker) -> (LocationId, Location) {
    loop {
        if let Some(answer) = worker.step().pop() {
            return answer;
        }
    }
}

#[test]
fn more_modules_than_are_kept_at_a_time_still_have_names() {
    let (own, at) = own_module(a_function_with_a_name as *const () as u64);
    let vdso = Module::vdso().expect("a vDSO");
    let [clock] = ElfFile::parse(&vdso.file)
        .expect("parses")
        .symbols(SymbolTable::Dynamic, ["__vdso_clock_gettime"]);
    let Some(clock) = clock else { return };
    let many: Vec<_> = (0..150)
        .map(|_| Arc::new(Module::vdso().expect("a vDSO")))
        .collect();
    let mut worker = Worker::new(NAMES_ONLY, None, SymbolProcess::start());
    let mut name = |module: &Arc<Module>, at| {
        let place = Place::Module(Arc::clone(module), at);
        let id = LocationId(0);
        assert!(worker.take(vec![Request { id, place }]).is_empty());
        let (_, location) = first_answer(&mut worker);
        location
            .frames
            .last()
            .map(|frame| frame.name.clone())
            .unwrap_or_default()
    };
    for _ in 0..2 {
        assert!(name(&own, at).ends_with("a_function_with_a_name"));
        for module in &many {
            assert!(name(module, FileOffset(clock.0)).contains("clock_gettime"));
        }
    }
}

#[test]
fn more_requests_than_there_is_room_for_come_back() {
    let symbolizer = NativeSymbolizer::start(NAMES_ONLY, SymbolProcess::start()).expect("starts");
    let one = |id: usize| Request {
        id: LocationId(id as u32),
        place: Place::Kernel(0xffff_ffff_8100_0000),
    };
    // Nobody takes answers: what fits is what both channels hold, and one batch in between.
    let all = BATCH_LEN * (REQUEST_BATCHES + ANSWER_BATCHES + 8);
    let mut waiting: Vec<_> = (0..all).map(one).collect();
    waiting = symbolizer.request(waiting);
    assert!(!waiting.is_empty());
    let mut answered = 0;
    while !waiting.is_empty() {
        answered += symbolizer.try_answers().count();
        waiting = symbolizer.request(waiting);
        thread::sleep(Duration::from_millis(1));
    }
    answered += finish(symbolizer).0.len();
    assert_eq!(answered, all);
}

#[test]
fn kernel_addresses_have_names_or_a_reason() {
    let location = resolve(NAMES_ONLY, vec![Place::Kernel(0xffff_ffff_8100_0000)]).remove(0);
    assert_eq!(location.frames.len(), 1);
    assert_eq!(location.frames[0].kind, FrameKind::Kernel);
}

/// A library with one function, and debug information in which that many calls are nested in it, a byte each.
fn nested_calls(depth: usize) -> Vec<u8> {
    const TEXT: u64 = 0x40_0000;
    let abbreviations = [
        &[1, 0x11, 1, 0x11, 0x01, 0x12, 0x07, 0x03, 0x08, 0, 0][..],
        &[2, 0x2e, 1, 0x11, 0x01, 0x12, 0x07, 0x03, 0x08, 0, 0],
        &[3, 0x1d, 1, 0, 0, 0],
    ]
    .concat();
    let range = [TEXT.to_le_bytes(), 0x1000_u64.to_le_bytes()].concat();
    let mut unit = vec![4, 0, 0, 0, 0, 0, 8, 1];
    unit.extend_from_slice(&range);
    unit.extend_from_slice(b"cu\0\x02");
    unit.extend_from_slice(&range);
    unit.extend_from_slice(b"deep\0");
    unit.extend(std::iter::repeat_n(3, depth));
    unit.extend(std::iter::repeat_n(0, depth + 3));
    let mut info = (unit.len() as u32).to_le_bytes().to_vec();
    info.extend(unit);
    let mut symbols = symbol(0, 0, 0, 0);
    symbols.extend(symbol(1, 1, TEXT, 0x1000));
    let mut table = TestSection::new(".symtab", object::elf::SHT_SYMTAB, symbols);
    table.link = 3;
    let mut text = TestSection::new(".text", object::elf::SHT_NOBITS, vec![0; 0x1000]);
    text.flags = 6;
    text.address = TEXT;
    elf_of(
        &[
            text,
            table,
            TestSection::new(".strtab", object::elf::SHT_STRTAB, *b"\0deep\0"),
            TestSection::new(".debug_abbrev", object::elf::SHT_PROGBITS, abbreviations),
            TestSection::new(".debug_info", object::elf::SHT_PROGBITS, info),
        ],
        Some((TEXT, 0x1000)),
    )
}

/// The library that parses calls itself for each of them, until there is no more stack.
#[test]
fn a_file_that_ends_the_symbol_process_costs_its_inlined_calls_only() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let (honest, at) = own_module(a_function_with_a_name as *const () as u64);
    for (depth, is_lost) in [(3, false), (200_000, true)] {
        fs::write(file.path(), nested_calls(depth)).expect("write");
        let deep = module(file.path(), ModuleKind::Library);
        let options = NativeOptions::default();
        let symbolizer = NativeSymbolizer::start(options, SymbolProcess::start()).expect("starts");
        let places = [
            (Arc::clone(&deep), FileOffset(16)),
            (Arc::clone(&honest), at),
        ];
        let requests = places
            .into_iter()
            .zip(0..)
            .map(|((module, at), id)| Request {
                id: LocationId(id),
                place: Place::Module(module, at),
            });
        assert!(symbolizer.request(requests.collect()).is_empty());
        let (answers, losses) = finish(symbolizer);
        let name = |number: usize| {
            let frames = &answers[number].frames;
            frames
                .last()
                .map(|frame| (frame.name.to_string(), frame.miss))
        };
        assert_eq!(name(0), Some(("deep".to_owned(), None)), "{depth} calls");
        let (honest, miss) = name(1).expect("a frame");
        assert!(honest.ends_with("a_function_with_a_name"), "{honest}");
        assert_eq!((miss, losses > 0), (None, is_lost), "{depth} calls");
    }
}

#[test]
fn names_that_nobody_can_look_up_say_so() {
    let (module, at) = own_module(a_function_with_a_name as *const () as u64);
    let mut worker = Worker::new(NAMES_ONLY, None, SymbolProcess::none());
    let place = Place::Module(module, at);
    let id = LocationId(0);
    worker.take(vec![Request { id, place }]);
    let (_, location) = first_answer(&mut worker);
    assert_eq!(location.frames[0].miss, Some(ResolveMiss::NoSymbolProcess));
}

#[test]
fn places_for_which_there_is_no_time_say_so() {
    let (module, at) = own_module(a_function_with_a_name as *const () as u64);
    let mut worker = Worker::new(NAMES_ONLY, None, SymbolProcess::start());
    let place = Place::Module(module, at);
    let id = LocationId(0);
    worker.take(vec![Request { id, place }]);
    worker.hurry(Instant::now());
    assert!(worker.is_over());
    let (_, location) = worker.give_up().remove(0);
    assert_eq!(location.frames[0].miss, Some(ResolveMiss::NotInTime));
}
