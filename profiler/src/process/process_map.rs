//! Where code lies in one process, kept up to date while it loads and unloads files.

use crate::model::{Avma, FileOffset};

use super::mappings::{MAPPINGS_MAX, Mapping, MappingKind};

/// The executable mappings of a process: sorted, never overlapping.
///
/// A lookup costs a binary search; a change moves the mappings behind it, which is rare.
#[derive(Clone, Debug, Default)]
pub struct ProcessMap {
    mappings: Vec<Mapping>,
    generation: u64,
    refused: u64,
}

impl ProcessMap {
    /// Forgets everything and takes these instead: after reading a maps file, or after an `exec` (with none).
    ///
    /// Where they overlap, as they may when the process changed its mappings while they were read, the later one wins.
    pub fn replace_all(&mut self, mappings: impl IntoIterator<Item = Mapping>) {
        self.mappings.clear();
        for mapping in mappings {
            self.put(mapping);
        }
        self.generation += 1;
    }

    /// Takes a new mapping, as the kernel reports it. It replaces whatever was at its addresses; of a mapping that it
    /// covers in part, the rest stays. One that is not executable only removes.
    pub fn insert(&mut self, mapping: Mapping) {
        self.put(mapping);
        self.generation += 1;
    }

    /// The mapping an address lies in.
    pub fn find(&self, at: Avma) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.begin <= at);
        self.mappings[..after]
            .last()
            .filter(|mapping| mapping.contains(at))
    }

    /// All mappings by address.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Mapping> {
        self.mappings.iter()
    }

    /// All mappings by address.
    pub fn as_slice(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Grows with every change: what was derived from this map under another number is out of date.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Mappings refused because there were [`MAPPINGS_MAX`] already. Addresses in them have no mapping.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn put(&mut self, mapping: Mapping) {
        if mapping.begin >= mapping.end {
            return;
        }
        self.cut_out(mapping.begin, mapping.end);
        if !mapping.executable {
            return;
        }
        if self.mappings.len() >= MAPPINGS_MAX {
            self.refused += 1;
            return;
        }
        let at = self
            .mappings
            .partition_point(|other| other.begin < mapping.begin);
        self.mappings.insert(at, mapping);
    }

    /// Removes `begin..end` from whatever is there.
    fn cut_out(&mut self, begin: Avma, end: Avma) {
        let first = self
            .mappings
            .partition_point(|mapping| mapping.end <= begin);
        let past = self.mappings.partition_point(|mapping| mapping.begin < end);
        if first >= past {
            return;
        }
        let before = part(&self.mappings[first], self.mappings[first].begin, begin);
        let mut behind = part(&self.mappings[past - 1], end, self.mappings[past - 1].end);
        // A hole in the middle makes two of one: even that must not grow past the limit.
        let splits = before.is_some() && behind.is_some() && past - first == 1;
        if splits && self.mappings.len() >= MAPPINGS_MAX {
            behind = None;
            self.refused += 1;
        }
        self.mappings
            .splice(first..past, before.into_iter().chain(behind));
    }
}

