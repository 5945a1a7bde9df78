//! What the index promises, one promise a test.

use std::fmt::Write as _;

use super::super::{PerfMap, PerfMapLimits, SkipReason};
use crate::model::Avma;

fn name_at(map: &PerfMap, at: u64) -> Option<String> {
    map.name_at(Avma(at))
        .map(|name| name.to_text().into_owned())
}

#[track_caller]
fn assert_names(text: &str, expected: &[(u64, Option<&str>)]) {
    let mut map = PerfMap::default();
    map.append(text.as_bytes());
    for &(at, name) in expected {
        assert_eq!(name_at(&map, at).as_deref(), name, "at {at:x} of\n{text}");
    }
}

/// CPython appends while we read: a line cut in half must wait for its rest.
#[test]
fn keeps_an_unfinished_line_for_the_next_read() {
    let mut map = PerfMap::default();
    assert_eq!(map.append(b"7f00 10 py::a:/x.py\n7f10 1"), 1);
    assert_eq!(map.append(b"0 py::b"), 0);
    assert_eq!(map.append(b":/x.py\n"), 1);
    assert_eq!(name_at(&map, 0x7f18).as_deref(), Some("py::b:/x.py"));
    assert_eq!(map.counters().junk(), 0);
}

#[test]
fn newest_entry_wins_when_code_memory_is_reused() {
    assert_names(
        "1000 40 old\n1020 10 inner\n1000 40 new\n",
        &[
            (0x1000, Some("new")),
            (0x1020, Some("new")),
            (0x103f, Some("new")),
            (0x1040, None),
        ],
    );
}

#[test]
fn what_a_newer_range_cut_off_does_not_come_back() {
    assert_names(
        "1000 100 outer\n1040 10 inner\n",
        &[
            (0x103f, Some("outer")),
            (0x1040, Some("inner")),
            (0x1050, None),
            (0x10ff, None),
        ],
    );
    // `inner` goes as well, and still `outer` ends where the newest one starts.
    assert_names(
        "1000 100 outer\n1040 10 inner\n1038 20 newest\n",
        &[
            (0x1037, Some("outer")),
            (0x1040, Some("newest")),
            (0x1058, None),
        ],
    );
}

#[test]
fn a_range_of_absurd_size_leaves_others_alone() {
    assert_names(
        "500000 10 f\n600000 10 g\n4fff00 7fffffffffff0000 everything\n",
        &[
            (0x50_0008, Some("f")),
            (0x60_0008, Some("g")),
            (0x4f_ff10, Some("everything")),
            (0x50_0010, None),
        ],
    );
}

#[test]
fn size_zero_covers_one_byte() {
    assert_names(
        "1000 0 a\n",
        &[(0xfff, None), (0x1000, Some("a")), (0x1001, None)],
    );
}

#[test]
fn look_ups_at_the_ends_of_the_address_space_find_nothing() {
    assert_names("", &[(0, None), (u64::MAX, None)]);
    assert_names("1000 10 a\n", &[(0, None), (u64::MAX, None)]);
}

#[test]
fn replacements_count_changed_names_only() {
    let mut map = PerfMap::default();
    let mut replacements = |text: &str| {
        map.append(text.as_bytes());
        map.replacements()
    };
    assert_eq!(replacements("1000 10 a\n1010 10 b\n"), 0);
    assert_eq!(replacements("1000 10 a\n"), 0, "the same line again");
    assert_eq!(replacements("2000 10 a\n"), 0, "the same name elsewhere");
    assert_eq!(replacements("1000 10 c\n"), 1, "another name");
    assert_eq!(replacements("1008 4 d\n"), 2, "inside another range");
    assert_eq!(replacements("2000 8 a\n"), 3, "shorter than before");
    let generation = map.generation();
    map.clear();
    assert_eq!(map.replacements(), 4);
    assert_ne!(map.generation(), generation);
    assert!(map.is_empty());
}

#[test]
fn two_thousand_characters_are_one_name() {
    let name = "日".repeat(2000);
    assert_names(
        &format!("1000 b py::{name}:/x.py\n"),
        &[(0x1000, Some(&format!("py::{name}:/x.py")))],
    );
}

