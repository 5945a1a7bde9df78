//! Frames of the Python interpreter: where the kernel side finds them, and how they lie in a sample.
//!
//! No version number crosses the wire: a [`PythonLayout`] says at which offsets one process keeps what is read.
//! `process/interpreter/` in user space makes it, and has tried it out on that process.
//!
//! A frame takes [`FRAME_WORDS`] words, innermost first. The first holds an address in its lower 48 bits and one of
//! [`entry`] in the upper 8; see there for the second.

/// Most words of interpreter frames in one sample.
pub const PYTHON_WORDS_MAX: usize = 2048;
/// Words of one entry.
pub const FRAME_WORDS: usize = 2;
/// Bits of an entry's first word that hold its address.
pub const ADDRESS_BITS: u32 = 48;
/// Where in an entry's first word its kind stands, one of [`entry`].
pub const KIND_SHIFT: u32 = 56;
/// Words of a code object that tell it from every other one: the last of them is `co_linetable` (`co_lnotab` before
/// 3.10). They hold what never changes in it: sizes, first line, name, file, tables.
pub const IDENTITY_WORDS: usize = 11;
/// Most bytes that are read of a frame.
pub const FRAME_BYTES_MAX: usize = 128;
/// Most bytes that are read of a code object.
pub const CODE_BYTES_MAX: usize = 144;
/// Most states of one thread that are followed: it has one in each (sub)interpreter that it runs.
pub const THREAD_STATES_MAX: usize = 4;

/// [`PythonLayout`]: this version has no such field.
pub const NO_FIELD: u16 = u16::MAX;

/// What an entry is.
pub mod entry {
    /// A frame. Address: its code object. Second word: the instruction in the lower half (`i32`: bytes from
    /// `co_code_adaptive` on, or `f_lasti` as it is; [`NO_INSTRUCTION`](super::NO_INSTRUCTION)), the identity of the
    /// code object in the upper half ([`identity`](super::identity)).
    pub const FRAME: u64 = 0;
    /// The frames before this one were called by C code through one activation of the interpreter's loop, which has
    /// something on the stack at this address (3.11: its `_PyCFrame`, since 3.12: a frame that is none). Second word: 0.
    pub const SHIM: u64 = 1;
    /// The frames that follow are those of another state of the thread, which lies at this address. Second word: 0.
    pub const THREAD_STATE: u64 = 2;
}

/// The frame's instruction lies outside of its code: its line is not known.
pub const NO_INSTRUCTION: i32 = i32::MIN;

/// How reading the interpreter's frames ended.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PythonEnd {
    /// Nothing was read: the process has no interpreter that is known.
    NotRead = 0,
    /// All frames are there.
    Whole = 1,
    /// The thread has no thread state: it runs no Python.
    NoThreadState = 2,
    /// The thread's state was not found among the first ones of a long list.
    NotFound = 3,
    /// A frame, or its code object, could not be read.
    ReadFault = 4,
    /// What a frame points at is no code object: the sample hit the interpreter between two stores.
    NotCode = 5,
    /// More frames than [`PYTHON_WORDS_MAX`] has room for.
    DepthLimit = 6,
}

/// Number of [`PythonEnd`] values.
pub const PYTHON_ENDS: usize = 7;

impl PythonEnd {
    /// All values in order of their numbers.
    pub const ALL: [Self; PYTHON_ENDS] = [
        Self::NotRead,
        Self::Whole,
        Self::NoThreadState,
        Self::NotFound,
        Self::ReadFault,
        Self::NotCode,
        Self::DepthLimit,
    ];
}

