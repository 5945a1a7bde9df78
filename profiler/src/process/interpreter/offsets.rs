//! What CPython 3.8 to 3.12 do not say of themselves: where each has its frames and code objects.
//!
//! From the headers of 3.8.18, 3.9.18, 3.10.13, 3.11.2, 3.11.7, 3.12.1 and 3.12.10 (`Include/internal/pycore_runtime.h`,
//! `pycore_interp.h`, `pycore_frame.h`, `Include/cpython/pystate.h`, `code.h`, `frameobject.h`, `unicodeobject.h`), for
//! x86-64. Within a minor version they do not change. `--with-pydebug` changes none of them, `--with-trace-refs` all that
//! are in objects: [`super::check`] tells.

use profiler_common::python::{IDENTITY_WORDS, NO_FIELD, PythonLayout};

use super::{CodeLayout, Interpreter, LineTableKind};

/// `PyObject.ob_type`.
const OBJECT_TYPE: u16 = 8;

/// Frames since 3.11 that are none have this `owner` or a greater one (`FRAME_OWNED_BY_CSTACK` in 3.12 and 3.13,
/// `FRAME_OWNED_BY_INTERPRETER` since 3.14; `enum _frameowner`, Include/internal/pycore_frame.h).
pub(super) const SHIM_OWNER: u16 = 3;

/// Bytes of an object up to the end of a field, in whole words.
pub(super) const fn words_up_to(end: u16) -> u16 {
    end.next_multiple_of(8)
}

/// Where the identity of a code object begins: it ends with the line table.
pub(super) const fn identity_begin(line_table: u16) -> u16 {
    line_table + 8 - 8 * IDENTITY_WORDS as u16
}

/// What differs between the versions, as offsets in bytes.
struct Row {
    /// `_PyRuntime.interpreters.head`
    interpreters_head: u64,
    /// `PyInterpreterState.tstate_head`, since 3.11 `.threads.head`
    threads_head: u32,
    /// `PyThreadState.thread_id`
    thread_id: u16,
    /// `PyThreadState.frame`, since 3.11 `.cframe`
    thread_frame: u16,
    /// `_PyCFrame.current_frame` and `.previous`
    cframe: Option<(u16, u16)>,
    /// `PyFrameObject.f_back`, since 3.11 `_PyInterpreterFrame.previous`
    frame_previous: u16,
    /// `f_code`
    frame_code: u16,
    /// `f_lasti`, since 3.11 `prev_instr`
    frame_instruction: u16,
    /// `owner`
    frame_owner: Option<u16>,
    /// `is_entry`
    frame_is_entry: Option<u16>,
    /// `PyCodeObject.co_firstlineno`
    first_line: u16,
    /// `co_filename`; `co_name`, `co_qualname` where there is one, and the line table come right behind it
    file: u16,
    /// `co_code_adaptive`
    instructions: Option<u16>,
    lines: LineTableKind,
    /// `sizeof(PyASCIIObject)` and `sizeof(PyCompactUnicodeObject)`
    text: (u16, u16),
}

const PYTHON_3_8: Row = Row {
    interpreters_head: 32,
    threads_head: 8,
    thread_id: 176,
    thread_frame: 24,
    cframe: None,
    frame_previous: 24,
    frame_code: 32,
    frame_instruction: 104,
    frame_owner: None,
    frame_is_entry: None,
    first_line: 40,
    file: 104,
    instructions: None,
    lines: LineTableKind::Lnotab,
    text: (48, 72),
};

const PYTHON_3_10: Row = Row {
    frame_instruction: 96,
    lines: LineTableKind::Ranges,
    ..PYTHON_3_8
};

const PYTHON_3_11: Row = Row {
    interpreters_head: 40,
    threads_head: 16,
    thread_id: 152,
    thread_frame: 56,
    cframe: Some((8, 16)),
    frame_previous: 48,
    frame_code: 32,
    frame_instruction: 56,
    frame_owner: Some(69),
    frame_is_entry: Some(68),
    first_line: 72,
    file: 112,
    instructions: Some(184),
    lines: LineTableKind::Locations,
    text: (48, 72),
};

const PYTHON_3_12: Row = Row {
    interpreters_head: 40,
    threads_head: 72,
    thread_id: 136,
    thread_frame: 56,
    cframe: Some((0, 8)),
    frame_previous: 8,
    frame_code: 0,
    frame_instruction: 56,
    frame_owner: Some(70),
    frame_is_entry: None,
    first_line: 68,
    file: 112,
    instructions: Some(192),
    lines: LineTableKind::Locations,
    text: (40, 56),
};

/// The layout of a version from 3.8 to 3.12, with the GIL that all of them have. `runtime` and `code_type` are addresses
/// in the process; `version` is as in [`Interpreter`].
pub(crate) fn built_in(
    minor: u8,
    runtime: u64,
    code_type: u64,
    version: u32,
) -> Option<Interpreter> {
    let row = match minor {
        8 | 9 => PYTHON_3_8,
        10 => PYTHON_3_10,
        11 => PYTHON_3_11,
        12 => PYTHON_3_12,
        _ => return None,
    };
    Some(Interpreter {
        frames: row.frames(runtime, code_type),
        code: row.code(code_type),
        version,
    })
}