#[test]
fn a_longer_name_is_cut_between_characters() {
    let mut map = PerfMap::default();
    map.append(format!("1000 b x{}\n", "日".repeat(20_000)).as_bytes());
    let name = name_at(&map, 0x1000).expect("kept");
    assert!(
        name.len() > 8_000 && name.ends_with('日'),
        "{} bytes",
        name.len()
    );
    assert_eq!(map.counters().cut_names, 1);
}

#[test]
fn a_python_name_with_newlines_is_one_name() {
    assert_names(
        "1000 b py::new\nline:/x.py\n2000 b py::a\n\nb:/y.py\njunk\n3000 b JS:*f\njunk\n",
        &[
            (0x1000, Some("py::new\nline:/x.py")),
            (0x2000, Some("py::a\n\nb:/y.py")),
            (0x3000, Some("JS:*f")),
        ],
    );
    // A name that was cut off does not take the next entry with it.
    assert_names(
        "1000 b py::cut\n2000 b py::f:/x.py\n",
        &[(0x1000, Some("py::cut")), (0x2000, Some("py::f:/x.py"))],
    );
}

#[test]
fn a_broken_name_does_not_grow_without_end() {
    let mut map = PerfMap::default();
    map.append(b"1000 b py::a\n");
    for _ in 0..1000 {
        map.append(b"more\n");
    }
    assert_eq!(
        map.name_at(Avma(0x1000)).map(|name| name.bytes.len()),
        Some(5 + 8 * 5)
    );
    assert_eq!((map.counters().entries, map.counters().junk()), (1, 992));
}

#[test]
fn a_line_without_end_is_dropped_and_the_next_one_is_read() {
    let mut map = PerfMap::default();
    map.append(b"1000 b ");
    for _ in 0..100 {
        map.append(&[b'x'; 10_000]);
        assert!(map.heap_bytes() < 200_000);
    }
    map.append(b"\n2000 b f\n");
    assert_eq!(
        (name_at(&map, 0x1000), name_at(&map, 0x2000).as_deref()),
        (None, Some("f"))
    );
    assert_eq!(map.counters().skipped(SkipReason::TooLong), 1);

    let mut at_once = PerfMap::default();
    at_once.append(format!("1000 b {}\n2000 b f\n", "x".repeat(1_000_000)).as_bytes());
    assert_eq!(at_once.counters(), map.counters());
}

#[test]
fn full_maps_refuse_and_count_and_go_on() {
    let limits = PerfMapLimits {
        entries: 3,
        ..PerfMapLimits::default()
    };
    let mut map = PerfMap::with_limits(limits);
    map.append(b"1000 1 a\n2000 1 b\n3000 1 c\n4000 1 d\n5000 1 e\n");
    assert_eq!((map.len(), map.counters().refused), (3, 2));
    assert_eq!(name_at(&map, 0x3000).as_deref(), Some("c"));

    let mut map = PerfMap::with_limits(PerfMapLimits {
        name_bytes: 12,
        ..PerfMapLimits::default()
    });
    map.append(b"1000 1 long name\n2000 1 second\n3000 1 long name\n");
    assert_eq!(
        (map.len(), map.counters().refused),
        (2, 1),
        "a name known already needs no room"
    );
}

#[test]
fn a_million_entries_are_right_while_they_come_in_and_memory_stays_small() {
    let mut map = PerfMap::default();
    let mut text = String::new();
    let at = |i: u64| 0x7f00_0000_0000 - ((i / 2048) << 16) + i % 2048 * 32;
    let path = "/srv/application/site-packages/pk";
    for block in 0..100 {
        text.clear();
        for i in block * 10_000..(block + 1) * 10_000 {
            writeln!(text, "{:x} c py::function_{i}:{path}.py", at(i)).expect("memory");
        }
        map.append(text.as_bytes());
        for i in [0, block * 5_000, block * 10_000 + 9_999] {
            assert_eq!(
                name_at(&map, at(i) + 10),
                Some(format!("py::function_{i}:{path}.py"))
            );
        }
    }
    assert_eq!((map.len(), map.replacements()), (1_000_000, 0));
    assert!(map.heap_bytes() < 100 << 20, "{} bytes", map.heap_bytes());
}
