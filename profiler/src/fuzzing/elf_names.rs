//! A small ELF file with a module's symbols, as the code that names functions gets it.
//!
//! Input: the file, which may have any section.

use crate::{model::Svma, symbols::ElfNames};

/// Addresses that are looked up.
const PLACES_MAX: usize = 4096;

/// Bytes kept for one byte of file: a symbol of 24 bytes has 16 of its own and two pieces of 16.
const BYTES_PER_BYTE: usize = 4;
/// What a compressed table may be unpacked to.
const BYTES_UNPACKED: usize = 128 << 20;

/// Whatever is found begins at or before the address that was asked for, and what begins there covers it.
pub fn elf_names(data: &[u8]) {
    for separate in [None, Some(data)] {
        let Ok(names) = ElfNames::read(data, separate) else {
            continue;
        };
        assert!(names.bytes() <= BYTES_PER_BYTE * 2 * data.len() + BYTES_UNPACKED);
        let words = data.chunks_exact(8).filter_map(|word| word.first_chunk());
        let near = words.take(PLACES_MAX).flat_map(|&word| {
            let at = u64::from_le_bytes(word);
            [at.wrapping_sub(1), at, at.wrapping_add(1)]
        });
        for at in near.chain([0, 1, u64::MAX]) {
            let Some(symbol) = names.look_up(Svma(at)) else {
                continue;
            };
            assert!(symbol.start.0 <= at);
            assert!(symbol.name.is_none_or(|name| !name.is_empty()));
            let first = names.look_up(symbol.start).expect("it begins there");
            assert_eq!(first.start, symbol.start);
            assert_eq!(first.is_stub, symbol.is_stub);
        }
    }
}
