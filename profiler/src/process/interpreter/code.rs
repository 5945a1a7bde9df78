//! What a code object says: names and lines.
//!
//! Gets an address out of a sample, and the identity that the code object there had when the sample was taken. Since then
//! the process may have freed it and put anything else in its place, and may do so while it is read: so the beginning
//! of the object is read before and after the rest. It must be that of a living code object both times, with the
//! identity of the sample, and the same. What was read between is believed only then.

#![forbid(unsafe_code)]

use std::ops::Range;

use profiler_common::python::{
    CONTENT_BYTES, CONTENT_LENGTH_AT, CONTENT_NAME, CONTENT_TABLE, CONTENTS, IDENTITY_WORDS,
    content_end, identity, identity_with,
};

use super::{
    CodeLayout, LINE_TABLE_BYTES_MAX, LineMap, ReadMemory,
    object::{half_word_at, read_data, word_at},
    read_text,
};

/// Longest path that is kept, in characters: what the kernel takes for one (`PATH_MAX`).
const FILE_CHARS_MAX: usize = 4096;
/// Longest name that is kept, in characters. The compiler joins those of nested functions, up to a hundred deep.
const NAME_CHARS_MAX: usize = 2048;
/// Longest path or name that is kept, in bytes of UTF-8. A program may have tens of thousands of them.
const TEXT_BYTES_MAX: usize = 4096;
/// Most bytes of a code object that are looked at: up to `co_linetable`, which is 144 of them, or 160 in a free-threaded
/// build.
const HEAD_BYTES_MAX: usize = 256;
/// Longest `bytes` that anybody has. Sizes past it are not sizes.
const BYTES_MAX: u64 = 1 << 40;

/// A code object, as far as a profile shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Code {
    /// `co_qualname`, before 3.11 `co_name`. May be empty, and may hold any character.
    pub name: Box<str>,
    /// `co_filename`: a path as the program knows it, or such as `<frozen os>` and `<string>`. May be empty.
    pub file: Box<str>,
    /// `co_firstlineno`: of its first decorator, or of its `def`; 1 for a module.
    pub first_line: u32,
    lines: LineMap,
}

/// Why there is no code object for an address in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CodeMiss {
    /// The memory cannot be read: the process gave it back.
    Gone,
    /// There is no memory any more: the process has ended.
    Ended,
    /// It is not, or no longer, the code object of the sample: freed, perhaps another one by now.
    Replaced,
    /// It is the code object of the sample, but what it points at is not what it should be.
    Malformed,
}

impl Code {
    /// The line of an instruction, given as the kernel side sends it ([`LineMap::line_at`]). An instruction without a line
    /// (the beginning of a generator, of a module; cleaning up) counts as one of the first line.
    pub fn line_at(&self, instruction: i32) -> u32 {
        let line = self.lines.line_at(instruction);
        line.filter(|&line| line > 0).unwrap_or(self.first_line)
    }

    /// It is the interpreter's own and belongs to no function of the program, so a profile does not show it:
    /// * `_Py_InitCleanup` (`Python/specialize.c`, 3.13 and later): `__init__` of the file `__init__`, on line 0. Its frame
    ///   waits below each `__init__` that a specialised call of a class has entered, to look at what that returns.
    /// * what `_Py_MakeShimCode` makes (`Objects/codeobject.c`, 3.12): frames that mark where C code called Python. They
    ///   are told by their owner already; debuggers that copy frames may have lost it.
    pub fn is_internal(&self) -> bool {
        match (&*self.file, &*self.name) {
            ("__init__", "__init__") => self.first_line == 0,
            ("<shim>", "<interpreter trampoline>") => true,
            _ => false,
        }
    }

    /// What it takes of the heap.
    pub fn heap_bytes(&self) -> usize {
        self.name.len() + self.file.len() + self.lines.heap_bytes()
    }
}

/// Reads the code object at `at`, of which a sample says the [`identity`].
///
/// Takes five reads where names and line table are short, up to eleven at worst. Not seen: a code object that is freed
/// and made again during the reads, in the same place and with the same sizes, version and pointers.
pub fn read_code(
    memory: &impl ReadMemory,
    layout: &CodeLayout,
    at: u64,
    identity: u32,
) -> Result<Code, CodeMiss> {
    let head = Head::read(memory, layout, at)?;
    if !head.is_alive(layout) || head.identity != identity {
        return Err(CodeMiss::Replaced);
    }
    let parts = Parts::read(memory, layout, &head);
    let now = Head::read(memory, layout, at)?;
    if !now.is_alive(layout) || now.window != head.window {
        return Err(CodeMiss::Replaced);
    }
    let parts = parts.ok_or(CodeMiss::Malformed)?;
    Ok(Code {
        lines: LineMap::decode(layout.lines, parts.first_line, &parts.line_table),
        name: parts.name,
        file: parts.file,
        first_line: parts.first_line,
    })
}

