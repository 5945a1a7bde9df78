//! How to step from a frame to its caller: rows compiled from `.eh_frame`.
//!
//! Text is cut in pages of 4 KiB. A page's rows are sorted; the first one stands at offset 0 of the page and says what
//! is in force there, so that a look-up never needs the page before. A row is one `u32`: the offset in the page (12
//! bits) above the index of an interned [`UnwindRule`] (20 bits). Rows lie in chunks of 64 KiB, because one map value
//! may not be larger than 4 MiB on older kernels (`KMALLOC_MAX_SIZE`), and a page's rows never straddle a chunk.
//!
//! The registers kept on a walk are the instruction, stack and frame pointers, and *where* the five callee-saved ones
//! were saved last: a rule that computes the CFA from `rbx` or `r12`–`r15` is then one read away, and the others pay
//! nothing for it.

/// Bytes of text that one [`Page`] covers.
pub const PAGE_BYTES: u64 = 4096;
/// log2 of [`PAGE_BYTES`].
pub const PAGE_SHIFT: u32 = 12;
/// Rows in one chunk.
pub const CHUNK_ROWS: usize = 16384;
/// Most rows in one page: one for each byte.
pub const PAGE_ROWS_MAX: usize = 4096;
/// Bits of a row that hold the rule's index.
pub const RULE_BITS: u32 = 20;
/// Most mappings of one process; the rest is counted and not unwound.
pub const MAPPINGS_MAX: usize = 512;
/// The rule "nothing is known here".
pub const RULE_NONE: u32 = 0;

/// Makes a row of an offset in its page and a rule index.
#[inline(always)]
pub const fn row(offset_in_page: u32, rule: u32) -> u32 {
    (offset_in_page << RULE_BITS) | rule
}

/// A chunk of rows.
pub type Chunk = [u32; CHUNK_ROWS];

/// Where the rows of one page of text lie.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Chunk number.
    pub chunk: u16,
    /// First row in the chunk.
    pub first: u16,
    /// Number of rows; 0 when nothing is known of the page.
    pub count: u16,
    /// Zero.
    pub reserved: u16,
}

/// How the canonical frame address (CFA: the stack pointer before the call) is found.
pub mod cfa {
    /// No information.
    pub const NONE: u8 = 0;
    /// `CFA = rsp + cfa_off`.
    pub const RSP: u8 = 1;
    /// `CFA = rbp + cfa_off`.
    pub const RBP: u8 = 2;
    /// A PLT entry: `CFA = rsp + 8`, and 8 more when `(rip & 15) >= cfa_off`.
    pub const PLT: u8 = 3;
    /// A signal frame: all registers come from the `ucontext` at `rsp`.
    pub const SIGNAL: u8 = 4;
    /// `CFA = *(rsp + low16(cfa_off)) + high16(cfa_off)`, both signed.
    pub const DEREF_RSP: u8 = 5;
    /// `CFA = *(rbp + low16(cfa_off)) + high16(cfa_off)`, both signed.
    pub const DEREF_RBP: u8 = 6;
    /// The return address is undefined: this is the outermost frame.
    pub const END: u8 = 7;
    /// `CFA = register + cfa_off`, DWARF register number in `reg`: callee-saved ones anywhere, others in a leaf only.
    pub const REG: u8 = 8;
    /// There is unwind information, but of a form that is not supported.
    pub const UNSUPPORTED: u8 = 9;
}

/// How the caller's `rbp` is found.
pub mod bp {
    /// It is unchanged.
    pub const SAME: u8 = 0;
    /// It was saved at `CFA + bp_off`.
    pub const AT_CFA: u8 = 1;
    /// It was saved at `rbp + bp_off` (this frame's `rbp`; realigned stacks).
    pub const AT_RBP: u8 = 2;
}

/// The registers of [`UnwindRule::saved`], as DWARF numbers (x86-64 psABI, figure 3.36): `rbx, r12, r13, r14, r15`.
pub const SAVED_REGISTERS: [u8; 5] = [3, 12, 13, 14, 15];

/// Bits of [`UnwindRule::flags`].
pub mod rule_flags {
    /// CPython's evaluation loop (`_PyEval_EvalFrameDefault`, with its cold part): its frames stand for runs of Python
    /// frames, and their CFAs, which are sent along, say for which.
    pub const EVALUATION_LOOP: u16 = 1;
    /// One of CPython's trampolines.
    pub const TRAMPOLINE: u16 = 2;
}

