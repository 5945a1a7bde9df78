//! Where one build of CPython keeps what is read of it, as offsets in bytes.

use profiler_common::python::PythonLayout;

/// Everything that is known of the interpreter of one process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interpreter {
    /// What the kernel side reads: frames.
    pub frames: PythonLayout,
    /// What user space reads: code objects.
    pub code: CodeLayout,
    /// `PY_VERSION_HEX`; before 3.11, where a process does not tell, of the minor version only (`0x030a0000`).
    pub version: u32,
}

/// Where a code object has what names it, and how that is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CodeLayout {
    /// Address of `PyCode_Type`, which every code object points at.
    pub code_type: u64,
    /// `PyObject.ob_type`: 8, free-threaded 24.
    pub object_type: u16,
    /// Where the words of [`profiler_common::python::identity`] begin.
    pub identity: u16,
    /// `co_firstlineno`, an `int`.
    pub first_line: u16,
    /// `co_filename`.
    pub file: u16,
    /// `co_name`.
    pub name: u16,
    /// `co_qualname` (since 3.11).
    pub qualified_name: Option<u16>,
    /// `co_linetable`, before 3.10 `co_lnotab`.
    pub line_table: u16,
    /// How that is written.
    pub lines: LineTableKind,
    /// `PyASCIIObject.length`.
    pub text_length: u16,
    /// `PyASCIIObject.state`.
    pub text_state: u16,
    /// Bits of that which say whether the text is interned: those of its kind come behind them.
    pub text_interned_bits: u8,
    /// Where the characters of an ASCII text begin.
    pub text_ascii: u16,
    /// Where those of any other compact text begin.
    pub text_compact: u16,
    /// `PyVarObject.ob_size` of `bytes`.
    pub bytes_size: u16,
    /// Where the bytes begin.
    pub bytes_data: u16,
}

impl CodeLayout {
    /// Code objects do not say which of all they are (`co_version`, since 3.12): their identities have
    /// [contents](profiler_common::python::CONTENTS). Texts lost a field in the same version, by which that is known.
    pub fn has_contents(&self) -> bool {
        self.text_ascii == 48
    }
}

/// How a code object says which line an instruction belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineTableKind {
    /// Up to 3.9: pairs of byte and line deltas (Objects/lnotab_notes.txt).
    Lnotab,
    /// 3.10: pairs of ranges (PEP 626). Instructions are counted in units of two bytes there.
    Ranges,
    /// Since 3.11: locations of variable length (PEP 657, Objects/locations.md).
    Locations,
}
