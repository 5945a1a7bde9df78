//! The memory of a process that there is not, with an interpreter in it that is as a layout says.

use std::cell::{Cell, RefCell};

use profiler_common::python::NO_FIELD;

use super::{Interpreter, LineTableKind, ReadMemory};

/// Where the memory begins.
const BASE: u64 = 0x7f00_0000_0000;
/// How much of it there is.
pub(super) const BYTES: usize = 0x1_0000;

/// `_PyRuntime`
pub(super) const RUNTIME: u64 = BASE + 0x100;
/// `PyCode_Type`
pub(super) const CODE_TYPE: u64 = BASE + 0xa000;
/// The only interpreter.
pub(super) const INTERPRETER: u64 = BASE + 0x2000;
/// Its only thread.
pub(super) const THREAD: u64 = BASE + 0x4000;
const CFRAME: u64 = BASE + 0x4800;
const THREAD_ID: u64 = BASE + 0x4900;
const FRAMES: u64 = BASE + 0x5000;
const CODES: u64 = BASE + 0x6000;
const TEXTS: u64 = BASE + 0x8000;
const TEXT_TYPE: u64 = BASE + 0xa400;
const BYTES_TYPE: u64 = BASE + 0xa800;
const MEMBERS: u64 = BASE + 0xb000;
/// A text or `bytes`: header and data.
const TEXT_BYTES: u64 = 0x80;
const CODE_BYTES: u64 = 0x200;
/// Instructions of each function, of two bytes each.
const INSTRUCTIONS: u64 = 50;

/// Memory from `BASE` on.
pub(super) struct FakeMemory {
    bytes: RefCell<Vec<u8>>,
    /// Reads so far.
    pub(super) reads: Cell<usize>,
}

impl ReadMemory for FakeMemory {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        self.reads.set(self.reads.get() + 1);
        let begin = at.checked_sub(BASE).and_then(|at| usize::try_from(at).ok());
        let bytes = self.bytes.borrow();
        let found = begin.and_then(|begin| bytes.get(begin..)?.get(..into.len()));
        found.is_some_and(|found| {
            into.copy_from_slice(found);
            true
        })
    }
}

impl FakeMemory {
    pub(super) fn new(bytes: Vec<u8>) -> Self {
        Self {
            bytes: RefCell::new(bytes),
            reads: Cell::new(0),
        }
    }

    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        let begin = (at - BASE) as usize;
        self.bytes.borrow_mut()[begin..begin + bytes.len()].copy_from_slice(bytes);
    }

    pub(super) fn put_word(&self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    pub(super) fn truncate(&self, bytes: usize) {
        self.bytes.borrow_mut().truncate(bytes);
    }

    /// The bytes that are there, to damage them.
    pub(super) fn damage(&self, word: usize, value: u64) {
        let words = self.bytes.borrow().len() / 8;
        if words > 0 {
            self.put_word(BASE + 8 * (word % words) as u64, value);
        }
    }
}

/// Where the frame of a number is, the innermost being 0.
pub(super) fn frame(number: usize) -> u64 {
    FRAMES + 0x80 * number as u64
}

/// Where its code object is.
pub(super) fn code(number: usize) -> u64 {
    CODES + CODE_BYTES * number as u64
}

/// A process whose only thread runs functions of these names, the innermost first.
pub(super) fn process(interpreter: &Interpreter, names: &[&str]) -> FakeMemory {
    let layout = &interpreter.frames;
    let memory = FakeMemory::new(vec![0; BYTES]);
    let put = |at: u64, offset: u16, word: u64| {
        if offset != NO_FIELD {
            memory.put_word(at + u64::from(offset), word);
        }
    };
    memory.put_word(layout.interpreters, INTERPRETER);
    memory.put_word(INTERPRETER + u64::from(layout.interpreter_threads), THREAD);
    put(THREAD, layout.thread_interpreter, INTERPRETER);
    put(THREAD, layout.thread_id, THREAD_ID);
    memory.put_word(THREAD_ID, THREAD_ID);
    let has_cframes = layout.cframe_frame != NO_FIELD;
    let newest = if has_cframes { CFRAME } else { frame(0) };
    put(THREAD, layout.thread_frame, newest);
    put(CFRAME, layout.cframe_frame, frame(0));
    put_types(&memory, interpreter);
    for (number, name) in names.iter().enumerate() {
        put_code(&memory, interpreter, number, name);
        let at = frame(number);
        let has_caller = number + 1 < names.len();
        put(at, layout.frame_code, code(number));
        let instruction = match layout.instruction_is_address {
            1 => code(number) + u64::from(layout.code_instructions) + 4,
            _ => 4,
        };
        put(at, layout.frame_instruction, instruction);
        let previous = if has_caller { frame(number + 1) } else { 0 };
        put(at, layout.frame_previous, previous);
    }
    memory
}

