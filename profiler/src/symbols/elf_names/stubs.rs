//! Jump stubs of the linker (the procedure linkage table), named by what they jump to.
//!
//! A stub reads the address to jump to out of a slot (of the global offset table), and a relocation says whose address
//! the dynamic loader stores in that slot. A stub of the kind that loads the address late may have only the number of
//! that relocation in it. Stubs of x86-64 are taken apart; those of other machines have no names.

use std::ops::Range;

use object::elf;

use super::{Section, input::NameRef, is_stub_section, symbols::Dynamic};
use crate::process::{u16_at, u32_at, u64_at};

/// Most relocations of slots that are kept of a file. The largest libraries have some 30,000.
const RELOCATIONS_MAX: usize = 1 << 18;

/// Bytes of jump stubs that are kept of a file: as many stubs as relocations.
const STUB_BYTES_MAX: usize = 4 << 20;

/// Bytes of a stub, unless its section says otherwise.
const STUB_BYTES: u64 = 16;

/// Longest stub.
const STUB_BYTES_LONGEST: u64 = 64;

const RELOCATION_BYTES: usize = 24;

/// The stubs of a file.
#[derive(Debug, Default)]
pub(super) struct Stubs {
    sections: Vec<StubSection>,
    /// What is in each slot, in ascending order of the slots' addresses.
    slots: Vec<(u64, Target)>,
    /// What each relocation of `.rela.plt` is for, by its number.
    numbered: Vec<Option<Target>>,
}

/// What a stub jumps to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// A function of this name, which may be in another file.
    Named(NameRef),
    /// The function of this file that begins there, or that chooses the function (`STT_GNU_IFUNC`).
    Address(u64),
}

/// A stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stub {
    /// Its first address.
    pub(super) start: u64,
    /// `None`: not known, or none, as of the stub that calls the dynamic loader.
    pub(super) target: Option<Target>,
}

#[derive(Debug)]
struct StubSection {
    range: Range<u64>,
    stub_bytes: u64,
    bytes: Box<[u8]>,
}

