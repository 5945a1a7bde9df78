//! Small ELF files made by hand, for the tests of this folder.

use profiler_common::unwind_row::{UnwindRule, cfa};

use super::{CompactTable, compile};
use crate::model::Svma;

/// Where the code of a [`TinyElf`] is loaded.
pub(super) const CODE: u64 = 0x10_0000;
/// Bytes of code. Only headers and call frame information are written to the file.
pub(super) const CODE_BYTES: u64 = 0x10_0000;
/// Where the call frame information is loaded.
const EH_FRAME: u64 = 0x1_0000;
const EH_FRAME_HDR: u64 = 0x8000;

/// Call frame instructions, as bytes (DWARF 5, section 7.24).
pub(super) mod cfi {
    /// The next row begins so many bytes later, below 64.
    pub(in crate::unwind) const fn advance(bytes: u8) -> u8 {
        0x40 | bytes
    }
    /// The next row begins so many bytes later.
    pub(in crate::unwind) fn advance4(bytes: u32) -> Vec<u8> {
        [&[0x04][..], &bytes.to_le_bytes()].concat()
    }
    /// `CFA = CFA's register + offset`, below 128.
    pub(in crate::unwind) const fn def_cfa_offset(offset: u8) -> [u8; 2] {
        [0x0e, offset]
    }
    /// `CFA = register + offset`, below 128.
    pub(in crate::unwind) const fn def_cfa(register: u8, offset: u8) -> [u8; 3] {
        [0x0c, register, offset]
    }
    /// The register was saved at `CFA - 8 * words`.
    pub(in crate::unwind) const fn saved(register: u8, words: u8) -> [u8; 2] {
        [0x80 | register, words]
    }
    /// The CFA is what the expression gives.
    pub(in crate::unwind) fn def_cfa_expression(code: &[u8]) -> Vec<u8> {
        [&[0x0f, code.len() as u8][..], code].concat()
    }
    /// The register was saved where the expression says.
    pub(in crate::unwind) fn expression(register: u8, code: &[u8]) -> Vec<u8> {
        [&[0x10, register, code.len() as u8][..], code].concat()
    }
    /// The register has no value in the caller.
    pub(in crate::unwind) const fn undefined(register: u8) -> [u8; 2] {
        [0x07, register]
    }
}

/// An ELF file with one segment of code and an `.eh_frame` that is reached by `PT_GNU_EH_FRAME`.
#[derive(Clone, Default)]
pub(super) struct TinyElf {
    eh_frame: Vec<u8>,
    /// Where the last shared entry begins.
    shared: usize,
    /// Where the program starts.
    start: u64,
}

impl TinyElf {
    /// With a shared entry that begins as compilers' do: `CFA = rsp + 8`, the return address below it.
    pub(super) fn new() -> Self {
        Self::default().shared(b"zR\0", &[])
    }

    /// Starts at this distance from the begin of the code.
    pub(super) fn start(mut self, offset: u64) -> Self {
        self.start = CODE + offset;
        self
    }

    /// Adds a shared entry (CIE) with this augmentation, zero-terminated, and more instructions.
    pub(super) fn shared(mut self, augmentation: &[u8], more: &[u8]) -> Self {
        self.shared = self.eh_frame.len();
        // Version 1; code factor 1, data factor -8, return address in column 16; pointers relative, 4 bytes, signed.
        let content = [
            &[0, 0, 0, 0, 1],
            augmentation,
            &[1, 0x78, 16, 1, 0x1b, 0x0c, 7, 8, 0x90, 1],
            more,
        ]
        .concat();
        self.entry(&content);
        self
    }

    /// Adds a function's entry (FDE) that uses the last shared one. `begin` counts from [`CODE`].
    pub(super) fn function(mut self, begin: u64, bytes: u32, instructions: &[&[u8]]) -> Self {
        let at = self.eh_frame.len();
        let to_shared = (at + 4 - self.shared) as u32;
        let relative = (CODE + begin).wrapping_sub(EH_FRAME + at as u64 + 8) as u32;
        let head = [
            to_shared.to_le_bytes(),
            relative.to_le_bytes(),
            bytes.to_le_bytes(),
        ]
        .concat();
        self.entry(&[&head[..], &[0], &instructions.concat()].concat());
        self
    }

    /// Adds bytes as they are.
    pub(super) fn raw(mut self, bytes: &[u8]) -> Self {
        self.eh_frame.extend_from_slice(bytes);
        self
    }