/// Where a process keeps its interpreter's frames: addresses in it, and offsets in bytes. All zero: nowhere.
///
/// `frame`: `PyFrameObject` up to 3.10, `_PyInterpreterFrame` since.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PythonLayout {
    /// Address of the pointer to the newest interpreter state (`_PyRuntime.interpreters.head`); 0: there is nothing to
    /// read.
    pub interpreters: u64,
    /// Address of `PyCode_Type`.
    pub code_type: u64,
    /// What of a frame's pointer to its code is an address: all bits, or all but the two of a tag (3.14 and later).
    pub code_mask: u64,
    /// `PyInterpreterState.next`.
    pub interpreter_next: u32,
    /// `PyInterpreterState.threads.head`, the newest thread state.
    pub interpreter_threads: u32,
    /// `PyThreadState.prev`.
    pub thread_prev: u16,
    /// `PyThreadState.next`.
    pub thread_next: u16,
    /// `PyThreadState.interp`.
    pub thread_interpreter: u16,
    /// `PyThreadState.thread_id`: `pthread_self()`.
    pub thread_id: u16,
    /// `PyThreadState.frame`, `.cframe` (3.11, 3.12) or `.current_frame`.
    pub thread_frame: u16,
    /// `_PyCFrame.current_frame` (3.11, 3.12), else [`NO_FIELD`].
    pub cframe_frame: u16,
    /// `_PyCFrame.previous` (3.11, 3.12), else [`NO_FIELD`].
    pub cframe_previous: u16,
    /// Bytes to read of a frame, at most [`FRAME_BYTES_MAX`]: a frame may end where its memory does.
    pub frame_bytes: u16,
    /// The frame's caller (`f_back`, `previous`). A multiple of 8.
    pub frame_previous: u16,
    /// Its code object (`f_code`, `f_executable`). A multiple of 8.
    pub frame_code: u16,
    /// Its instruction (`f_lasti`, `prev_instr`, `instr_ptr`). A multiple of 8.
    pub frame_instruction: u16,
    /// 1: that is an address (since 3.11); 0: it is a number (`int`), sent as it is.
    pub instruction_is_address: u16,
    /// `owner`, a byte, or [`NO_FIELD`].
    pub frame_owner: u16,
    /// Owners from this number on are shims (see [`entry::SHIM`]).
    pub shim_owner: u16,
    /// `is_entry`, a byte (3.11), or [`NO_FIELD`].
    pub frame_is_entry: u16,
    /// `tlbc_index`, an `int` (free-threaded 3.14 and later), or [`NO_FIELD`].
    pub frame_tlbc: u16,
    /// Where in a code object reading begins: at `ob_type`, its first word.
    pub code_begin: u16,
    /// Bytes read from there on, a multiple of 8, at most [`CODE_BYTES_MAX`].
    pub code_bytes: u16,
    /// Index, among the words read, of the first of [`IDENTITY_WORDS`].
    pub code_identity: u16,
    /// `co_code_adaptive` (since 3.11).
    pub code_instructions: u16,
    /// `co_tlbc` (free-threaded 3.14 and later), or [`NO_FIELD`].
    pub code_tlbc: u16,
    /// Where the characters of an ASCII text begin, if identities have [contents](CONTENTS) (up to 3.11); else 0.
    pub content_text: u16,
    /// For those: which of the identity's words is `co_filename`.
    pub content_file: u16,
    /// Zero.
    pub reserved: u16,
}

impl PythonLayout {
    /// There is nothing to read.
    pub const NONE: Self = Self {
        interpreters: 0,
        code_type: 0,
        code_mask: 0,
        interpreter_next: 0,
        interpreter_threads: 0,
        thread_prev: 0,
        thread_next: 0,
        thread_interpreter: 0,
        thread_id: 0,
        thread_frame: 0,
        cframe_frame: NO_FIELD,
        cframe_previous: NO_FIELD,
        frame_bytes: 0,
        frame_previous: 0,
        frame_code: 0,
        frame_instruction: 0,
        instruction_is_address: 0,
        frame_owner: NO_FIELD,
        shim_owner: 0,
        frame_is_entry: NO_FIELD,
        frame_tlbc: NO_FIELD,
        code_begin: 0,
        code_bytes: 0,
        code_identity: 0,
        code_instructions: 0,
        code_tlbc: NO_FIELD,
        content_text: 0,
        content_file: 0,
        reserved: 0,
    };
}

