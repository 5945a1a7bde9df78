//! An ELF file out of the memory of a process that has it loaded, for files that nobody else can read.
//!
//! Even root is refused files on FUSE mounts of other users (`fuse_allow_current_process` in fs/fuse/dir.c, Linux 6.12),
//! in rootless overlays and on NFS with `root_squash`; and deleted files where `/proc/PID/map_files` may not be used.
//! What unwinding and naming need of a file is loaded with it: headers, `.dynsym` (through `PT_DYNAMIC`), `.eh_frame`
//! (through `PT_GNU_EH_FRAME`) and code. These parts are copied to a file in memory, at the offsets that they have in the
//! original, with section headers that say where they are. What is not loaded is missing: `.symtab`, and debug
//! information.
//!
//! The memory is the target's, so everything in it may be wrong: places and sizes are checked and bounded.

mod copy;

use std::{
    collections::hash_map::RandomState,
    fs::File,
    hash::{BuildHasher as _, Hasher as _},
    io,
    path::Path,
    sync::LazyLock,
};

use object::elf;
use rustix::fs::MemfdFlags;

use self::copy::Writer;
use super::{
    bytes::{u16_at, u32_at, u64_at},
    elf::invalid,
    file::{FileIdentity, MappedFile},
    interpreter::ReadMemory,
};

/// Program headers that are read; linkers make a dozen.
const PROGRAMS_MAX: u16 = 128;

/// Bytes of the dynamic section that are read; it has some thirty entries of 16 bytes.
const DYNAMIC_BYTES_MAX: u64 = 16 << 10;

/// Bytes of `.eh_frame`, of symbols and of names that are copied of one file. LLVM has about so much of each.
const TABLE_BYTES_MAX: u64 = 32 << 20;

/// Bytes of notes that are searched for the build id.
const NOTE_BYTES_MAX: u64 = 4 << 10;

const HEADER_BYTES: usize = 64;
const SEGMENT_BYTES: usize = 56;
const SYMBOL_BYTES: u64 = 24;

/// Makes the identity of a copy out of its content: no two processes can be made to share one that differs.
static HASHING: LazyLock<RandomState> = LazyLock::new(RandomState::new);

/// Copies what is needed of the file that a process has loaded with its first byte at `head`. Its `bytes_max` are of the
/// copy.
///
/// Reads the process's memory, which may wait for the file system that the file is on. Fails with `InvalidData` if what is
/// there is no ELF file for 64-bit little-endian machines, or does not fit into its bounds.
pub(super) fn copy_from_memory(
    memory: &dyn ReadMemory,
    head: u64,
    path: &Path,
    bytes_max: u64,
) -> io::Result<MappedFile> {
    let loaded = Loaded::read(memory, head)?;
    let copy = File::from(rustix::fs::memfd_create("loaded", MemfdFlags::CLOEXEC)?);
    let mut writer = Writer::new(&loaded, &copy, HASHING.build_hasher(), bytes_max);
    writer.write_all()?;
    let (bytes, hash) = (bytes_max - writer.left, writer.hasher.finish());
    Ok(MappedFile {
        identity: FileIdentity {
            // No device has this number.
            device: u64::MAX,
            inode: hash,
            size: bytes,
            modified_ns: 0,
        },
        file: copy,
        display_path: path.to_path_buf(),
        is_from_memory: true,
    })
}

/// A file as a process has it loaded.
struct Loaded<'m> {
    memory: &'m dyn ReadMemory,
    /// What is added to the addresses that the file states.
    bias: u64,
    header: [u8; HEADER_BYTES],
    programs: Vec<Program>,
    /// The program headers as they are.
    program_bytes: Vec<u8>,
}

/// A program header.
#[derive(Clone, Copy)]
struct Program {
    kind: u32,
    flags: u32,
    offset: u64,
    address: u64,
    file_size: u64,
    memory_size: u64,
}

/// A range of stated addresses.
#[derive(Clone, Copy, Default)]
struct Part {
    address: u64,
    bytes: u64,
}

/// Where dynamic linking information lies.
#[derive(Default)]
struct Dynamic {
    symbols: Part,
    names: Part,
}

impl<'m> Loaded<'m> {
    fn read(memory: &'m dyn ReadMemory, head: u64) -> io::Result<Self> {
        let header: [u8; HEADER_BYTES] = memory.bytes(head).ok_or_else(|| invalid("no memory"))?;
        let expected = [b'\x7f', b'E', b'L', b'F', elf::ELFCLASS64, elf::ELFDATA2LSB];
        if !header.starts_with(&expected) {
            return Err(invalid("not a 64-bit little-endian ELF file"));
        }
        let count = u16_at(&header, 56).min(PROGRAMS_MAX);
        let mut program_bytes = vec![0; usize::from(count) * SEGMENT_BYTES];
        let table = head
            .checked_add(u64_at(&header, 32))
            .ok_or_else(|| invalid("program headers out of bounds"))?;
        if !memory.read(table, &mut program_bytes) {
            return Err(invalid("program headers that are not loaded"));
        }
        let programs: Vec<Program> = program_bytes
            .chunks_exact(SEGMENT_BYTES)
            .map(Program::parse)
            .collect();
        let first = programs
            .iter()
            .find(|it| it.kind == elf::PT_LOAD && it.offset < 4096)
            .ok_or_else(|| invalid("no segment with the header"))?;
        let bias = head.wrapping_sub(first.address.wrapping_sub(first.offset));
        Ok(Self {
            memory,
            bias,
            header,
            programs,
            program_bytes,
        })
    }

