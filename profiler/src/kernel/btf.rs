//! Offsets in kernel structures, from the kernel's own type information (Documentation/bpf/btf.rst).
//!
//! For what no helper gives: where a process keeps its ids and its CPU time, and on kernels before 5.15 the user
//! registers. Rust programs cannot carry relocations, and aya keeps the members of BTF types to itself.

use std::{fs, io};

const BTF_MAGIC: u16 = 0xeb9f;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;

/// The kernel's BTF, with what of it can be asked here.
#[derive(Debug)]
pub(super) struct Btf {
    data: Vec<u8>,
    types: usize,
    types_end: usize,
    strings: usize,
}

impl Btf {
    /// Reads `/sys/kernel/btf/vmlinux` (`CONFIG_DEBUG_INFO_BTF`): a few MiB, some ten milliseconds.
    pub(super) fn of_kernel() -> io::Result<Self> {
        Self::parse(fs::read("/sys/kernel/btf/vmlinux")?).ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                "/sys/kernel/btf/vmlinux is not BTF",
            )
        })
    }

    fn parse(data: Vec<u8>) -> Option<Self> {
        let word =
            |at: usize| Some(u32::from_le_bytes(data.get(at..at + 4)?.try_into().ok()?) as usize);
        if data.get(..2)? != BTF_MAGIC.to_le_bytes() {
            return None;
        }
        let header = word(4)?;
        let types = header.checked_add(word(8)?)?;
        let types_end = types.checked_add(word(12)?)?;
        let strings = header.checked_add(word(16)?)?;
        (types_end <= data.len() && strings <= data.len()).then_some(Self {
            data,
            types,
            types_end,
            strings,
        })
    }

    /// Offset in bytes of a member of a structure, looked for by name, also in unnamed ones inside it.
    pub(super) fn member_offset(&self, structure: &str, member: &str) -> Option<u32> {
        self.walk(|kind, name, members| {
            let wanted = kind == KIND_STRUCT && self.string(name) == Some(structure.as_bytes());
            wanted.then(|| {
                members.chunks_exact(12).find_map(|entry| {
                    let word = |at: usize| {
                        u32::from_le_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]])
                    };
                    // The upper byte is a bit-field's size when the structure has any.
                    (self.string(word(0)) == Some(member.as_bytes()))
                        .then(|| (word(8) & 0x00ff_ffff) / 8)
                })
            })?
        })
    }

    /// The same of several members; `None` when one of them is missing.
    pub(super) fn member_offsets<const N: usize>(
        &self,
        structure: &str,
        members: [&str; N],
    ) -> Option<[u32; N]> {
        let mut offsets = [0; N];
        for (offset, member) in offsets.iter_mut().zip(members) {
            *offset = self.member_offset(structure, member)?;
        }
        Some(offsets)
    }

    /// Calls `each` with kind, name and extra bytes of every type until it gives something.
    fn walk<R>(&self, mut each: impl FnMut(u32, u32, &[u8]) -> Option<R>) -> Option<R> {
        let mut at = self.types;
        while at + 12 <= self.types_end {
            let word = |at: usize| {
                self.data
                    .get(at..at + 4)
                    .map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            };
            let (name, info) = (word(at)?, word(at + 4)?);
            let (kind, count) = ((info >> 24) & 0x1f, (info & 0xffff) as usize);
            let extra = match kind {
                1 | 14 | 17 => 4,                                 // int, variable, declaration tag
                3 => 12,                                          // array
                KIND_STRUCT | KIND_UNION | 15 | 19 => count * 12, // structure, union, data section, 64-bit enum
                6 | 13 => count * 8,                              // enum, function prototype
                _ => 0,
            };
            let members = self.data.get(at + 12..at + 12 + extra)?;
            if let Some(found) = each(kind, name, members) {
                return Some(found);
            }
            at += 12 + extra;
        }
        None
    }

    fn string(&self, offset: u32) -> Option<&[u8]> {
        let rest = self.data.get(self.strings + offset as usize..)?;
        rest.split(|&byte| byte == 0).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_task_struct_has_a_stack() {
        // Kernels without it have no test of this either: the file is what is read.
        let Ok(btf) = Btf::of_kernel() else { return };
        let offset = btf
            .member_offset("task_struct", "stack")
            .expect("every kernel has it");
        assert!(offset > 0 && offset < 4096, "{offset}");
        assert_eq!(btf.member_offset("no_such_struct", "stack"), None);
    }

    #[test]
    fn damaged_bytes_are_no_btf() {
        assert!(Btf::parse(vec![0; 64]).is_none());
        let mut short = vec![0x9f, 0xeb, 1, 0, 24, 0, 0, 0];
        short.extend([0xff; 16]);
        assert!(Btf::parse(short).is_none_or(|btf| btf.member_offset("a", "b").is_none()));
    }
}
