//! What CPython says of itself since 3.13: `_Py_DebugOffsets`, with which `_PyRuntime` begins.
//!
//! A list of words: a cookie, the version, whether it has no GIL, and then the offsets of fields, block by block. Each
//! block begins with the size of what it describes. Which words these are differs between minor versions
//! (Include/internal/pycore_runtime.h in 3.13, pycore_debug_offsets.h in 3.14 and 3.15), so each has a [`Row`] here. A
//! free-threaded build has the same words with other values, and some of them are zero in one with the GIL.
//!
//! The words come from a process and may be anything. What is made of them keeps what is promised of layouts, and no
//! more: [`super::check`] tells whether they are true.

use profiler_common::python::{CODE_BYTES_MAX, FRAME_BYTES_MAX, NO_FIELD, PythonLayout};

use super::{
    CodeLayout, Interpreter, LineTableKind, ReadMemory,
    offsets::{SHIM_OWNER, identity_begin, words_up_to},
};

/// `_Py_Debug_Cookie`
const COOKIE: u64 = u64::from_le_bytes(*b"xdebugpy");
/// Words that are read; the last of a [`Row`] is number 110.
const WORDS: usize = 112;
/// Most bytes of a state of the runtime or an interpreter; they have 346 thousand.
const STATE_BYTES_MAX: u64 = 1 << 20;
/// Most bytes of a thread's state; 3.15 has 888.
const THREAD_BYTES_MAX: u64 = 1 << 14;
/// Most bytes of the fields of a thread that are read; they end at 184.
pub(super) const THREAD_FIELDS_MAX: u64 = 1024;
/// Most bytes of a frame or an object without what is of variable length. Code objects have 224, types 440.
const OBJECT_BYTES_MAX: u64 = 1024;

/// Which words of the list are what, in one minor version: where blocks begin, and what is not at the same place in all
/// of them.
#[derive(Debug)]
pub(super) struct Row {
    /// Major and minor version.
    pub(super) version: (u8, u8),
    thread_state: usize,
    thread_id: usize,
    interpreter_frame: usize,
    code_object: usize,
    object: usize,
    bytes: usize,
    unicode: usize,
    /// `tlbc_index` of a frame and `co_tlbc` of a code object: where threads have copies of its instructions.
    tlbc: Option<(usize, usize)>,
    /// What of a frame's pointer to its code is no tag.
    code_mask: u64,
    /// Bits of `PyASCIIObject.state.interned` in a free-threaded build: a byte since 3.14.
    free_threaded_interned_bits: u8,
    /// The block `debugger_support`, and `PyInterpreterState.threads.main`: see [`super::requests`].
    pub(super) requests: Option<(usize, usize)>,
}

/// The newest first.
pub(super) const ROWS: [Row; 3] = [
    Row {
        version: (3, 15),
        thread_state: 22,
        thread_id: 30,
        interpreter_frame: 39,
        code_object: 47,
        object: 58,
        bytes: 86,
        unicode: 89,
        tlbc: Some((46, 57)),
        code_mask: !3,
        free_threaded_interned_bits: 8,
        requests: Some((105, 10)),
    },
    Row {
        version: (3, 14),
        thread_state: 22,
        thread_id: 27,
        interpreter_frame: 31,
        code_object: 39,
        object: 50,
        bytes: 74,
        unicode: 77,
        tlbc: Some((38, 49)),
        code_mask: !3,
        free_threaded_interned_bits: 8,
        requests: Some((89, 10)),
    },
    Row {
        version: (3, 13),
        thread_state: 19,
        thread_id: 24,
        interpreter_frame: 28,
        code_object: 34,
        object: 44,
        bytes: 64,
        unicode: 67,
        tlbc: None,
        code_mask: u64::MAX,
        free_threaded_interned_bits: 2,
        requests: None,
    },
];

/// The list of one process.
#[derive(Clone, Debug)]
pub(super) struct DebugOffsets([u64; WORDS]);

/// A word that cannot be what it should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} cannot be {value}")]
pub struct ImpossibleOffset {
    /// What it should be.
    pub field: &'static str,
    /// What it is.
    pub value: u64,
}