impl Row {
    fn line_table(&self) -> u16 {
        self.file + if self.has_qualified_names() { 24 } else { 16 }
    }

    /// `co_qualname` came with `co_code_adaptive`, in 3.11.
    const fn has_qualified_names(&self) -> bool {
        self.instructions.is_some()
    }

    fn frames(&self, runtime: u64, code_type: u64) -> PythonLayout {
        let has_contents = self.code(code_type).has_contents();
        let line_table = self.line_table();
        let ends = [
            Some(self.frame_instruction + 8),
            self.frame_owner.map(|at| at + 1),
            self.frame_is_entry.map(|at| at + 1),
        ];
        PythonLayout {
            interpreters: runtime.wrapping_add(self.interpreters_head),
            code_type,
            code_mask: u64::MAX,
            interpreter_next: 0,
            interpreter_threads: self.threads_head,
            thread_prev: 0,
            thread_next: 8,
            thread_interpreter: 16,
            thread_id: self.thread_id,
            thread_frame: self.thread_frame,
            cframe_frame: self.cframe.map_or(NO_FIELD, |(frame, _)| frame),
            cframe_previous: self.cframe.map_or(NO_FIELD, |(_, previous)| previous),
            frame_bytes: words_up_to(ends.into_iter().flatten().max().unwrap_or_default()),
            frame_previous: self.frame_previous,
            frame_code: self.frame_code,
            frame_instruction: self.frame_instruction,
            instruction_is_address: u16::from(self.instructions.is_some()),
            frame_owner: self.frame_owner.unwrap_or(NO_FIELD),
            shim_owner: self.frame_owner.map_or(NO_FIELD, |_| SHIM_OWNER),
            frame_is_entry: self.frame_is_entry.unwrap_or(NO_FIELD),
            frame_tlbc: NO_FIELD,
            code_begin: OBJECT_TYPE,
            code_bytes: line_table + 8 - OBJECT_TYPE,
            code_identity: (identity_begin(line_table) - OBJECT_TYPE) / 8,
            code_instructions: self.instructions.unwrap_or(NO_FIELD),
            code_tlbc: NO_FIELD,
            content_text: if has_contents { self.text.0 } else { 0 },
            content_file: (self.file - identity_begin(line_table)) / 8,
            reserved: 0,
        }
    }

    fn code(&self, code_type: u64) -> CodeLayout {
        CodeLayout {
            code_type,
            object_type: OBJECT_TYPE,
            identity: identity_begin(self.line_table()),
            first_line: self.first_line,
            file: self.file,
            name: self.file + 8,
            qualified_name: self.has_qualified_names().then_some(self.file + 16),
            line_table: self.line_table(),
            lines: self.lines,
            text_length: 16,
            text_state: 32,
            text_interned_bits: 2,
            text_ascii: self.text.0,
            text_compact: self.text.1,
            bytes_size: 16,
            bytes_data: 32,
        }
    }
}

#[cfg(test)]
mod tests {
    use profiler_common::python::{CODE_BYTES_MAX, FRAME_BYTES_MAX};

    use super::*;

    fn all() -> impl Iterator<Item = Interpreter> {
        (8..=12).filter_map(|minor| built_in(minor, 0x1000, 0x2000, 0))
    }

    #[test]
    fn there_is_a_layout_for_each_version_that_does_not_describe_itself() {
        assert_eq!(all().count(), 5);
        for minor in [0, 7, 13, 255] {
            assert_eq!(built_in(minor, 0x1000, 0x2000, 0), None);
        }
    }

    #[test]
    fn every_layout_keeps_what_is_promised_of_layouts() {
        for Interpreter { frames, code, .. } in all() {
            assert!(usize::from(frames.frame_bytes) <= FRAME_BYTES_MAX);
            for at in [
                frames.frame_previous,
                frames.frame_code,
                frames.frame_instruction,
            ] {
                assert!(at.is_multiple_of(8) && at + 8 <= frames.frame_bytes);
            }
            let read = usize::from(frames.code_bytes);
            assert!(read.is_multiple_of(8) && read <= CODE_BYTES_MAX);
            assert_eq!(
                usize::from(frames.code_identity) + IDENTITY_WORDS,
                read / 8,
                "the identity ends what is read"
            );
            assert_eq!(frames.code_begin + frames.code_bytes, code.line_table + 8);
            assert_eq!(frames.code_begin + 8 * frames.code_identity, code.identity);
            for at in [code.first_line, code.file, code.name] {
                assert!((code.identity..code.line_table).contains(&at));
            }
            let has_adaptive_code = frames.instruction_is_address == 1;
            assert_eq!(has_adaptive_code, frames.code_instructions != NO_FIELD);
            assert_eq!(has_adaptive_code, code.qualified_name.is_some());
        }
    }
}