    fn entry(&mut self, content: &[u8]) {
        let padding = content.len().wrapping_neg() % 4;
        let length = (content.len() + padding) as u32;
        self.eh_frame.extend_from_slice(&length.to_le_bytes());
        self.eh_frame.extend_from_slice(content);
        self.eh_frame.resize(self.eh_frame.len() + padding, 0);
    }

    /// The same functions in `.debug_frame`, with section headers, and a `.plt` of `plt_bytes` at the end of the code.
    pub(super) fn build_for_debuggers(&self, plt_bytes: u64) -> Vec<u8> {
        let mut file = self.build();
        file[56] = 1; // e_phnum: the code alone
        let names = b"\0.debug_frame\0.shstrtab\0.plt\0";
        let frame_at = file.len() as u64;
        file.extend_from_slice(&self.eh_frame);
        let names_at = file.len() as u64;
        file.extend_from_slice(names);
        file.resize(file.len().next_multiple_of(8), 0);
        let headers_at = file.len() as u64;
        // sh_name, sh_type (PROGBITS, STRTAB), sh_addr, sh_offset, sh_size
        let sections = [
            (0_u32, 0_u32, 0, 0, 0),
            (1, 1, 0, frame_at, self.eh_frame.len() as u64),
            (14, 3, 0, names_at, names.len() as u64),
            (24, 1, CODE + CODE_BYTES - plt_bytes, 0, plt_bytes),
        ];
        for (name, kind, svma, offset, bytes) in sections {
            file.extend([name, kind].map(u32::to_le_bytes).concat());
            file.extend(
                [0, svma, offset, bytes, 0, 1, 0]
                    .map(u64::to_le_bytes)
                    .concat(),
            );
        }
        file[40..48].copy_from_slice(&headers_at.to_le_bytes());
        file[58..64].copy_from_slice(&[64, 0, 4, 0, 2, 0]);
        file
    }

    /// The file's bytes.
    pub(super) fn build(&self) -> Vec<u8> {
        let eh_frame = [&self.eh_frame[..], &[0; 4]].concat();
        let mut file = Vec::new();
        file.extend_from_slice(b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0");
        // e_type (ET_DYN), e_machine, e_version, e_entry, e_phoff, e_shoff
        file.extend_from_slice(&[3, 0, 62, 0, 1, 0, 0, 0]);
        file.extend([self.start, 64, 0].map(u64::to_le_bytes).concat());
        // e_flags, e_ehsize, e_phentsize, e_phnum, e_shentsize, e_shnum, e_shstrndx
        file.extend_from_slice(&[0, 0, 0, 0, 64, 0, 56, 0, 3, 0, 0, 0, 0, 0, 0, 0]);
        let eh_frame_at = 64 + 3 * 56 + 12;
        let programs = [
            (1_u32, 5_u32, 0, CODE, 0x200, CODE_BYTES),
            (
                1,
                4,
                eh_frame_at,
                EH_FRAME,
                eh_frame.len() as u64,
                eh_frame.len() as u64,
            ),
            (0x6474_e550, 4, 64 + 3 * 56, EH_FRAME_HDR, 12, 12),
        ];
        for (kind, flags, offset, svma, file_bytes, memory_bytes) in programs {
            file.extend([kind, flags].map(u32::to_le_bytes).concat());
            file.extend(
                [offset, svma, svma, file_bytes, memory_bytes, 4096]
                    .map(u64::to_le_bytes)
                    .concat(),
            );
        }
        // Version 1, pointer relative, no table.
        file.extend_from_slice(&[1, 0x1b, 0xff, 0xff]);
        file.extend_from_slice(&((EH_FRAME - EH_FRAME_HDR - 4) as u32).to_le_bytes());
        file.extend_from_slice(&[0; 4]);
        file.extend_from_slice(&eh_frame);
        file
    }
}

/// The table of a whole file.
pub(super) fn table(elf: &TinyElf) -> CompactTable {
    compile(&elf.build()).expect("the file is whole").table
}

/// `CFA = rsp + offset`, nothing saved.
pub(super) fn rsp(offset: i32) -> UnwindRule {
    UnwindRule {
        cfa: cfa::RSP,
        cfa_off: offset,
        ..UnwindRule::default()
    }
}

/// A rule without parameters.
pub(super) fn only(kind: u8) -> UnwindRule {
    UnwindRule {
        cfa: kind,
        ..UnwindRule::default()
    }
}

/// The rule at an address that counts from the beginning of the code.
pub(super) fn at(table: &CompactTable, address: u64) -> Option<UnwindRule> {
    table.rule_at(Svma(CODE + address)).copied()
}