    fn segments(&self) -> impl Iterator<Item = &Program> {
        self.programs.iter().filter(|it| it.kind == elf::PT_LOAD)
    }

    /// Where a part lies in the file; `None`: not as a whole in a segment.
    fn offset_of(&self, part: Part) -> Option<u64> {
        let holds = |it: &&Program| {
            part.address >= it.address
                && (part.address - it.address)
                    .checked_add(part.bytes)
                    .is_some_and(|end| end <= it.file_size)
        };
        let segment = self.segments().find(holds)?;
        segment.offset.checked_add(part.address - segment.address)
    }

    /// The segment that holds an address.
    fn segment_of(&self, address: u64) -> Option<&Program> {
        self.segments()
            .find(|it| address >= it.address && address - it.address < it.file_size)
    }

    fn read_part(&self, part: Part) -> Option<Vec<u8>> {
        self.offset_of(part)?;
        let mut bytes = vec![0; usize::try_from(part.bytes).ok()?];
        let at = self.bias.wrapping_add(part.address);
        self.memory.read(at, &mut bytes).then_some(bytes)
    }

    fn u32(&self, address: u64) -> Option<u32> {
        self.memory.u32(self.bias.wrapping_add(address))
    }

    fn program(&self, kind: u32) -> Option<&Program> {
        self.programs.iter().find(|it| it.kind == kind)
    }

    /// Symbols and their names, through `PT_DYNAMIC`.
    fn dynamic(&self) -> Option<Dynamic> {
        let program = self.program(elf::PT_DYNAMIC)?;
        let bytes = self.read_part(Part {
            address: program.address,
            bytes: program.file_size.min(DYNAMIC_BYTES_MAX),
        })?;
        let value = |tag: i64| {
            let mut entries = bytes.chunks_exact(16);
            let entry = entries.find(|entry| u64_at(entry, 0) == tag.cast_unsigned())?;
            Some(u64_at(entry, 8))
        };
        // glibc replaces them by addresses in memory (`elf_get_dynamic_info`, elf/get-dynamic-info.h, 2.36); musl leaves
        // them as they are, and so do emulators of programs that are not relocated.
        let stated = |value: u64| {
            let is_stated = |at: u64| self.segment_of(at).is_some();
            let relative = value.wrapping_sub(self.bias);
            if is_stated(relative) { relative } else { value }
        };
        let address = |tag| value(tag).map(stated);
        let count = address(elf::DT_HASH)
            .and_then(|hash| self.u32(hash.checked_add(4)?))
            .map(u64::from)
            .or_else(|| self.count_by_gnu_hash(address(elf::DT_GNU_HASH)?))?;
        Some(Dynamic {
            symbols: Part {
                address: address(elf::DT_SYMTAB)?,
                bytes: (count * SYMBOL_BYTES).min(TABLE_BYTES_MAX),
            },
            names: Part {
                address: address(elf::DT_STRTAB)?,
                bytes: value(elf::DT_STRSZ)?.min(TABLE_BYTES_MAX),
            },
        })
    }

    /// How many symbols there are: `DT_GNU_HASH` has chains, the last of which ends with the last symbol. A file without
    /// any chain tells nothing of the symbols that it only imports.
    fn count_by_gnu_hash(&self, table: u64) -> Option<u64> {
        const CHAIN_MAX: u32 = 1 << 16;
        let word = |index: u64| self.u32(table.checked_add(index.checked_mul(4)?)?);
        let (buckets, first, bloom) = (word(0)?, word(1)?, word(2)?);
        let bucket_words = 4 + 2 * u64::from(bloom);
        let bytes = u64::from(buckets) * 4;
        if bytes > TABLE_BYTES_MAX {
            return None;
        }
        let heads = self.read_part(Part {
            address: table.checked_add(bucket_words * 4)?,
            bytes,
        })?;
        let last = heads.chunks_exact(4).map(|it| u32_at(it, 0)).max()?;
        if last < first {
            return Some(u64::from(first));
        }
        // The end of a chain has its lowest bit set.
        let chains = bucket_words + u64::from(buckets);
        (last..last.saturating_add(CHAIN_MAX))
            .map_while(|symbol| Some((symbol, word(chains + u64::from(symbol - first))?)))
            .find(|(_, hash)| hash & 1 == 1)
            .map(|(symbol, _)| u64::from(symbol) + 1)
    }

