//! Is that a code object? The question of the self-check, which gets a layout that may be wrong.

use profiler_common::python::{CODE_BYTES_MAX, NO_FIELD, PythonLayout};
use rustc_hash::FxHashMap;

use super::{
    Interpreter, LineTableKind, ReadMemory,
    code_type::{CodeType, is_type},
    frame::Frame,
    refusal::Misfit,
    threads::is_object,
};

/// Largest `ob_type` there is, and what is read of a code object.
const READ_MAX: usize = 64 + CODE_BYTES_MAX;
/// What is read of an object of variable length.
const OBJECT_HEAD_MAX: usize = 256;
/// Most instructions of a function, and most bytes of a line table, that are taken for possible.
const LENGTH_MAX: u64 = 1 << 28;
/// Longest name that is taken for possible.
const TEXT_MAX: u64 = 1 << 24;
/// Characters of a text that are looked at.
const LOOKED_AT_MAX: u64 = 64;
/// Names of the functions that programs and threads begin with: a module; `python -m`, which `runpy` begins
/// (`pymain_run_module`, Modules/main.c); a thread (`Thread._bootstrap`, Lib/threading.py).
const ROOTS: [&[u8]; 3] = [b"<module>", b"_run_module_as_main", b"_bootstrap"];

/// Code objects that were found to be such.
pub(super) struct CodeObjects<'a> {
    memory: &'a dyn ReadMemory,
    interpreter: &'a Interpreter,
    code_type: CodeType,
    known: FxHashMap<u64, CodeObject>,
    /// `PyUnicode_Type`, when it was seen.
    text_type: Option<u64>,
    /// `PyBytes_Type`
    bytes_type: Option<u64>,
}

/// One of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct CodeObject {
    at: u64,
    name: u64,
    instructions: Instructions,
}

/// What a frame's instruction can be.
#[derive(Clone, Copy, Debug)]
enum Instructions {
    /// An address: of one of so many, or of the one before the first, in units of two bytes.
    At { begin: u64, count: u64 },
    /// A number below this one, or -1.
    Below(u64),
}

impl<'a> CodeObjects<'a> {
    pub(super) fn new(
        memory: &'a dyn ReadMemory,
        interpreter: &'a Interpreter,
        code_type: CodeType,
    ) -> Self {
        Self {
            memory,
            interpreter,
            code_type,
            known: FxHashMap::default(),
            text_type: None,
            bytes_type: None,
        }
    }

    /// How many were found.
    pub(super) fn len(&self) -> usize {
        self.known.len()
    }

    /// The code object at an address, if it is one in all its parts.
    pub(super) fn check(&mut self, at: u64) -> Result<CodeObject, Misfit> {
        if let Some(&code) = self.known.get(&at) {
            return Ok(code);
        }
        let layout = &self.interpreter.code;
        let mut buffer = [0; READ_MAX];
        let head = buffer.get_mut(..usize::from(layout.line_table) + 8);
        let head = head.filter(|_| is_object(at)).ok_or(Misfit::NotCode)?;
        if !self.memory.read(at, head) {
            return Err(Misfit::NotCode);
        }
        let head = Head(head);
        if head.word(layout.object_type) != Some(layout.code_type) {
            return Err(Misfit::NotCode);
        }
        if !head.is_referenced(layout.object_type) {
            return Err(Misfit::Part("the number of references"));
        }
        if head.int(layout.first_line).is_none_or(|line| line < 0) {
            return Err(Misfit::Part("the first line"));
        }
        let name = head.word(layout.name).unwrap_or_default();
        let file = head.word(layout.file).unwrap_or_default();
        let qualified = layout.qualified_name.and_then(|at| head.word(at));
        let texts = [(file, "the file"), (name, "the name")].into_iter();
        for (text, part) in texts.chain(qualified.map(|at| (at, "the qualified name"))) {
            self.check_text(text).ok_or(Misfit::Part(part))?;
        }
        let table = head.word(layout.line_table).unwrap_or_default();
        self.check_bytes(table)
            .ok_or(Misfit::Part("the line table"))?;
        let instructions = self.instructions(at, &head);
        let code = CodeObject {
            at,
            name,
            instructions: instructions.ok_or(Misfit::Part("the instructions"))?,
        };
        self.known.insert(at, code);
        Ok(code)
    }

    /// It is of a function that programs or threads begin with.
    pub(super) fn is_root(&self, code: &CodeObject) -> bool {
        let name_at = u64::from(self.interpreter.code.text_ascii);
        ROOTS.iter().any(|root| {
            let mut name = vec![1; root.len() + 1];
            self.memory.read(code.name.wrapping_add(name_at), &mut name)
                && name.strip_prefix(*root) == Some(&[0])
        })
    }

    fn instructions(&mut self, at: u64, head: &Head<'_>) -> Option<Instructions> {
        let Interpreter { frames, code, .. } = self.interpreter;
        if frames.instruction_is_address == 1 {
            // `ob_size` counts them (`_PyCode_New` in Objects/codeobject.c).
            let count = head.word(code.bytes_size)?;
            let begin = at + u64::from(frames.code_instructions);
            return (1..=LENGTH_MAX)
                .contains(&count)
                .then_some(Instructions::At { begin, count });
        }
        let offset = u16::try_from(self.code_type.instructions?).ok()?;
        let bytes = self.check_bytes(head.word(offset)?)?;
        Some(Instructions::Below(match code.lines {
            LineTableKind::Ranges => bytes / 2,
            LineTableKind::Lnotab | LineTableKind::Locations => bytes,
        }))
    }