fn put_types(memory: &FakeMemory, interpreter: &Interpreter) {
    let (frames, code) = (&interpreter.frames, &interpreter.code);
    let size = u64::from(code.bytes_size);
    let types = [
        (CODE_TYPE, &b"code\0"[..]),
        (TEXT_TYPE, b"str\0"),
        (BYTES_TYPE, b"bytes\0"),
    ];
    for (at, name) in types {
        memory.put(at + 0x300, name);
        memory.put_word(at + size + 8, at + 0x300);
    }
    let instructions = match frames.instruction_is_address {
        1 => frames.code_instructions,
        _ => 176,
    };
    memory.put_word(CODE_TYPE + size + 16, u64::from(instructions));
    memory.put_word(CODE_TYPE + size + 224, MEMBERS);
    let table = match code.lines {
        LineTableKind::Lnotab => "co_lnotab",
        LineTableKind::Ranges | LineTableKind::Locations => "co_linetable",
    };
    let qualified = code.qualified_name.map(|at| ("co_qualname", at));
    let bytes = (frames.instruction_is_address == 0).then_some(("co_code", 48));
    let members = [
        Some(("co_argcount", code.first_line)),
        Some(("co_firstlineno", code.first_line)),
        Some(("co_filename", code.file)),
        Some(("co_name", code.name)),
        qualified,
        bytes,
        Some((table, code.line_table)),
    ];
    for (number, (name, offset)) in members.into_iter().flatten().enumerate() {
        let at = MEMBERS + 40 * number as u64;
        let name_at = MEMBERS + 0x400 + 32 * number as u64;
        memory.put(name_at, name.as_bytes());
        memory.put_word(at, name_at);
        memory.put_word(at + 16, u64::from(offset));
    }
}

fn put_code(memory: &FakeMemory, interpreter: &Interpreter, number: usize, name: &str) {
    let layout = &interpreter.code;
    let at = code(number);
    let put = |offset: u16, word: u64| memory.put_word(at + u64::from(offset), word);
    let texts = TEXTS + 4 * TEXT_BYTES * number as u64;
    put_reference(memory, interpreter, at);
    put(layout.object_type, CODE_TYPE);
    memory.put(at + u64::from(layout.first_line), &7_u32.to_le_bytes());
    put_text(memory, interpreter, texts, "/srv/program.py");
    put_text(memory, interpreter, texts + TEXT_BYTES, name);
    put(layout.file, texts);
    put(layout.name, texts + TEXT_BYTES);
    if let Some(offset) = layout.qualified_name {
        put(offset, texts + TEXT_BYTES);
    }
    put_bytes(memory, interpreter, texts + 2 * TEXT_BYTES, 20);
    put(layout.line_table, texts + 2 * TEXT_BYTES);
    if interpreter.frames.instruction_is_address == 1 {
        put(layout.bytes_size, INSTRUCTIONS);
    } else {
        put_bytes(memory, interpreter, texts + 3 * TEXT_BYTES, 50);
        put(48, texts + 3 * TEXT_BYTES);
    }
}

fn put_reference(memory: &FakeMemory, interpreter: &Interpreter, at: u64) {
    let is_free_threaded = interpreter.code.object_type > 8;
    memory.put(at + if is_free_threaded { 12 } else { 0 }, &[1]);
}

fn put_text(memory: &FakeMemory, interpreter: &Interpreter, at: u64, text: &str) {
    let layout = &interpreter.code;
    memory.put_word(at + u64::from(layout.object_type), TEXT_TYPE);
    memory.put_word(at + u64::from(layout.text_length), text.len() as u64);
    // Of one byte, compact, ASCII; interned.
    let state = (1 | 8 | 16) << layout.text_interned_bits | 1_u32;
    memory.put(at + u64::from(layout.text_state), &state.to_le_bytes());
    memory.put(at + u64::from(layout.text_ascii), text.as_bytes());
}

fn put_bytes(memory: &FakeMemory, interpreter: &Interpreter, at: u64, length: u64) {
    let layout = &interpreter.code;
    memory.put_word(at + u64::from(layout.object_type), BYTES_TYPE);
    memory.put_word(at + u64::from(layout.bytes_size), length);
}