/// How to find the caller of a frame. The return address always lies at `CFA - 8`.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct UnwindRule {
    /// One of [`cfa`].
    pub cfa: u8,
    /// One of [`bp`].
    pub bp: u8,
    /// DWARF register number for [`cfa::REG`], else 0.
    pub reg: u8,
    /// For each of [`SAVED_REGISTERS`]: it was saved at `CFA - 8 * saved[n]`; 0 when it is unchanged. Places further
    /// than 2040 bytes below the CFA are written as 255: unknown.
    pub saved: [u8; 5],
    /// Meaning depends on `cfa`.
    pub cfa_off: i32,
    /// Meaning depends on `bp`.
    pub bp_off: i16,
    /// Bits of [`rule_flags`]: what the code is, whatever its frames look like.
    pub flags: u16,
}

/// [`UnwindRule::saved`]: saved somewhere that the byte cannot say.
pub const SAVED_UNKNOWN: u8 = 255;

/// What lies at a range of addresses of a process.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappingEntry {
    /// First address.
    pub begin: u64,
    /// One past the last address.
    pub end: u64,
    /// Address minus bias is the virtual address in the ELF file.
    pub bias: u64,
    /// Index of this file's first [`Page`] in the page map.
    pub page_base: u32,
    /// The page number (virtual address >> 12) that `page_base` stands for.
    pub page0: u32,
    /// Number of pages from `page_base` on.
    pub page_count: u32,
    /// One of [`mapping_kind`].
    pub kind: u32,
}

/// [`MappingEntry::begin`] of an unused entry: above every address, and positive as a signed number.
pub const NO_MAPPING: u64 = i64::MAX as u64;

/// What a [`MappingEntry`] is.
pub mod mapping_kind {
    /// A file with rows.
    pub const ROWS: u32 = 0;
    /// Executable memory of no file: only trampolines can be stepped over.
    pub const ANONYMOUS: u32 = 1;
    /// A file without usable unwind information.
    pub const NO_ROWS: u32 = 2;
    /// A file whose rows are being made: samples there carry their stack to user space.
    pub const PENDING: u32 = 3;
}

/// The slot in which there is never anything: of a process whose mappings are not known (yet). Walks there end at once,
/// and carry their stack to user space.
pub const SLOT_EMPTY: u32 = 0;

/// The mappings of one process, or of several that have the same, sorted by `begin`. Never edited while in use: a new
/// slot is written, then published.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ProcessMappings {
    /// How many entries are valid.
    pub count: u32,
    /// Another one for each list that is ever published, so that nothing remembered of one is used with the next.
    pub generation: u32,
    /// The entries; those past `count` have `begin == NO_MAPPING`.
    pub entries: [MappingEntry; MAPPINGS_MAX],
}

impl MappingEntry {
    /// Behind the last one in use.
    pub const UNUSED: Self = Self {
        begin: NO_MAPPING,
        end: 0,
        bias: 0,
        page_base: 0,
        page0: 0,
        page_count: 0,
        kind: 0,
    };
}

impl ProcessMappings {
    /// A list without mappings.
    #[expect(
        clippy::large_stack_arrays,
        reason = "a constant, which user space copies to the heap"
    )]
    pub const EMPTY: Self = Self {
        count: 0,
        generation: 0,
        entries: [MappingEntry::UNUSED; MAPPINGS_MAX],
    };
}

const _: () = assert!(size_of::<Page>() == 8);
const _: () = assert!(size_of::<UnwindRule>() == 16);
const _: () = assert!(size_of::<MappingEntry>() == 40);
const _: () = assert!(size_of::<ProcessMappings>() == 8 + 40 * MAPPINGS_MAX);

// SAFETY: `repr(C)`, integers only, no padding (the sizes are asserted above): any bytes are a value, and its bytes are
// all initialised.
#[cfg(feature = "user")]
unsafe impl aya::Pod for Page {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for UnwindRule {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for MappingEntry {}
// SAFETY: as above.
#[cfg(feature = "user")]
unsafe impl aya::Pod for ProcessMappings {}