    /// The length of the `bytes` at an address, if they are such.
    fn check_bytes(&mut self, at: u64) -> Option<u64> {
        let layout = &self.interpreter.code;
        let mut head = [0; OBJECT_HEAD_MAX];
        let end = usize::from(layout.bytes_size.max(layout.object_type)) + 8;
        let head = Head(self.head(at, head.get_mut(..end)?)?);
        let bytes_type = head.word(layout.object_type)?;
        if self.bytes_type != Some(bytes_type) {
            if !is_type(self.memory, layout, bytes_type, b"bytes\0") {
                return None;
            }
            self.bytes_type = Some(bytes_type);
        }
        let length = head
            .word(layout.bytes_size)
            .filter(|&length| length <= LENGTH_MAX)?;
        // A zero stands behind them, which belongs to nobody.
        let end = self.memory.u8(at + u64::from(layout.bytes_data) + length)?;
        (end == 0).then_some(length)
    }

    /// There is a text at an address.
    fn check_text(&mut self, at: u64) -> Option<()> {
        let layout = &self.interpreter.code;
        let mut head = [0; OBJECT_HEAD_MAX];
        let ends = [
            layout.text_length + 8,
            layout.text_state + 4,
            layout.object_type + 8,
        ];
        let end = ends.into_iter().max().map(usize::from)?;
        let head = Head(self.head(at, head.get_mut(..end)?)?);
        let text_type = head.word(layout.object_type)?;
        if self.text_type != Some(text_type) {
            if !is_type(self.memory, layout, text_type, b"str\0") {
                return None;
            }
            self.text_type = Some(text_type);
        }
        // `interned`, then `kind:3`, `compact:1`, `ascii:1` (`PyASCIIObject`, Include/cpython/unicodeobject.h).
        let state = head.int(layout.text_state)? >> layout.text_interned_bits.min(31);
        let (width, is_compact, is_ascii) = (state & 7, state & 8 != 0, state & 16 != 0);
        let width = matches!(width, 1 | 2 | 4).then_some(width as u64)?;
        let length = head.word(layout.text_length)?;
        if !is_compact || (is_ascii && width != 1) || length > TEXT_MAX {
            return None;
        }
        let data = at
            + u64::from(if is_ascii {
                layout.text_ascii
            } else {
                layout.text_compact
            });
        let mut end = [1; 4];
        let end = end.get_mut(..width as usize)?;
        let ends = self.memory.read(data + length * width, end) && end.iter().all(|&b| b == 0);
        let mut begin = [0; LOOKED_AT_MAX as usize];
        let begin = begin.get_mut(..LOOKED_AT_MAX.min(length * width) as usize)?;
        let is_readable = self.memory.read(data, begin);
        // Nothing that has a name has a zero in it, but what lies before or behind a text does.
        let is_possible = !is_ascii || begin.iter().all(|byte| (1..0x80).contains(byte));
        (ends && is_readable && is_possible).then_some(())
    }

    fn head<'b>(&self, at: u64, into: &'b mut [u8]) -> Option<&'b [u8]> {
        (is_object(at) && self.memory.read(at, into)).then_some(into)
    }
}

impl CodeObject {
    /// A frame that runs it can be at that instruction.
    pub(super) fn has_instruction(
        &self,
        memory: &dyn ReadMemory,
        layout: &PythonLayout,
        frame: &Frame,
    ) -> bool {
        match self.instructions {
            Instructions::Below(end) => {
                // `f_lasti` is an `int`; -1: not begun.
                let index = i64::from(frame.instruction as u32 as i32);
                (-1..end as i64).contains(&index)
            }
            Instructions::At { begin, count } => {
                let copy = || self.copy(memory, layout, frame.copy);
                is_in(frame.instruction, begin, count)
                    || copy().is_some_and(|copy| is_in(frame.instruction, copy, count))
            }
        }
    }

    /// Where a thread has a copy of the instructions for itself: `_PyCodeArray`, a number and as many pointers
    /// (Include/cpython/code.h, free-threaded 3.14 and later).
    fn copy(&self, memory: &dyn ReadMemory, layout: &PythonLayout, index: u32) -> Option<u64> {
        let offset = (layout.code_tlbc != NO_FIELD).then_some(layout.code_tlbc)?;
        let array = memory.u64(self.at + u64::from(offset))?;
        let index = u64::from(index);
        (index < memory.u64(array)?).then(|| memory.u64(array.wrapping_add(8 + 8 * index)))?
    }
}

/// 3.11 and 3.12 have the instruction before the next one in a frame, which before the first is none.
fn is_in(instruction: u64, begin: u64, count: u64) -> bool {
    let offset = instruction.wrapping_sub(begin).wrapping_add(2);
    offset.is_multiple_of(2) && offset < 2 * (count + 1)
}

/// The beginning of an object.
struct Head<'b>(&'b [u8]);

impl Head<'_> {
    fn word(&self, offset: u16) -> Option<u64> {
        let bytes = self.0.get(usize::from(offset)..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }

    fn int(&self, offset: u16) -> Option<i32> {
        let bytes = self.0.get(usize::from(offset)..)?.first_chunk()?;
        Some(i32::from_le_bytes(*bytes))
    }

    /// Somebody holds a reference to it. Include/object.h, `struct _object`: with the GIL, the number of references has 32
    /// bits that count, and 16 more that are zero; without, `ob_ref_local` and `ob_ref_shared` stand before the type.
    fn is_referenced(&self, object_type: u16) -> bool {
        if object_type >= 24 {
            let local = self.int(object_type - 12).unwrap_or_default();
            let shared = self.word(object_type - 8).unwrap_or_default();
            return local != 0 || shared != 0;
        }
        let count = self.word(0).unwrap_or_default();
        count as u32 != 0 && (count >> 32) as u16 == 0
    }
}