    /// `.eh_frame`, through the header that says where it begins (`PT_GNU_EH_FRAME`; Linux Standard Base 5.0, 10.6.2).
    /// It ends with an entry of length zero, at the latest with its segment.
    fn eh_frame(&self) -> Option<Part> {
        const VERSION: u8 = 1;
        const RELATIVE_TO_HERE: u8 = 0x1b; // DW_EH_PE_pcrel | DW_EH_PE_sdata4
        const RELATIVE_TO_HEADER: u8 = 0x3b; // DW_EH_PE_datarel | DW_EH_PE_sdata4
        let header = self.program(elf::PT_GNU_EH_FRAME)?.address;
        let bytes = self.read_part(Part {
            address: header,
            bytes: 8,
        })?;
        let from = match (bytes[0], bytes[1]) {
            (VERSION, RELATIVE_TO_HERE) => header.checked_add(4)?,
            (VERSION, RELATIVE_TO_HEADER) => header,
            _ => return None,
        };
        let distance = i32::from_le_bytes(*bytes[4..].first_chunk()?);
        let begin = from.wrapping_add_signed(i64::from(distance));
        let segment = self.segment_of(begin)?;
        let most = (segment.file_size - (begin - segment.address)).min(TABLE_BYTES_MAX);
        // Read in pieces: most of what follows is not it.
        let mut window = Window::new(
            self,
            Part {
                address: begin,
                bytes: most,
            },
        );
        let mut at = 0;
        loop {
            let length = window.u32(at)?;
            let next = match length {
                0 => {
                    return Some(Part {
                        address: begin,
                        bytes: at + 4,
                    });
                }
                u32::MAX => return None,
                length => at + 4 + u64::from(length),
            };
            if next + 4 > most {
                return Some(Part {
                    address: begin,
                    bytes: next.min(most),
                });
            }
            at = next;
        }
    }

    /// The note with the build id, as a section has it.
    fn build_id(&self) -> Option<Part> {
        let notes = self.programs.iter().filter(|it| it.kind == elf::PT_NOTE);
        notes.take(4).find_map(|note| {
            let whole = Part {
                address: note.address,
                bytes: note.file_size.min(NOTE_BYTES_MAX),
            };
            let bytes = self.read_part(whole)?;
            let mut at = 0_usize;
            loop {
                let header = bytes.get(at..at.checked_add(16)?)?;
                let name = u32_at(header, 0).checked_next_multiple_of(4)? as usize;
                let description = u32_at(header, 4).checked_next_multiple_of(4)? as usize;
                let length = 12_usize.checked_add(name)?.checked_add(description)?;
                if u32_at(header, 8) == elf::NT_GNU_BUILD_ID && header[12..] == *b"GNU\0" {
                    return Some(Part {
                        address: whole.address.wrapping_add(at as u64),
                        bytes: length as u64,
                    });
                }
                at = at.checked_add(length)?;
            }
        })
    }
}

/// A part of memory that is read bit by bit, in order.
struct Window<'l, 'm> {
    loaded: &'l Loaded<'m>,
    part: Part,
    begin: u64,
    bytes: Vec<u8>,
}

impl<'l, 'm> Window<'l, 'm> {
    fn new(loaded: &'l Loaded<'m>, part: Part) -> Self {
        Self {
            loaded,
            part,
            begin: 0,
            bytes: Vec::new(),
        }
    }

    fn u32(&mut self, at: u64) -> Option<u32> {
        const WINDOW_BYTES: u64 = 64 << 10;
        let is_in = at >= self.begin && at + 4 <= self.begin + self.bytes.len() as u64;
        if !is_in {
            let bytes = WINDOW_BYTES.min(self.part.bytes.checked_sub(at)?);
            self.begin = at;
            self.bytes = self.loaded.read_part(Part {
                address: self.part.address.checked_add(at)?,
                bytes,
            })?;
        }
        let index = usize::try_from(at - self.begin).ok()?;
        Some(u32::from_le_bytes(*self.bytes.get(index..)?.first_chunk()?))
    }
}

impl Program {
    fn parse(bytes: &[u8]) -> Self {
        Self {
            kind: u32_at(bytes, 0),
            flags: u32_at(bytes, 4),
            offset: u64_at(bytes, 8),
            address: u64_at(bytes, 16),
            file_size: u64_at(bytes, 32),
            memory_size: u64_at(bytes, 40),
        }
    }

    const fn part(&self) -> Part {
        Part {
            address: self.address,
            bytes: self.file_size,
        }
    }

    const fn is_code(&self) -> bool {
        self.flags & elf::PF_X != 0
    }

    const fn is_writable(&self) -> bool {
        self.flags & elf::PF_W != 0
    }

    const fn holds_constants(&self) -> bool {
        !self.is_code() && !self.is_writable()
    }
}

#[cfg(test)]
#[path = "elf_memory_tests.rs"]
mod tests;