/// The identity of the code object at `at` now, as the kernel side computes it. `None`: it cannot be read.
pub fn identity_at(memory: &impl ReadMemory, layout: &CodeLayout, at: u64) -> Option<u32> {
    Head::read(memory, layout, at)
        .ok()
        .map(|head| head.identity)
}

/// What counts of file, name and line table, as the kernel side reads it.
fn contents(
    memory: &impl ReadMemory,
    layout: &CodeLayout,
    words: &[u64; IDENTITY_WORDS],
) -> [[u64; 2]; CONTENTS] {
    let word = |at: u64| {
        let mut bytes = [0; 8];
        let is_there = memory.read(at, &mut bytes);
        if is_there {
            u64::from_le_bytes(bytes)
        } else {
            0
        }
    };
    let content = |object: u64, data: u64| {
        let length = word(object.wrapping_add(CONTENT_LENGTH_AT));
        [length, word(object.wrapping_add(content_end(data, length)))]
    };
    let file = usize::from(layout.file.saturating_sub(layout.identity)) / 8;
    let text = u64::from(layout.text_ascii);
    [
        content(words.get(file).copied().unwrap_or_default(), text),
        content(words[CONTENT_NAME], text),
        content(words[CONTENT_TABLE], CONTENT_BYTES),
    ]
}

/// The beginning of a code object, up to the end of its identity.
struct Head {
    bytes: [u8; HEAD_BYTES_MAX],
    window: [u64; IDENTITY_WORDS],
    identity: u32,
}

impl Head {
    /// A layout that puts the identity anywhere but near the beginning is none.
    fn read(memory: &impl ReadMemory, layout: &CodeLayout, at: u64) -> Result<Self, CodeMiss> {
        let begin = usize::from(layout.identity);
        let mut bytes = [0; HEAD_BYTES_MAX];
        let wanted = bytes.get_mut(..begin + 8 * IDENTITY_WORDS);
        if !memory.read(at, wanted.ok_or(CodeMiss::Malformed)?) {
            return Err(CodeMiss::Gone);
        }
        let word = |index| word_at(&bytes, begin + 8 * index).unwrap_or_default();
        let window = std::array::from_fn(word);
        let identity = if layout.has_contents() {
            identity_with(&window, &contents(memory, layout, &window))
        } else {
            identity(&window)
        };
        Ok(Self {
            bytes,
            window,
            identity,
        })
    }

    /// A word of the code object.
    fn word(&self, offset: u16) -> Option<u64> {
        word_at(&self.bytes, usize::from(offset))
    }

    /// It is a code object, and somebody holds a reference to it.
    fn is_alive(&self, layout: &CodeLayout) -> bool {
        let is_referenced = match layout.object_type {
            FREE_THREADED_TYPE => self.is_referenced_by_threads(),
            _ => self.is_referenced(),
        };
        is_referenced && self.word(layout.object_type) == Some(layout.code_type)
    }

    /// `PyObject` (`Include/object.h`) begins with the number of references: up to 3.11 of 64 bits; in 3.12 and 3.13 of 32
    /// bits that never overflow into those above; since 3.14 of 32 bits, 16 for an overflow that does not happen, and 16
    /// for flags. None of them gets near 2^32 but in immortal objects, which have all or the upper two of 32 bits.
    ///
    /// While `code_dealloc` runs it is 0, and stays so if `free` writes nothing there. pymalloc writes the address of the
    /// next free block, which lies far above 4 GiB as all memory from `mmap` does, or 0. glibc may write a small number
    /// there, and always writes over `ob_type` then.
    fn is_referenced(&self) -> bool {
        let references = self.word(0).unwrap_or_default();
        references as u32 != 0 && (references >> 32) as u16 == 0
    }

    /// `PyObject` of a free-threaded build (`Include/object.h`, 3.13, 3.14): `ob_tid`, four small fields of which the last
    /// is `ob_ref_local` (32 bits, at 12), `ob_ref_shared` (at 16), whose lowest two bits are flags.
    ///
    /// An object is freed when both counts are 0, and mimalloc writes over its first word only, which may hold any number
    /// while it lives: so it is the counts that tell.
    fn is_referenced_by_threads(&self) -> bool {
        let local = half_word_at(&self.bytes, 12).unwrap_or_default();
        let shared = self.word(16).unwrap_or_default();
        local != 0 || shared >> 2 != 0
    }
}