impl DebugOffsets {
    /// Reads the list at the beginning of `_PyRuntime`. `None`: it is not readable.
    pub(super) fn read(memory: &dyn ReadMemory, runtime: u64) -> Option<Self> {
        let bytes = memory.bytes::<{ 8 * WORDS }>(runtime)?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = bytes.try_into().map_or(0, u64::from_le_bytes);
        }
        Some(Self(words))
    }

    /// It begins as such a list does.
    pub(super) fn has_cookie(&self) -> bool {
        self.0[0] == COOKIE
    }

    /// `PY_VERSION_HEX`
    pub(super) fn version(&self) -> Result<u32, ImpossibleOffset> {
        let value = self.0[1];
        let version = u32::try_from(value).ok();
        version
            .filter(|hex| matches!(hex >> 24, 3..=4))
            .ok_or(ImpossibleOffset {
                field: "the version",
                value,
            })
    }

    /// It has no GIL.
    pub(super) fn is_free_threaded(&self) -> bool {
        self.0[2] == 1
    }

    /// The number of bytes of an interpreter's state, and of a thread's.
    pub(super) fn state_bytes(&self, row: &Row) -> Result<[u64; 2], ImpossibleOffset> {
        let interpreter = self.block(6, "the size of PyInterpreterState", STATE_BYTES_MAX)?;
        let name = "the size of PyThreadState";
        let thread = self.block(row.thread_state, name, THREAD_BYTES_MAX)?;
        Ok([interpreter.bytes, thread.bytes])
    }

    /// A word, if it is the offset of a field of `width` bytes in something of `bytes` bytes.
    pub(super) fn offset(
        &self,
        word: usize,
        field: &'static str,
        bytes: u64,
        width: u64,
    ) -> Result<u64, ImpossibleOffset> {
        let value = self.0.get(word).copied().unwrap_or(u64::MAX);
        let end = value.checked_add(width);
        let is_possible = end.is_some_and(|end| end <= bytes);
        is_possible
            .then_some(value)
            .ok_or(ImpossibleOffset { field, value })
    }

    /// The layout, if the words are what `row` says.
    pub(super) fn layout(
        &self,
        row: &Row,
        runtime: u64,
        code_type: u64,
    ) -> Result<Interpreter, ImpossibleOffset> {
        let code = self.code(row, code_type)?;
        Ok(Interpreter {
            frames: self.frames(row, runtime, &code)?,
            code,
            version: self.version()?,
        })
    }

    fn frames(
        &self,
        row: &Row,
        runtime: u64,
        code: &CodeLayout,
    ) -> Result<PythonLayout, ImpossibleOffset> {
        let runtime_state = self.block(3, "the size of _PyRuntimeState", STATE_BYTES_MAX)?;
        let interpreter = self.block(6, "the size of PyInterpreterState", STATE_BYTES_MAX)?;
        let thread = self.block(
            row.thread_state,
            "the size of PyThreadState",
            THREAD_BYTES_MAX,
        )?;
        let thread = Block {
            bytes: thread.bytes.min(THREAD_FIELDS_MAX),
            ..thread
        };
        let object = self.block(
            row.code_object,
            "the size of PyCodeObject",
            OBJECT_BYTES_MAX,
        )?;
        let interpreters_head = runtime_state.pointer(2, "interpreters.head")?;
        let tlbc = row.tlbc.filter(|_| self.is_free_threaded());
        let (frame_tlbc, code_tlbc) = match tlbc {
            Some((in_frame, in_code)) => (
                self.field(in_frame, "tlbc_index", FRAME_BYTES_MAX as u64, 4)?,
                object.pointer(in_code - row.code_object, "co_tlbc")?,
            ),
            None => (NO_FIELD, NO_FIELD),
        };
        let frame = self.frame(row)?;
        let thread_id = row.thread_id - row.thread_state;
        let of_thread = [
            thread.pointer(1, "PyThreadState.prev")?,
            thread.pointer(2, "PyThreadState.next")?,
            thread.pointer(3, "PyThreadState.interp")?,
            thread.pointer(4, "PyThreadState.current_frame")?,
            thread.pointer(thread_id, "PyThreadState.thread_id")?,
        ];
        apart(&of_thread, "a place of two fields of a thread")?;
        let [
            thread_prev,
            thread_next,
            thread_interpreter,
            thread_frame,
            thread_id,
        ] = of_thread;
        let tlbc_end = if frame_tlbc == NO_FIELD {
            0
        } else {
            frame_tlbc + 4
        };
        Ok(PythonLayout {
            interpreters: runtime.wrapping_add(u64::from(interpreters_head)),
            code_type: code.code_type,
            code_mask: row.code_mask,
            interpreter_next: interpreter.far_pointer(2, "PyInterpreterState.next")?,
            interpreter_threads: interpreter.far_pointer(3, "PyInterpreterState.threads.head")?,
            thread_prev,
            thread_next,
            thread_interpreter,
            thread_id,
            thread_frame,
            cframe_frame: NO_FIELD,
            cframe_previous: NO_FIELD,
            frame_bytes: words_up_to(frame.end.max(tlbc_end)),
            frame_previous: frame.previous,
            frame_code: frame.code,
            frame_instruction: frame.instruction,
            instruction_is_address: 1,
            frame_owner: frame.owner,
            shim_owner: SHIM_OWNER,
            frame_is_entry: NO_FIELD,
            frame_tlbc,
            code_begin: code.object_type,
            code_bytes: code.line_table + 8 - code.object_type,
            code_identity: (code.identity - code.object_type) / 8,
            code_instructions: object.pointer(9, "co_code_adaptive")?,
            code_tlbc,
            content_text: 0,
            content_file: 0,
            reserved: 0,
        })
    }

    fn frame(&self, row: &Row) -> Result<FrameFields, ImpossibleOffset> {
        let frame = self.block(
            row.interpreter_frame,
            "the size of _PyInterpreterFrame",
            OBJECT_BYTES_MAX,
        )?;
        let frame = Block {
            bytes: frame.bytes.min(FRAME_BYTES_MAX as u64),
            ..frame
        };
        let (previous, code, instruction) = (
            frame.pointer(1, "_PyInterpreterFrame.previous")?,
            frame.pointer(2, "f_executable")?,
            frame.pointer(3, "instr_ptr")?,
        );
        let owner = self.field(row.interpreter_frame + 5, "owner", frame.bytes, 1)?;
        apart(
            &[previous, code, instruction],
            "a place of two fields of a frame",
        )?;
        let end = previous.max(code).max(instruction) + 8;
        Ok(FrameFields {
            previous,
            code,
            instruction,
            owner,
            end: end.max(owner + 1),
        })
    }

    fn code(&self, row: &Row, code_type: u64) -> Result<CodeLayout, ImpossibleOffset> {
        let header = self.block(row.object, "the size of PyObject", 64)?;
        let object_type = header.pointer(1, "ob_type")?;
        let code = self.block(
            row.code_object,
            "the size of PyCodeObject",
            OBJECT_BYTES_MAX,
        )?;
        let line_table = code.pointer(4, "co_linetable")?;
        // The whole identity lies behind the type, and is read with it.
        let room = line_table.checked_sub(object_type).map(|room| room + 8);
        let identity = line_table
            .checked_sub(8 * 10)
            .map(|_| identity_begin(line_table));
        let identity = identity.filter(|&identity| {
            identity > object_type && room.is_some_and(|room| usize::from(room) <= CODE_BYTES_MAX)
        });
        let Some(identity) = identity else {
            return Err(ImpossibleOffset {
                field: "co_linetable",
                value: u64::from(line_table),
            });
        };
        let within = |at: u16, field| {
            let is_within = (identity..line_table).contains(&at);
            let value = u64::from(at);
            is_within
                .then_some(at)
                .ok_or(ImpossibleOffset { field, value })
        };
        let text = self.text(row)?;
        let bytes = self.block(row.bytes, "the size of PyBytesObject", 256)?;
        Ok(CodeLayout {
            code_type,
            object_type,
            identity,
            first_line: within(
                self.field(row.code_object + 5, "co_firstlineno", code.bytes, 4)?,
                "co_firstlineno",
            )?,
            file: within(code.pointer(1, "co_filename")?, "co_filename")?,
            name: within(code.pointer(2, "co_name")?, "co_name")?,
            qualified_name: Some(within(code.pointer(3, "co_qualname")?, "co_qualname")?),
            line_table,
            lines: LineTableKind::Locations,
            text_length: text.length,
            text_state: text.state,
            text_interned_bits: match self.0[2] {
                0 => 2,
                _ => row.free_threaded_interned_bits,
            },
            text_ascii: text.ascii,
            text_compact: text.compact,
            bytes_size: bytes.pointer(1, "PyVarObject.ob_size")?,
            bytes_data: bytes.pointer(2, "ob_sval")?,
        })
    }

    fn text(&self, row: &Row) -> Result<TextFields, ImpossibleOffset> {
        let whole = self.block(row.unicode, "the size of PyUnicodeObject", 256)?;
        let ascii = whole.pointer(3, "the size of PyASCIIObject")?;
        // `PyCompactUnicodeObject` has two words more, `PyUnicodeObject` one more than that (unicodeobject.h).
        if u64::from(ascii) + 24 != whole.bytes {
            return Err(ImpossibleOffset {
                field: "the size of PyUnicodeObject",
                value: whole.bytes,
            });
        }
        Ok(TextFields {
            state: self.field(row.unicode + 1, "PyASCIIObject.state", u64::from(ascii), 4)?,
            length: whole.pointer(2, "PyASCIIObject.length")?,
            ascii,
            compact: ascii + 16,
        })
    }

    fn block(
        &self,
        begin: usize,
        name: &'static str,
        bytes_max: u64,
    ) -> Result<Block<'_>, ImpossibleOffset> {
        let bytes = self.0.get(begin).copied().unwrap_or_default();
        if !(8..=bytes_max).contains(&bytes) {
            return Err(ImpossibleOffset {
                field: name,
                value: bytes,
            });
        }
        Ok(Block {
            words: self,
            begin,
            bytes,
        })
    }

    /// The offset that a word states, of a field of `width` bytes in something of `bytes` bytes.
    fn field(
        &self,
        word: usize,
        field: &'static str,
        bytes: u64,
        width: u64,
    ) -> Result<u16, ImpossibleOffset> {
        let value = self.0.get(word).copied().unwrap_or(u64::MAX);
        let end = value.checked_add(width);
        let is_possible = end.is_some_and(|end| end <= bytes) && value.is_multiple_of(width);
        u16::try_from(value)
            .ok()
            .filter(|_| is_possible)
            .ok_or(ImpossibleOffset { field, value })
    }
}