impl Stubs {
    /// Reads the sections of stubs, and the relocations of the slots. `dynamic`: the symbols that these refer to.
    pub(super) fn read(
        file: &[u8],
        sections: &[Section<'_>],
        dynamic: Option<Dynamic<'_>>,
    ) -> Self {
        let mut stubs = Self::default();
        if u16_at(file, 18) != elf::EM_X86_64 {
            return stubs;
        }
        let mut bytes_left = STUB_BYTES_MAX;
        for section in sections.iter().filter(|section| is_stub_section(section)) {
            // A section whose bytes are missing still has no symbols of functions in it.
            let bytes = Some(section.bytes).filter(|bytes| bytes.len() <= bytes_left);
            let bytes = bytes.unwrap_or_default();
            bytes_left -= bytes.len();
            stubs.sections.push(StubSection {
                range: section.range.clone(),
                stub_bytes: stub_bytes(section),
                bytes: bytes.into(),
            });
        }
        if !stubs.sections.is_empty() {
            stubs.read_relocations(sections, dynamic);
        }
        stubs
    }

    /// The stub that an address is in.
    pub(super) fn at(&self, address: u64) -> Option<Stub> {
        let section = self
            .sections
            .iter()
            .find(|section| section.range.contains(&address))?;
        let offset = address - section.range.start;
        let offset = offset - offset % section.stub_bytes;
        let start = section.range.start + offset;
        let begin = usize::try_from(offset).unwrap_or(usize::MAX);
        let code = section.bytes.get(begin..).unwrap_or_default();
        let code = &code[..code.len().min(section.stub_bytes as usize)];
        let target = match take_apart(code, start) {
            Some(Jump::Slot(slot)) => {
                let index = self.slots.binary_search_by_key(&slot, |&(at, _)| at);
                index.ok().map(|index| self.slots[index].1)
            }
            Some(Jump::Number(number)) => self.numbered.get(number as usize).copied().flatten(),
            None => None,
        };
        Some(Stub { start, target })
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn bytes(&self) -> usize {
        let code: usize = self
            .sections
            .iter()
            .map(|section| section.bytes.len())
            .sum();
        code + size_of_val(&*self.slots) + size_of_val(&*self.numbered)
    }

    fn read_relocations(&mut self, sections: &[Section<'_>], dynamic: Option<Dynamic<'_>>) {
        let slots: Vec<_> = sections
            .iter()
            .filter(|it| it.is_called(b".got") || it.is_called(b".got.plt"))
            .map(|it| it.range.clone())
            .collect();
        for section in sections.iter().filter(|it| it.kind == elf::SHT_RELA) {
            let is_numbered = section.is_called(b".rela.plt") && self.numbered.is_empty();
            for relocation in section.bytes.chunks_exact(RELOCATION_BYTES) {
                if self.slots.len() >= RELOCATIONS_MAX || self.numbered.len() >= RELOCATIONS_MAX {
                    break;
                }
                let (slot, kind) = (u64_at(relocation, 0), u32_at(relocation, 8));
                let (symbol, addend) = (u32_at(relocation, 12), u64_at(relocation, 16));
                let target = match kind {
                    elf::R_X86_64_JUMP_SLOT | elf::R_X86_64_GLOB_DAT => {
                        dynamic.and_then(|it| it.name(symbol)).map(Target::Named)
                    }
                    elf::R_X86_64_IRELATIVE => Some(Target::Address(addend)),
                    elf::R_X86_64_RELATIVE if slots.iter().any(|it| it.contains(&slot)) => {
                        Some(Target::Address(addend))
                    }
                    _ => None,
                };
                self.slots.extend(target.map(|target| (slot, target)));
                if is_numbered {
                    self.numbered.push(target);
                }
            }
        }
        self.slots.sort_by_key(|&(slot, _)| slot);
    }
}

/// Bytes of each stub of a section. Not every linker says so in its header.
fn stub_bytes(section: &Section<'_>) -> u64 {
    let stated = section.entry_bytes;
    if (8..=STUB_BYTES_LONGEST).contains(&stated) && stated.is_power_of_two() {
        return stated;
    }
    // `jmp *slot(%rip)` twice in 16 bytes.
    let are_short = |bytes: &[u8]| {
        let jump = [0xff, 0x25];
        bytes.starts_with(&jump) && bytes.get(8..).is_some_and(|rest| rest.starts_with(&jump))
    };
    if section.is_called(b".plt.got") && are_short(section.bytes) {
        return 8;
    }
    STUB_BYTES
}

/// Where a stub takes the address from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Jump {
    /// From the slot at this address.
    Slot(u64),
    /// From the slot of the relocation with this number, which is passed to the dynamic loader.
    Number(u32),
}

/// Reads a stub's instructions. `start`: the address of the first.
fn take_apart(code: &[u8], start: u64) -> Option<Jump> {
    let mut number = None;
    let mut at = 0;
    loop {
        let rest = code.get(at..).unwrap_or_default();
        let operand = |offset: usize| {
            let bytes = rest.get(offset..)?.first_chunk()?;
            Some(i32::from_le_bytes(*bytes))
        };
        // Relative to the next instruction.
        let slot = |length: usize| {
            let next = start.wrapping_add((at + length) as u64);
            let distance = operand(length - 4)?;
            Some(Jump::Slot(next.wrapping_add_signed(distance.into())))
        };
        at += match rest {
            // jmp *slot(%rip)
            [0xff, 0x25, ..] => return slot(6),
            // mov slot(%rip), %r11, as retpolines do
            [0x4c, 0x8b, 0x1d, ..] => return slot(7),
            // endbr64
            [0xf3, 0x0f, 0x1e, 0xfa, ..] => 4,
            // bnd, notrack
            [0xf2 | 0x3e, ..] => 1,
            // push $number
            [0x68, ..] => {
                number = Some(Jump::Number(operand(1)? as u32));
                5
            }
            // mov $number, %r11d
            [0x41, 0xbb, ..] => 6,
            _ => return number,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stubs_of_all_linkers_are_taken_apart() {
        let cases: [(&[u8], Option<Jump>); 8] = [
            // GNU ld: jmp *0x10(%rip); push $3; jmp first
            (
                b"\xff\x25\x10\0\0\0\x68\x03\0\0\0\xe9\0\0\0\0",
                Some(Jump::Slot(0x1016)),
            ),
            // GNU ld, -z ibtplt, `.plt`: endbr64; push $3; bnd jmp first
            (
                b"\xf3\x0f\x1e\xfa\x68\x03\0\0\0\xf2\xe9\0\0\0\0\x90",
                Some(Jump::Number(3)),
            ),
            // The same, `.plt.sec`: endbr64; bnd jmp *0x10(%rip)
            (
                b"\xf3\x0f\x1e\xfa\xf2\xff\x25\x10\0\0\0\x0f\x1f\x44\0\0",
                Some(Jump::Slot(0x101b)),
            ),
            // `.plt.got`: jmp *-0x10(%rip); xchg %ax,%ax
            (b"\xff\x25\xf0\xff\xff\xff\x66\x90", Some(Jump::Slot(0xff6))),
            // mold: endbr64; mov $3, %r11d; jmp *0x10(%rip)
            (
                b"\xf3\x0f\x1e\xfa\x41\xbb\x03\0\0\0\xff\x25\x10\0\0\0",
                Some(Jump::Slot(0x1020)),
            ),
            // lld, -z retpolineplt: mov 0x10(%rip), %r11
            (
                b"\x4c\x8b\x1d\x10\0\0\0\xe8\0\0\0\0",
                Some(Jump::Slot(0x1017)),
            ),
            // The first stub: push table(%rip); jmp *loader(%rip)
            (b"\xff\x35\x10\0\0\0\xff\x25\x10\0\0\0\x0f\x1f\x40\0", None),
            (b"\xff\x25\x10", None),
        ];
        for (code, expected) in cases {
            assert_eq!(take_apart(code, 0x1000), expected, "{code:02x?}");
        }
    }
}