/// A thread of a process, by which its state is remembered.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ThreadKey {
    /// `pthread_self()`: the thread pointer.
    pub thread_pointer: u64,
    /// The process, as seen from pyprof-bpf's own pid namespace.
    pub tgid: u32,
    /// Zero.
    pub reserved: u32,
}

/// What is remembered of a thread.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadState {
    /// Address of its `PyThreadState`; 0: it had none.
    pub state: u64,
    /// For one that had none: the newest thread state of the process then. As long as that is the newest, it has none.
    pub newest: u64,
}

const _: () = assert!(size_of::<PythonLayout>() == 80);
const _: () = assert!(size_of::<ThreadKey>() == 16 && size_of::<ThreadState>() == 16);

/// The identity of a code object, from its [`IDENTITY_WORDS`]. Two objects that differ in one of them have the same one
/// time in 2^32.
#[inline(always)]
pub const fn identity(words: &[u64; IDENTITY_WORDS]) -> u32 {
    let mut hash = 0;
    let mut index = 0;
    while index < IDENTITY_WORDS {
        hash = mix(hash, words[index]);
        index += 1;
    }
    (hash >> 32) as u32
}

/// Up to 3.11 nothing in a code object says which of all it is (`co_version`, since 3.12), and a program that compiles the
/// same things again and again gets the same addresses again and again: then file, name and line table count with their
/// lengths and ends, too.
pub const CONTENTS: usize = 3;
/// Which of the identity's words is the name (`co_name`, in 3.11 `co_qualname`), and which the line table.
pub const CONTENT_NAME: usize = IDENTITY_WORDS - 2;
/// See [`CONTENT_NAME`].
pub const CONTENT_TABLE: usize = IDENTITY_WORDS - 1;
/// Where a text and a `bytes` have their length (`PyASCIIObject`, `PyVarObject`).
pub const CONTENT_LENGTH_AT: u64 = 16;
/// Where the bytes of a `bytes` begin (`PyBytesObject`).
pub const CONTENT_BYTES: u64 = 32;

/// Where in an object its last eight bytes are, if its data begin at `data`; those of a shorter one begin there.
#[inline(always)]
pub const fn content_end(data: u64, length: u64) -> u64 {
    const LENGTH_MAX: u64 = 1 << 24;
    if length < 8 || length > LENGTH_MAX {
        data
    } else {
        data + length - 8
    }
}

/// [`identity`] with the lengths and ends of file, name and line table.
#[inline(always)]
pub const fn identity_with(words: &[u64; IDENTITY_WORDS], contents: &[[u64; 2]; CONTENTS]) -> u32 {
    let mut hash = 0;
    let mut index = 0;
    while index < IDENTITY_WORDS {
        hash = mix(hash, words[index]);
        index += 1;
    }
    let mut index = 0;
    while index < CONTENTS {
        hash = mix(mix(hash, contents[index][0]), contents[index][1]);
        index += 1;
    }
    (hash >> 32) as u32
}

/// One step of [`identity`].
#[inline(always)]
pub const fn mix(hash: u64, word: u64) -> u64 {
    // 2^64 divided by the golden ratio: the upper bits of the product depend on all bits below them. The shift brings
    // them down again, so that the next step spreads them further.
    let product = (hash ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    product ^ (product >> 29)
}

// SAFETY: `repr(C)`, integers only, no padding (the size is asserted above): any bytes are a value, and its bytes are
// all initialised.
#[cfg(feature = "user")]
unsafe impl aya::Pod for PythonLayout {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ThreadKey {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ThreadState {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_counts_and_so_does_its_place() {
        let words: [u64; IDENTITY_WORDS] =
            core::array::from_fn(|n| 0x7f00_1234_5000 + 64 * n as u64);
        let hash = identity(&words);
        for n in 0..IDENTITY_WORDS {
            for bit in 0..64 {
                let mut other = words;
                other[n] ^= 1 << bit;
                assert_ne!(identity(&other), hash, "bit {bit} of word {n}");
            }
        }
        let mut swapped = words;
        swapped.swap(3, 4);
        assert_ne!(identity(&swapped), hash);
    }
}
