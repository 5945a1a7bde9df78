//! Code objects of an interpreter, and what they point at: line tables, texts.
//!
//! Input: a byte that chooses the kind of line table, one for the longest text, and the memory of a process, which begins at
//! [`BEGIN`] with a code object of CPython 3.12. The same bytes are a line table, too.

use profiler_common::python::{IDENTITY_WORDS, identity};

use super::input::Input;
use crate::process::interpreter::{
    CodeLayout, Interpreter, LineMap, LineTableKind, ReadMemory, built_in, read_code, read_text,
};

/// Where the memory begins: the addresses in it are short ones.
const BEGIN: u64 = 0x1000;

struct Memory<'d>(&'d [u8]);

impl ReadMemory for Memory<'_> {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let offset = at.checked_sub(BEGIN).map(|offset| offset as usize);
        let rest = offset.and_then(|offset| self.0.get(offset..));
        let found = rest.and_then(|rest| rest.get(..into.len()));
        found.map(|found| into.copy_from_slice(found)).is_some()
    }
}

/// Lines are below 2^31 and texts within their limit, and nothing takes more memory than is promised.
pub fn code_objects(data: &[u8]) {
    let mut input = Input::new(data);
    let kind = usize::from(input.byte()) % 3;
    let chars_max = usize::from(input.byte()) + 1;
    let Interpreter { code, .. } = built_in(12, 0, BEGIN, 0).expect("3.12 is known");
    let layout = CodeLayout {
        lines: [
            LineTableKind::Lnotab,
            LineTableKind::Ranges,
            LineTableKind::Locations,
        ][kind],
        ..code
    };
    let memory = Memory(input.bytes(usize::MAX));
    let lines = LineMap::decode(layout.lines, 1, memory.0);
    assert!(lines.heap_bytes() <= 8 * (memory.0.len() + 1));
    for at in [i32::MIN, -1, 0, 1, 100, i32::MAX] {
        assert!(lines.line_at(at).is_none_or(|line| line < 1 << 31));
    }
    for at in (BEGIN..).take(memory.0.len()).step_by(8) {
        let text = read_text(&memory, &layout, at, chars_max, usize::MAX);
        assert!(text.is_none_or(|text| text.chars().count() <= chars_max));
    }
    let mut window = [0; IDENTITY_WORDS];
    for (word, bytes) in window.iter_mut().zip(memory.0.chunks_exact(8).skip(7)) {
        *word = bytes
            .iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u64::from(byte));
    }
    if let Ok(code) = read_code(&memory, &layout, BEGIN, identity(&window)) {
        assert!(code.line_at(0) < 1 << 31 && code.heap_bytes() <= 16 * memory.0.len());
    }
}
