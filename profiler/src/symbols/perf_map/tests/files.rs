//! Maps as the different writers leave them, from `tests/data`.

use super::super::{PerfMap, PerfMapCounters, PerfMapName, SkipReason};
use crate::model::{Avma, FrameKind};

fn map(bytes: &[u8]) -> PerfMap {
    let mut map = PerfMap::default();
    map.append(bytes);
    map
}

#[track_caller]
fn assert_name(map: &PerfMap, at: u64, expected: &str) {
    let name = map.name_at(Avma(at)).map(PerfMapName::to_text);
    assert_eq!(name.as_deref(), Some(expected), "at {at:x}");
}

#[track_caller]
fn assert_no_name(map: &PerfMap, at: u64) {
    assert_eq!(map.name_at(Avma(at)), None, "at {at:x}");
}

#[test]
fn trampolines_back_to_back_are_told_apart() {
    let map = map(include_bytes!("../../../../tests/data/cpython-3.12.map"));
    assert_name(
        &map,
        0x7f1b_2c34_0000,
        "py::_find_and_load:<frozen importlib._bootstrap>",
    );
    assert_name(
        &map,
        0x7f1b_2c34_0000 + 4 * 11 + 6,
        "py::Cart.total:/srv/shop/app.py",
    );
    assert_name(
        &map,
        0x7f1b_2c34_0000 + 7 * 11 + 10,
        "py::price:/srv/my shop/price list.py",
    );
    assert_no_name(&map, 0x7f1b_2c34_0000 + 9 * 11);
    assert_eq!(map.counters().junk(), 0);
    assert_eq!(map.replacements(), 0);
}

#[test]
fn a_second_arena_below_the_first_is_found() {
    let map = map(include_bytes!("../../../../tests/data/cpython-3.13.map"));
    assert_name(
        &map,
        0x7f8e_10a0_0050,
        "py::Cart.total.<locals>.<genexpr>:/srv/shop/app.py",
    );
    assert_name(
        &map,
        0x7f8e_109f_0006,
        "py::checkout.<locals>.<lambda>:/srv/shop/app.py",
    );
    // The gap between two trampolines is no code.
    assert_no_name(&map, 0x7f8e_10a0_000f);
    assert_eq!(map.len(), 9);
}

#[test]
fn code_that_node_moved_over_older_code_replaces_it() {
    let map = map(include_bytes!("../../../../tests/data/node.map"));
    assert_name(&map, 0x7f4a_aefc_6f40, "JS:*hot /srv/site/render.js:12:21");
    assert_name(&map, 0x18c_4310, "Builtin:StringPrototypeSplit");
    assert_eq!(map.replacements(), 1);
    let kind = map.name_at(Avma(0x7f4a_aefc_6100)).map(PerfMapName::kind);
    assert_eq!(kind, Some(FrameKind::Jit));
}

#[test]
fn the_jvm_may_write_0x() {
    let map = map(include_bytes!("../../../../tests/data/jvm.map"));
    assert_name(
        &map,
        0x7f6c_c920_0200,
        "java.lang.Object com.shop.Cart.total(long)",
    );
    assert_name(
        &map,
        0x7f6c_c920_0500,
        "void java.lang.String.<init>(byte[], byte)",
    );
}

#[test]
fn sizes_written_under_bolt_swallow_nothing() {
    let map = map(include_bytes!("../../../../tests/data/bolt.map"));
    assert_name(&map, 0x7f54_fffe_0006, "py::Cart.total:/srv/shop/app.py");
    assert_name(
        &map,
        0x7f55_0000_0006,
        "py::_find_and_load:<frozen importlib._bootstrap>",
    );
    assert_name(&map, 0x7f55_0000_0046, "py::<module>:/srv/shop/app.py");
    assert_no_name(&map, 0x7f55_0008_0000);
    assert_eq!(map.counters().oversized, 7);
}

#[test]
fn junk_is_skipped_line_by_line_and_counted() {
    let map = map(include_bytes!("../../../../tests/data/junk.map"));
    assert_name(&map, 0x7f00_0000_1006, "py::kept:/srv/a.py");
    assert_name(&map, 0x7f00_0000_4000, "py::empty:/srv/a.py");
    assert_no_name(&map, 0x7f00_0000_4001);
    assert_name(&map, 0x7f00_0000_6006, "py::\u{fffd}\u{fffd}:/srv/x.py");
    assert_name(&map, 0x7f00_0000_9006, "py:::/srv/a.py");
    // Claimed by the line that covers half of the address space.
    assert_no_name(&map, 0x7f00_0000_9106);
    // Without its newline it is not there yet.
    assert_no_name(&map, 0x7f00_0000_a006);
    let counters: &PerfMapCounters = map.counters();
    let skipped = SkipReason::ALL.map(|reason| counters.skipped(reason));
    assert_eq!(skipped, [1, 3, 1, 1, 1, 1, 1, 0]);
    assert_eq!(counters.junk(), 8);
}