/// Where `ob_type` is in a free-threaded build.
const FREE_THREADED_TYPE: u16 = 24;

/// What is read of a code object before it is believed.
struct Parts {
    name: Box<str>,
    file: Box<str>,
    first_line: u32,
    line_table: Vec<u8>,
}

impl Parts {
    /// `None`: a part is not readable, or not what it should be.
    fn read(memory: &impl ReadMemory, layout: &CodeLayout, head: &Head) -> Option<Self> {
        let name = head.word(layout.qualified_name.unwrap_or(layout.name))?;
        let file = head.word(layout.file)?;
        let first_line = half_word_at(&head.bytes, usize::from(layout.first_line))?;
        Some(Self {
            name: read_text(memory, layout, name, NAME_CHARS_MAX, TEXT_BYTES_MAX)?,
            file: read_text(memory, layout, file, FILE_CHARS_MAX, TEXT_BYTES_MAX)?,
            // An `int`; a negative one comes from no compiler.
            first_line: u32::try_from(first_line.cast_signed()).unwrap_or(0),
            // Without it, the names are there still.
            line_table: head
                .word(layout.line_table)
                .and_then(|at| read_bytes(memory, layout, at))
                .unwrap_or_default(),
        })
    }
}

/// The `bytes` at `at`, as far as a line table is decoded.
fn read_bytes(memory: &impl ReadMemory, layout: &CodeLayout, at: u64) -> Option<Vec<u8>> {
    let header_bytes = usize::from(layout.bytes_size) + 8;
    let place = |header: &[u8]| -> Option<((), Range<usize>)> {
        let size = word_at(header, usize::from(layout.bytes_size))?;
        let begin = usize::from(layout.bytes_data);
        let size = (size <= BYTES_MAX).then_some(size as usize)?;
        Some(((), begin..begin + size.min(LINE_TABLE_BYTES_MAX)))
    };
    read_data(memory, at, header_bytes, place).map(|((), bytes)| bytes)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{
        CODE_TYPE, Change, LAYOUT, Memory, ascii_object, bytes_object, text_object,
    };
    use super::*;

    const AT: u64 = 0x7f00_0000_1000;
    const NAME: u64 = 0x7f00_0000_2000;
    const FILE: u64 = 0x7f00_0000_3000;
    const TABLE: u64 = 0x7f00_0000_4000;
    /// One unit on line 5, one on line 6.
    const LINES: [u8; 4] = [0x80, 0, 0x80 | 11 << 3, 0];

    /// A function of one line, its memory ending where it does.
    fn code_object() -> Vec<u8> {
        let mut object = vec![0; 144];
        object[0] = 2;
        object[8..16].copy_from_slice(&CODE_TYPE.to_le_bytes());
        object[68..72].copy_from_slice(&5_u32.to_le_bytes());
        for (offset, word) in [(112, FILE), (120, 1), (128, NAME), (136, TABLE)] {
            object[offset..offset + 8].copy_from_slice(&word.to_le_bytes());
        }
        object
    }

    fn process() -> Memory {
        let memory = Memory::default();
        memory.put(AT, &code_object());
        memory.put(NAME, &ascii_object("Shop.open"));
        memory.put(FILE, &ascii_object("/srv/shop.py"));
        memory.put(TABLE, &bytes_object(&LINES));
        memory
    }

    fn identity_in(memory: &Memory) -> u32 {
        let head = Head::read(memory, &LAYOUT, AT).ok().unwrap();
        memory.reads.set(0);
        head.identity
    }

    fn read(memory: &Memory) -> Result<Code, CodeMiss> {
        let identity = identity_in(memory);
        read_code(memory, &LAYOUT, AT, identity)
    }

    fn set_word(memory: &Memory, offset: usize, word: u64) {
        memory.change(AT, offset, &word.to_le_bytes());
    }

    #[test]
    fn a_code_object_has_names_and_lines() {
        let memory = process();
        let code = read(&memory).unwrap();
        assert_eq!((&*code.name, &*code.file), ("Shop.open", "/srv/shop.py"));
        assert_eq!(code.first_line, 5);
        let lines = [-2, 0, 2, 4, i32::MIN].map(|at| code.line_at(at));
        assert_eq!(lines, [5, 5, 6, 5, 5]);
        assert!(!code.is_internal());
    }

    #[test]
    fn short_names_take_five_reads_and_others_one_more_each() {
        let spare = [0xaa; 300];
        for (file, reads) in [("/srv/shop.py".to_owned(), 5), ("/x".repeat(2000), 6)] {
            let memory = process();
            let texts = [ascii_object("Shop.open"), ascii_object(&file)];
            memory.put(NAME, &[&texts[0][..], &spare].concat());
            memory.put(FILE, &[&texts[1][..], &spare].concat());
            memory.put(TABLE, &[&bytes_object(&LINES)[..], &spare].concat());
            assert_eq!(*read(&memory).unwrap().file, file);
            assert_eq!(memory.reads.get(), reads);
        }
    }

    #[test]
    fn before_3_11_the_name_is_the_plain_one() {
        let memory = process();
        set_word(&memory, 120, NAME);
        set_word(&memory, 128, 0);
        let layout = CodeLayout {
            qualified_name: None,
            ..LAYOUT
        };
        let code = read_code(&memory, &layout, AT, identity_in(&memory)).unwrap();
        assert_eq!(&*code.name, "Shop.open");
    }

    #[test]
    fn a_freed_object_is_not_read() {
        for (offset, word) in [
            (0, 0),                      // no references
            (0, 0x7f00_0000_5000),       // the next free block of pymalloc
            (8, 0x1234_5678_9abc),       // the key of glibc's cache
            (8, CODE_TYPE + 8),          // an object of another type
            (72, 0x0001_0000_0000_0001), // another code object
        ] {
            let memory = process();
            let identity = identity_in(&memory);
            set_word(&memory, offset, word);
            let found = read_code(&memory, &LAYOUT, AT, identity);
            assert_eq!(found, Err(CodeMiss::Replaced), "{offset}: {word:#x}");
            assert_eq!(memory.reads.get(), 1, "nothing it points at was read");
        }
    }

    #[test]
    fn every_count_of_references_that_a_living_object_has_will_do() {
        for word in [
            1,
            u64::from(u32::MAX), // immortal in 3.12 and 3.13
            3 << 30,             // in 3.14
            5 << 48 | 3 << 30,   // and with its flags
        ] {
            let memory = process();
            set_word(&memory, 0, word);
            assert!(read(&memory).is_ok(), "{word:#x}");
        }
    }

    #[test]
    fn free_threaded_objects_live_as_long_as_a_count_says_so() {
        // As in 3.13: all but the first words 16 bytes further on.
        let layout = CodeLayout {
            object_type: 24,
            identity: 72,
            first_line: 84,
            file: 128,
            name: 136,
            qualified_name: Some(144),
            line_table: 152,
            ..LAYOUT
        };
        let mut object = vec![0; 16];
        object.extend_from_slice(&code_object());
        object[16] = 0;
        for (local, shared, lives) in [
            (1_u32, 0_u64, true),
            (u32::MAX, 0, true),
            (0, 1 << 2 | 3, true),
            (2, (-4_i64).cast_unsigned(), true),
            (0, 0, false),
            (0, 3, false),
        ] {
            let memory = process();
            object[0..8].copy_from_slice(&0x7f00_0000_5000_u64.to_le_bytes());
            object[12..16].copy_from_slice(&local.to_le_bytes());
            object[16..24].copy_from_slice(&shared.to_le_bytes());
            memory.put(AT, &object);
            let head = Head::read(&memory, &layout, AT).ok().unwrap();
            let found = read_code(&memory, &layout, AT, head.identity);
            let expected = if lives {
                None
            } else {
                Some(CodeMiss::Replaced)
            };
            assert_eq!(found.err(), expected, "{local} {shared:#x}");
        }
    }

    #[test]
    fn an_object_that_is_freed_or_replaced_meanwhile_is_not_believed() {
        // The first read and the last are of the object itself; where memory ends early, there are more between.
        let reads = {
            let memory = process();
            read(&memory).unwrap();
            memory.reads.get()
        };
        let changes: [Change; 4] = [
            |memory| set_word(memory, 0, 0x7f00_0000_5000),
            |memory| set_word(memory, 8, 0),
            |memory| set_word(memory, 136, TABLE + 8),
            |memory| {
                memory.put(NAME, &bytes_object(b"anything"));
                set_word(memory, 128, FILE);
            },
        ];
        for change in changes {
            for when in 1..reads {
                let mut memory = process();
                let identity = identity_in(&memory);
                memory.meanwhile = Some((when, change));
                let found = read_code(&memory, &LAYOUT, AT, identity);
                assert_eq!(found, Err(CodeMiss::Replaced), "before read {when}");
            }
        }
        let mut memory = process();
        let identity = identity_in(&memory);
        memory.meanwhile = Some((2, |memory| memory.remove(AT)));
        let found = read_code(&memory, &LAYOUT, AT, identity);
        assert_eq!(found, Err(CodeMiss::Gone));
    }

    #[test]
    fn nothing_is_read_behind_the_end_of_memory() {
        // All objects end where their memory does already; here the code object ends too early.
        let memory = process();
        let identity = identity_in(&memory);
        memory.put(AT, &code_object()[..143]);
        let found = read_code(&memory, &LAYOUT, AT, identity);
        assert_eq!(found, Err(CodeMiss::Gone));
        let found = read_code(&memory, &LAYOUT, u64::MAX - 8, identity);
        assert_eq!(found, Err(CodeMiss::Gone));
    }

    #[test]
    fn parts_that_are_not_what_they_should_be_make_it_malformed() {
        let no_size = {
            let mut object = bytes_object(&LINES);
            object[16..24].copy_from_slice(&u64::MAX.to_le_bytes());
            object
        };
        let no_text = text_object(1, true, &[0xff]);
        for at in [NAME, FILE] {
            let memory = process();
            memory.put(at, &no_text);
            assert_eq!(read(&memory), Err(CodeMiss::Malformed), "{at:#x}");
        }
        // Without its lines it has a name still.
        for object in [&no_size[..], &bytes_object(&LINES)[..34]] {
            let memory = process();
            memory.put(TABLE, object);
            let code = read(&memory).expect("its name is there");
            assert_eq!((&*code.name, code.line_at(2)), ("Shop.open", 5));
        }
        let nowhere = CodeLayout {
            identity: u16::MAX,
            ..LAYOUT
        };
        let found = read_code(&process(), &nowhere, AT, 0);
        assert_eq!(found, Err(CodeMiss::Malformed));
    }

    #[test]
    fn a_line_table_without_end_is_read_as_far_as_it_is_decoded() {
        let memory = process();
        memory.put(
            TABLE,
            &bytes_object(&[0x80].repeat(LINE_TABLE_BYTES_MAX + 9)),
        );
        let code = read(&memory).unwrap();
        let end = 2 * LINE_TABLE_BYTES_MAX as i32;
        assert_eq!(code.lines.line_at(end - 2), Some(5));
        assert_eq!(code.lines.line_at(end), None);
    }

    #[test]
    fn names_without_end_are_cut() {
        let memory = process();
        memory.put(NAME, &ascii_object(&"n".repeat(100_000)));
        memory.put(FILE, &ascii_object(&"f".repeat(100_000)));
        let code = read(&memory).unwrap();
        assert_eq!(code.name.chars().count(), NAME_CHARS_MAX);
        assert_eq!(code.file.chars().count(), FILE_CHARS_MAX);
        assert!(code.heap_bytes() < 7000);
        let wide = text_object(4, false, &vec![0x2_0000; 8192]);
        memory.put(NAME, &wide);
        memory.put(FILE, &wide);
        let code = read(&memory).unwrap();
        for text in [&code.name, &code.file] {
            assert!(text.len() <= TEXT_BYTES_MAX && text.ends_with("\u{20000}…"));
        }
    }

    #[test]
    fn line_0_is_shown_as_the_first_line() {
        let memory = process();
        memory.change(AT, 68, &1_u32.to_le_bytes());
        // `RESUME` of a module: one line back, without columns.
        memory.put(TABLE, &bytes_object(&[0x80 | 13 << 3, 3]));
        assert_eq!(read(&memory).unwrap().line_at(0), 1);
    }

    #[test]
    fn the_interpreters_own_code_is_known_by_all_that_it_says() {
        let code = |name: &str, file: &str, first_line| Code {
            name: name.into(),
            file: file.into(),
            first_line,
            lines: LineMap::decode(LAYOUT.lines, first_line, &[]),
        };
        assert!(code("__init__", "__init__", 0).is_internal());
        assert!(code("<interpreter trampoline>", "<shim>", 1).is_internal());
        assert!(!code("__init__", "__init__", 1).is_internal());
        assert!(!code("Shop.__init__", "__init__", 0).is_internal());
        assert!(!code("__init__", "/srv/shop.py", 0).is_internal());
    }
}
