//! All names of a map, end to end in a few large blocks.

use std::hash::Hasher;

use rustc_hash::FxHasher;

/// A block's size: names never cross from one into the next.
const BLOCK_BITS: u32 = 18;
const BLOCK_BYTES: usize = 1 << BLOCK_BITS;

/// A name is stored behind its length.
const LENGTH_BYTES: usize = 2;

/// How many recently added names are remembered for being added again (a power of two).
const RECENT: usize = 4096;

/// Where a name lies in [`Names`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NameId(u32);

/// Names that are only ever added. Blocks instead of one vector, because growing never copies what is there.
#[derive(Debug, Default)]
pub(super) struct Names {
    blocks: Vec<Vec<u8>>,
    /// By hash, the last name with that hash. Programs that make code over and over write the same few names again and
    /// again (`py::<module>:<string>`); a full table of names would cost more than it saves.
    recent: Vec<Option<NameId>>,
    bytes: usize,
}

impl Names {
    /// Adds a name of at most 65,535 bytes; `None` if that would exceed `limit` bytes in all.
    pub(super) fn add(&mut self, name: &[u8], limit: usize) -> Option<NameId> {
        if self.recent.is_empty() {
            self.recent = vec![None; RECENT];
        }
        let slot = slot(name);
        if let Some(id) = self.recent[slot]
            && self.get(id) == name
        {
            return Some(id);
        }
        let length = u16::try_from(name.len()).ok()?;
        let needed = LENGTH_BYTES + name.len();
        if self.bytes + needed > limit {
            return None;
        }
        if self
            .blocks
            .last()
            .is_none_or(|block| block.len() + needed > BLOCK_BYTES)
        {
            // The first block grows as needed: most maps are small, and there may be hundreds of them.
            let capacity = if self.blocks.is_empty() {
                0
            } else {
                BLOCK_BYTES
            };
            self.blocks.push(Vec::with_capacity(capacity));
        }
        let number = self.blocks.len() - 1;
        let block = &mut self.blocks[number];
        let id = NameId(u32::try_from(number << BLOCK_BITS | block.len()).ok()?);
        block.extend_from_slice(&length.to_le_bytes());
        block.extend_from_slice(name);
        self.bytes += needed;
        self.recent[slot] = Some(id);
        Some(id)
    }

    /// The name that was added under this id.
    pub(super) fn get(&self, NameId(at): NameId) -> &[u8] {
        let block = &self.blocks[(at >> BLOCK_BITS) as usize];
        let stored = &block[at as usize & (BLOCK_BYTES - 1)..];
        let (length, rest) = stored.split_at(LENGTH_BYTES);
        &rest[..usize::from(u16::from_le_bytes([length[0], length[1]]))]
    }

    /// Memory it holds.
    pub(super) fn heap_bytes(&self) -> usize {
        let blocks: usize = self.blocks.iter().map(Vec::capacity).sum();
        blocks
            + self.blocks.capacity() * size_of::<Vec<u8>>()
            + self.recent.capacity() * size_of::<Option<NameId>>()
    }
}

fn slot(name: &[u8]) -> usize {
    let mut hasher = FxHasher::default();
    hasher.write(name);
    hasher.finish() as usize % RECENT
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_back_whole_from_every_block() {
        let mut names = Names::default();
        let texts: Vec<Vec<u8>> = (0..60_usize).map(|i| vec![i as u8; i * 500]).collect();
        let ids: Vec<NameId> = texts
            .iter()
            .map(|text| names.add(text, usize::MAX).expect("room"))
            .collect();
        assert!(names.blocks.len() > 2);
        for (text, id) in texts.iter().zip(ids) {
            assert_eq!(names.get(id), &text[..]);
        }
    }

    #[test]
    fn a_name_added_again_takes_no_room() {
        let mut names = Names::default();
        let first = names.add(b"py::<module>:<string>", 100);
        for _ in 0..1000 {
            assert_eq!(names.add(b"py::<module>:<string>", 100), first);
        }
    }

    #[test]
    fn a_full_store_refuses_and_keeps_what_it_has() {
        let mut names = Names::default();
        let id = names.add(b"12345678", 10).expect("room");
        assert_eq!(names.add(b"x", 10), None);
        assert_eq!(names.get(id), b"12345678");
    }
}