/// No two fields are at one place.
fn apart(offsets: &[u16], field: &'static str) -> Result<(), ImpossibleOffset> {
    let mut sorted = offsets.to_vec();
    sorted.sort_unstable();
    let twice = sorted.windows(2).find(|pair| pair[0] == pair[1]);
    twice.map_or(Ok(()), |pair| {
        let value = u64::from(pair[0]);
        Err(ImpossibleOffset { field, value })
    })
}

/// The offsets of the fields of one thing.
struct Block<'o> {
    words: &'o DebugOffsets,
    begin: usize,
    bytes: u64,
}

impl Block<'_> {
    /// The offset of a word of it, which the list has `index` words behind its size.
    fn pointer(&self, index: usize, field: &'static str) -> Result<u16, ImpossibleOffset> {
        self.words.field(self.begin + index, field, self.bytes, 8)
    }

    /// The same in something large.
    fn far_pointer(&self, index: usize, field: &'static str) -> Result<u32, ImpossibleOffset> {
        let value = self.words.0.get(self.begin + index).copied();
        let value = value.unwrap_or(u64::MAX);
        let end = value.checked_add(8);
        let is_possible = end.is_some_and(|end| end <= self.bytes) && value.is_multiple_of(8);
        u32::try_from(value)
            .ok()
            .filter(|_| is_possible)
            .ok_or(ImpossibleOffset { field, value })
    }
}

/// Offsets in a frame.
struct FrameFields {
    previous: u16,
    code: u16,
    instruction: u16,
    owner: u16,
    /// Where the last of them ends.
    end: u16,
}

/// Offsets in a text.
struct TextFields {
    length: u16,
    state: u16,
    ascii: u16,
    compact: u16,
}

#[cfg(test)]
#[path = "debug_offsets_tests.rs"]
pub(super) mod tests;