/// What lies between two addresses of a mapping, if anything.
fn part(whole: &Mapping, begin: Avma, end: Avma) -> Option<Mapping> {
    if begin >= end {
        return None;
    }
    let skipped = begin.0 - whole.begin.0;
    let file_offset = match whole.kind {
        MappingKind::File { .. } | MappingKind::Vdso => {
            FileOffset(whole.file_offset.0.wrapping_add(skipped))
        }
        MappingKind::Anonymous | MappingKind::Special => whole.file_offset,
    };
    Some(Mapping {
        begin,
        end,
        file_offset,
        ..whole.clone()
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::process::CodeCopy;

    fn mapping(begin: u64, end: u64, path: &str) -> Mapping {
        Mapping {
            begin: Avma(begin),
            end: Avma(end),
            file_offset: FileOffset(0x100),
            executable: true,
            kind: MappingKind::File {
                path: Path::new(path).into(),
                deleted: false,
            },
            device: (8, 1),
            inode: 7,
            head: None,
            copy: CodeCopy::None,
        }
    }

    fn shown(map: &ProcessMap) -> Vec<(u64, u64, u64, String)> {
        map.iter()
            .map(|m| {
                let path = m
                    .path()
                    .map(|path| path.display().to_string())
                    .unwrap_or_default();
                (m.begin.0, m.end.0, m.file_offset.0, path)
            })
            .collect()
    }

    #[test]
    fn finds_the_mapping_of_an_address() {
        let mut map = ProcessMap::default();
        map.replace_all([mapping(0x3000, 0x4000, "/b"), mapping(0x1000, 0x2000, "/a")]);
        let path_at = |at| {
            map.find(Avma(at))
                .and_then(Mapping::path)
                .map(Path::to_path_buf)
        };
        assert_eq!(path_at(0xfff), None);
        assert_eq!(path_at(0x1000), Some("/a".into()));
        assert_eq!(path_at(0x1fff), Some("/a".into()));
        assert_eq!(path_at(0x2000), None);
        assert_eq!(path_at(0x3fff), Some("/b".into()));
        assert_eq!(path_at(u64::MAX), None);
    }

    #[test]
    fn a_mapping_in_the_middle_of_another_splits_it() {
        let mut map = ProcessMap::default();
        map.insert(mapping(0x1000, 0x4000, "/a"));
        map.insert(mapping(0x2000, 0x3000, "/b"));
        assert_eq!(
            shown(&map),
            [
                (0x1000, 0x2000, 0x100, "/a".into()),
                (0x2000, 0x3000, 0x100, "/b".into()),
                (0x3000, 0x4000, 0x2100, "/a".into()),
            ]
        );
    }

    #[test]
    fn a_mapping_over_several_replaces_them() {
        let mut map = ProcessMap::default();
        map.replace_all([
            mapping(0x1000, 0x2000, "/a"),
            mapping(0x2000, 0x3000, "/b"),
            mapping(0x3000, 0x4000, "/c"),
        ]);
        map.insert(mapping(0x1800, 0x3800, "/d"));
        assert_eq!(
            shown(&map),
            [
                (0x1000, 0x1800, 0x100, "/a".into()),
                (0x1800, 0x3800, 0x100, "/d".into()),
                (0x3800, 0x4000, 0x900, "/c".into()),
            ]
        );
    }

    #[test]
    fn memory_that_is_no_longer_executable_is_forgotten() {
        let mut map = ProcessMap::default();
        map.insert(mapping(0x1000, 0x4000, "/a"));
        map.insert(Mapping {
            executable: false,
            ..mapping(0x1000, 0x3000, "/a")
        });
        assert_eq!(shown(&map), [(0x3000, 0x4000, 0x2100, "/a".into())]);
    }

    #[test]
    fn every_change_is_a_new_generation() {
        let mut map = ProcessMap::default();
        map.insert(mapping(0x1000, 0x2000, "/a"));
        let before = map.generation();
        map.replace_all([]);
        assert!(map.generation() > before);
        assert_eq!(map.iter().len(), 0);
    }

    #[test]
    fn refuses_more_than_it_can_hold() {
        let mut map = ProcessMap::default();
        map.replace_all(
            (0..MAPPINGS_MAX as u64 + 3).map(|i| mapping(i * 0x2000, i * 0x2000 + 0x1000, "/a")),
        );
        assert_eq!(map.iter().len(), MAPPINGS_MAX);
        assert_eq!(map.refused(), 3);
    }

    #[test]
    fn holes_do_not_make_it_grow_past_the_limit() {
        let mut map = ProcessMap::default();
        map.replace_all(
            (0..MAPPINGS_MAX as u64).map(|i| mapping(i * 0x10_000, i * 0x10_000 + 0x8000, "/a")),
        );
        for hole in 0..4 {
            let begin = hole * 0x10_000 + 0x1000;
            map.insert(Mapping {
                executable: false,
                ..mapping(begin, begin + 0x1000, "/a")
            });
        }
        assert_eq!(map.iter().len(), MAPPINGS_MAX);
        assert_eq!(map.refused(), 4);
    }

    proptest! {
        #[test]
        fn stays_sorted_and_the_last_word_counts(changes in proptest::collection::vec((0_u64..64, 1_u64..16, any::<bool>()), 0..40)) {
            let mut map = ProcessMap::default();
            let mut plain = [None; 96];
            for (index, (begin, length, executable)) in changes.into_iter().enumerate() {
                map.insert(Mapping { executable, inode: index as u64, ..mapping(begin, begin + length, "/a") });
                plain[begin as usize..(begin + length) as usize].fill(executable.then_some(index as u64));
            }
            for (at, expected) in plain.iter().enumerate() {
                prop_assert_eq!(map.find(Avma(at as u64)).map(|m| m.inode), *expected);
            }
            prop_assert!(map.as_slice().windows(2).all(|pair| pair[0].end <= pair[1].begin));
        }
    }
}
