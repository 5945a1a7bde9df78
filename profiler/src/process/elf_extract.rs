//! Copies what names addresses out of an ELF file, into a small file of our own.
//!
//! Whatever parses the copy cannot be hurt by a target that truncates or rewrites its file meanwhile, and does not bring
//! hundreds of MiB of code into memory.

use std::{fs::File, io, os::unix::fs::FileExt};

use object::elf;

use super::elf::{ElfFile, Section, read};

/// Bytes that are copied of one file. libpython has 0.8 MiB of symbols, 25 MiB with its debug information; the largest
/// libraries have some 100 MiB of symbols.
const COPY_BYTES_MAX: u64 = 192 << 20;

const HEADER_BYTES: u64 = 64;

impl ElfFile<'_> {
    /// Writes an ELF file that has only this one's symbol tables and, if asked for, its debug information. Sections keep
    /// their numbers; there are no segments, links to other files, or code.
    ///
    /// Gives the number of bytes written. Fails with `InvalidData` if that would be more than 192 MiB.
    pub fn extract_symbols(&self, with_debug_info: bool, copy: &File) -> io::Result<u64> {
        let mut at = HEADER_BYTES;
        let mut headers = Vec::with_capacity(self.sections.len() * 64);
        for (index, section) in self.sections.iter().enumerate() {
            if !self.is_needed(index, section, with_debug_info) {
                headers.extend_from_slice(&[0; 64]);
                continue;
            }
            // Compressed sections begin with a header of eight-byte words.
            at = at.next_multiple_of(8);
            if at.saturating_add(section.size) > COPY_BYTES_MAX {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "more symbols than are read of one file",
                ));
            }
            self.copy_bytes(section, copy, at)?;
            headers.extend_from_slice(&encode(section, at));
            at += section.size;
        }
        let table = at.next_multiple_of(8);
        copy.write_all_at(&headers, table)?;

        let mut header = self.header.clone();
        // No program headers (e_phoff, e_phnum), and the section headers (e_shoff, e_shnum) where they are now.
        header[32..40].fill(0);
        header[56..58].fill(0);
        header[40..48].copy_from_slice(&table.to_le_bytes());
        header[60..62].copy_from_slice(&(self.sections.len() as u16).to_le_bytes());
        copy.write_all_at(&header, 0)?;
        Ok(table + headers.len() as u64)
    }

    fn is_needed(&self, index: usize, section: &Section, with_debug_info: bool) -> bool {
        if section.kind == elf::SHT_NOBITS || section.size == 0 {
            return false;
        }
        let is_table =
            |section: &Section| matches!(section.kind, elf::SHT_SYMTAB | elf::SHT_DYNSYM);
        let names_of_table = || {
            self.sections
                .iter()
                .any(|table| is_table(table) && table.link as usize == index)
        };
        let names_of_sections =
            || index == usize::from(u16::from_le_bytes([self.header[62], self.header[63]]));
        is_table(section)
            || names_of_table()
            || names_of_sections()
            || (with_debug_info && self.is_debug_info(section))
    }

    fn copy_bytes(&self, section: &Section, copy: &File, to: u64) -> io::Result<()> {
        const PIECE: u64 = 1 << 20;
        let mut done = 0;
        while done < section.size {
            let length = PIECE.min(section.size - done);
            let from = section.offset.saturating_add(done);
            copy.write_all_at(&read(self.file, from, length)?, to + done)?;
            done += length;
        }
        Ok(())
    }
}

/// A section header. What is not loaded has no address; alignment matters to nobody who reads tables.
fn encode(section: &Section, offset: u64) -> [u8; 64] {
    let mut header = [0; 64];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, &section.name.to_le_bytes());
    put(4, &section.kind.to_le_bytes());
    put(8, &section.flags.to_le_bytes());
    put(24, &offset.to_le_bytes());
    put(32, &section.size.to_le_bytes());
    put(40, &section.link.to_le_bytes());
    put(48, &8_u64.to_le_bytes());
    put(56, &section.entry_size.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::SymbolTable;

    #[test]
    fn the_copy_has_the_same_symbols_and_is_smaller() {
        let file = File::open(std::env::current_exe().expect("own path")).expect("open");
        let whole = ElfFile::parse(&file).expect("parses");
        let copy = tempfile::tempfile().expect("temporary file");
        let bytes = whole.extract_symbols(false, &copy).expect("extracts");
        assert!(bytes < file.metadata().expect("stat").len());
        let copied = ElfFile::parse(&copy).expect("parses");
        assert_eq!(
            copied.symbols(SymbolTable::Full, ["main"]),
            whole.symbols(SymbolTable::Full, ["main"])
        );
        assert_eq!(copied.debug_info_bytes(), 0);
    }

    #[test]
    fn debug_information_is_copied_when_asked_for() {
        let file = File::open(std::env::current_exe().expect("own path")).expect("open");
        let whole = ElfFile::parse(&file).expect("parses");
        let copy = tempfile::tempfile().expect("temporary file");
        whole.extract_symbols(true, &copy).expect("extracts");
        assert_eq!(
            ElfFile::parse(&copy).expect("parses").debug_info_bytes(),
            whole.debug_info_bytes()
        );
    }
}
