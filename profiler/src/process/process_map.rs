//! Where code lies in one process.

use crate::model::{Avma, FileOffset};

use super::mappings::{MAPPINGS_MAX, Mapping, MappingKind};

/// The executable mappings of a process: sorted, never overlapping. A lookup costs a binary search.
#[derive(Clone, Debug, Default)]
pub struct ProcessMap {
    mappings: Vec<Mapping>,
}

impl ProcessMap {
    /// Sorts mappings as a maps file lists them; at most [`MAPPINGS_MAX`] are kept.
    ///
    /// Where two overlap, as they may when the process changed its mappings while they were read, the later one wins: of
    /// the other one, the parts outside of it stay.
    pub fn new(mappings: impl IntoIterator<Item = Mapping>) -> Self {
        let mut map = Self::default();
        for mapping in mappings {
            map.insert(mapping);
        }
        map
    }

    /// The mapping that an address lies in.
    pub fn find(&self, at: Avma) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|mapping| mapping.begin <= at);
        self.mappings[..after]
            .last()
            .filter(|mapping| mapping.contains(at))
    }

    fn insert(&mut self, mapping: Mapping) {
        if mapping.begin >= mapping.end {
            return;
        }
        self.cut_out(mapping.begin, mapping.end);
        if self.mappings.len() >= MAPPINGS_MAX {
            return;
        }
        let at = self
            .mappings
            .partition_point(|other| other.begin < mapping.begin);
        self.mappings.insert(at, mapping);
    }

    /// Removes the addresses `begin..end` from all mappings.
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
        map.mappings
            .iter()
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
        let map = ProcessMap::new([mapping(0x3000, 0x4000, "/b"), mapping(0x1000, 0x2000, "/a")]);
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
        let map = ProcessMap::new([mapping(0x1000, 0x4000, "/a"), mapping(0x2000, 0x3000, "/b")]);
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
        let map = ProcessMap::new([
            mapping(0x1000, 0x2000, "/a"),
            mapping(0x2000, 0x3000, "/b"),
            mapping(0x3000, 0x4000, "/c"),
            mapping(0x1800, 0x3800, "/d"),
        ]);
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
    fn keeps_no_more_than_it_can_hold() {
        let apart =
            (0..MAPPINGS_MAX as u64).map(|i| mapping(i * 0x10_000, i * 0x10_000 + 0x8000, "/a"));
        let more = (0..3).map(|i| mapping(i * 0x10_000 + 0x9000, i * 0x10_000 + 0xa000, "/b"));
        // In the middle of others, which would make two of one.
        let holes = (0..4).map(|i| mapping(i * 0x10_000 + 0x1000, i * 0x10_000 + 0x2000, "/c"));
        let map = ProcessMap::new(apart.chain(more).chain(holes));
        assert_eq!(map.mappings.len(), MAPPINGS_MAX);
    }

    proptest! {
        #[test]
        fn stays_sorted_and_the_last_word_counts(added in proptest::collection::vec((0_u64..64, 1_u64..16), 0..40)) {
            let mut plain = [None; 96];
            let mut mappings = Vec::new();
            for (index, (begin, length)) in added.into_iter().enumerate() {
                mappings.push(Mapping { inode: index as u64, ..mapping(begin, begin + length, "/a") });
                plain[begin as usize..(begin + length) as usize].fill(Some(index as u64));
            }
            let map = ProcessMap::new(mappings);
            for (at, expected) in plain.iter().enumerate() {
                prop_assert_eq!(map.find(Avma(at as u64)).map(|m| m.inode), *expected);
            }
            prop_assert!(map.mappings.windows(2).all(|pair| pair[0].end <= pair[1].begin));
        }
    }
}
