//! Random maps, against a model that is too simple to be wrong.

use std::fmt::Write as _;

use proptest::prelude::*;

use super::super::PerfMap;
use crate::model::Avma;

/// `(start, size, name)`, in the order in which they were written.
type Line = (u64, u64, u8);

/// The rules of [`PerfMap`], word by word: an entry is gone once a later one covers its start; of those left, the nearest
/// one that starts at or below the address has it, if it reaches so far.
fn name_by_the_rules(lines: &[Line], at: u64) -> Option<u8> {
    let believed = |size: u64| {
        if size <= 1 << 20 {
            (size.max(1), true)
        } else {
            (1 << 20, false)
        }
    };
    let is_gone = |place: usize, start: u64| {
        lines[place + 1..].iter().any(|&(later, size, _)| {
            let (len, overrides) = believed(size);
            later == start || overrides && (later..later + len).contains(&start)
        })
    };
    let left = lines
        .iter()
        .enumerate()
        .filter(|&(place, line)| !is_gone(place, line.0));
    let (_, &(start, size, name)) = left
        .filter(|(_, line)| line.0 <= at)
        .max_by_key(|(_, line)| line.0)?;
    (at - start < believed(size).0).then_some(name)
}

fn text_of(lines: &[Line]) -> String {
    let mut text = String::new();
    for (start, size, name) in lines {
        writeln!(text, "{start:x} {size:x} n{name}").expect("memory");
    }
    text
}

fn lines(count: usize, space: u64) -> impl Strategy<Value = Vec<Line>> {
    let size = prop_oneof![8 => 0..60_u64, 1 => 0..space, 1 => Just(0x80_600b)];
    proptest::collection::vec((1..space, size, any::<u8>()), 0..count)
}

proptest! {
    #[test]
    fn every_address_has_the_name_the_rules_give_it(lines in lines(60, 600)) {
        let mut map = PerfMap::default();
        map.append(text_of(&lines).as_bytes());
        for at in 0..700 {
            let expected = name_by_the_rules(&lines, at).map(|name| format!("n{name}").into_bytes());
            prop_assert_eq!(map.name_at(Avma(at)).map(|name| name.bytes.to_vec()), expected, "at {}", at);
        }
    }

    #[test]
    fn generation_and_replacements_tell_of_every_change(lines in lines(25, 300)) {
        let mut map = PerfMap::default();
        let names = |map: &PerfMap| -> Vec<Option<Vec<u8>>> {
            (0..400).map(|at| map.name_at(Avma(at)).map(|name| name.bytes.to_vec())).collect()
        };
        for line in &lines {
            let (before, generation, replacements) = (names(&map), map.generation(), map.replacements());
            map.append(text_of(std::slice::from_ref(line)).as_bytes());
            let after = names(&map);
            prop_assert!(before == after || generation != map.generation());
            let lost = before.iter().zip(&after).any(|(old, new)| old.is_some() && old != new);
            prop_assert!(!lost || replacements != map.replacements());
        }
    }

    #[test]
    fn bytes_in_any_pieces_give_the_same_map(lines in lines(200, 1 << 16), cuts in proptest::collection::vec(1..200_usize, 1..50)) {
        let text = text_of(&lines);
        let mut whole = PerfMap::default();
        whole.append(text.as_bytes());
        let mut pieces = PerfMap::default();
        let mut rest = text.as_bytes();
        for cut in cuts.iter().cycle() {
            let (piece, after) = rest.split_at((*cut).min(rest.len()));
            pieces.append(piece);
            rest = after;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(pieces.counters(), whole.counters());
        prop_assert_eq!(pieces.len(), whole.len());
        for (start, size, _) in lines {
            for at in [start, start + size / 2, start + size] {
                prop_assert_eq!(pieces.name_at(Avma(at)), whole.name_at(Avma(at)));
            }
        }
    }

    #[test]
    fn no_bytes_make_it_panic(pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..60), 0..20)) {
        let mut map = PerfMap::default();
        for piece in pieces {
            map.append(&piece);
        }
    }

    #[test]
    fn no_text_that_looks_like_a_map_makes_it_panic(text in "([0-9a-f]{1,17} [0-9a-f]{1,17} ?.{0,9}[\n\r]{0,2}){0,30}") {
        let mut map = PerfMap::default();
        map.append(text.as_bytes());
    }
}
