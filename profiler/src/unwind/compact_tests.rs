//! Tables of small files made by hand: pages, gaps, damage and limits.

use profiler_common::unwind_row::cfa;
use proptest::prelude::{any, prop};
use proptest::{prop_assert, proptest};

use super::*;
use crate::model::CodeAddress;
use crate::unwind::testing::{CODE, CODE_BYTES, TinyElf, at, cfi, only, rsp, table};

#[test]
fn rows_are_in_force_from_their_first_byte_to_the_next_row() {
    let push = [
        &[cfi::advance(1)][..],
        &cfi::def_cfa_offset(16),
        &[cfi::advance(9)],
        &cfi::def_cfa_offset(8),
    ];
    let table = table(&TinyElf::new().function(0x20, 11, &push));
    let rules: Vec<_> = [0x1f, 0x20, 0x21, 0x29, 0x2a, 0x2b]
        .map(|address| at(&table, address))
        .into();
    assert_eq!(
        rules,
        [
            None,
            Some(rsp(8)),
            Some(rsp(16)),
            Some(rsp(16)),
            Some(rsp(8)),
            None
        ]
    );
    assert_eq!(
        table.stats,
        CompileStats {
            functions: 1,
            rows_read: 3,
            ..CompileStats::default()
        }
    );
}

#[test]
fn equal_rows_are_stored_once() {
    let table = table(
        &TinyElf::new()
            .function(0, 32, &[&[cfi::advance(4)]])
            .function(32, 32, &[]),
    );
    assert_eq!(
        table.rows,
        [
            CompactRow { offset: 0, rule: 1 },
            CompactRow {
                offset: 64,
                rule: 0
            }
        ]
    );
}

#[test]
fn where_a_program_starts_there_is_no_caller_unless_its_information_says_otherwise() {
    let functions = TinyElf::new()
        .function(0x20, 16, &[])
        .function(0x1000, 16, &[]);
    let rules = |start, addresses: [u64; 3]| {
        let table = table(&functions.clone().start(start));
        addresses.map(|address| at(&table, address))
    };
    let root = Some(only(cfa::END));
    assert_eq!(rules(0x100, [0xff, 0x100, 0x13f]), [None, root, root]);
    assert_eq!(rules(0x100, [0x140, 0x20, 0x1000])[0], None);
    // Up to the next function, in front of all, behind all, and in one.
    assert_eq!(
        rules(0xff0, [0xfef, 0xff0, 0x1000]),
        [None, root, Some(rsp(8))]
    );
    assert_eq!(rules(0x10, [0xf, 0x10, 0x20]), [None, root, Some(rsp(8))]);
    assert_eq!(rules(0x3000, [0x2fff, 0x3000, 0x3040]), [None, root, None]);
    assert_eq!(
        rules(0x20, [0x20, 0x2f, 0x30]),
        [Some(rsp(8)), Some(rsp(8)), None]
    );
}

#[test]
fn padding_keeps_the_rule_before_and_a_longer_gap_has_none() {
    let table = table(
        &TinyElf::new()
            .function(0, 0x11, &[])
            .function(0x20, 0x10, &[])
            .function(0x40, 8, &[]),
    );
    assert_eq!(at(&table, 0x1f), Some(rsp(8)), "15 bytes of padding");
    assert_eq!(at(&table, 0x2f), Some(rsp(8)));
    assert_eq!(at(&table, 0x30), None, "16 bytes that nothing describes");
    assert_eq!(at(&table, 0x40), Some(rsp(8)));
}

#[test]
fn every_page_begins_with_the_rule_in_force() {
    let deep = cfi::def_cfa_offset(64);
    let long = [
        &[cfi::advance(8)][..],
        &deep,
        &cfi::advance4(0x2ff0),
        &cfi::def_cfa_offset(8),
    ];
    let table = table(
        &TinyElf::new()
            .function(0xff8, 0x3001, &long)
            .function(0x6010, 8, &[]),
    );
    assert_eq!(table.first_page, (CODE >> 12) as u32);
    let counts: Vec<u16> = table.pages.iter().map(|page| page.count).collect();
    // The function begins in page 0, fills 1 and 2, ends in 3 with its last byte; nothing is in 4 and 5.
    assert_eq!(counts, [2, 1, 1, 3, 0, 0, 3]);
    for page in table.pages.iter().filter(|page| page.count > 0) {
        assert_eq!(table.rows[page.first_row as usize].offset, 0);
    }
    assert_eq!(at(&table, 0xff7), None);
    for address in [0x1000, 0x1fff, 0x2000, 0x3fef] {
        assert_eq!(at(&table, address), Some(rsp(64)), "{address:x}");
    }
    assert_eq!(at(&table, 0x3ff8), Some(rsp(8)));
    assert_eq!(at(&table, 0x3ff9), None);
    assert_eq!(at(&table, 0x5000), None);
    assert_eq!(at(&table, 0x6000), None);
    assert_eq!(at(&table, 0x6010), Some(rsp(8)));
}

/// `call abort` is the last instruction of a page and of its function: the return address belongs to the next one.
#[test]
fn a_call_that_never_returns_is_looked_up_in_its_own_page() {
    let pushed = [&[cfi::advance(1)][..], &cfi::def_cfa_offset(32)];
    let table = table(
        &TinyElf::new()
            .function(0xfe0, 0x20, &pushed)
            .function(0x1000, 16, &[]),
    );
    let look_up = |address: CodeAddress| table.rule_at(Svma(address.lookup().0)).copied();
    let border = Avma(CODE + 0x1000);
    assert_eq!(look_up(CodeAddress::Caller(border)), Some(rsp(32)));
    assert_eq!(look_up(CodeAddress::Leaf(border)), Some(rsp(8)));
}

#[test]
fn a_function_that_ends_with_its_page_leaves_the_next_page_empty() {
    let table = table(
        &TinyElf::new()
            .function(0xf00, 0x100, &[])
            .function(0x1100, 16, &[]),
    );
    assert_eq!(at(&table, 0xfff), Some(rsp(8)));
    assert_eq!(at(&table, 0x1000), None);
    assert_eq!(
        table.rows[table.pages[1].first_row as usize],
        CompactRow {
            offset: 0,
            rule: RULE_NONE
        }
    );
}

#[test]
fn a_page_can_have_a_row_for_each_byte() {
    let mut instructions = Vec::new();
    for byte in 0..4096_u32 {
        instructions.extend(cfi::def_cfa_offset(8 * (1 + (byte % 8) as u8)));
        instructions.push(cfi::advance(1));
    }
    let table = table(&TinyElf::new().function(0, 4096, &[&instructions]));
    assert_eq!(table.pages[0].count, 4096);
    for byte in 0..4096 {
        assert_eq!(at(&table, byte), Some(rsp(8 * (1 + (byte % 8) as i32))));
    }
}

#[test]
fn of_overlapping_functions_the_later_one_counts_and_the_earlier_one_does_not_come_back() {
    let deep = cfi::def_cfa_offset(32);
    let elf = TinyElf::new()
        .function(0x40, 0x20, &[&deep])
        .function(0, 0x100, &[])
        .function(0x40, 8, &[]);
    let table = table(&elf);
    assert_eq!(at(&table, 0x3f), Some(rsp(8)));
    assert_eq!(at(&table, 0x40), Some(rsp(32)), "the first in the section");
    assert_eq!(at(&table, 0x60), None);
    assert_eq!(table.stats.overlapping_functions, 2);
}

#[test]
fn damaged_entries_are_left_out_and_counted() {
    let outside = CODE_BYTES - 8;
    let elf = TinyElf::new()
        .function(0, 16, &[])
        .function(outside, 16, &[])
        .shared(b"q\0", &[])
        .function(0x40, 16, &[])
        .shared(b"zR\0", &[])
        .function(
            0x80,
            16,
            &[
                &[cfi::advance(4)],
                &cfi::def_cfa_offset(16),
                &[cfi::advance(4), 0x3f],
            ],
        )
        .function(0xc0, 16, &[]);
    let table = table(&elf);
    assert_eq!(table.stats.malformed_entries, 3);
    assert_eq!(at(&table, 0), Some(rsp(8)));
    assert_eq!(at(&table, 0x40), None);
    assert_eq!(at(&table, 0x83), Some(rsp(8)));
    assert_eq!(at(&table, 0x84), Some(rsp(16)));
    assert_eq!(
        at(&table, 0x88),
        Some(only(cfa::UNSUPPORTED)),
        "the rest of the broken function"
    );
    assert_eq!(at(&table, 0xc0), Some(rsp(8)));
}

#[test]
fn what_follows_the_end_mark_is_not_read() {
    let elf = TinyElf::new()
        .function(0, 16, &[])
        .raw(&[0; 4])
        .raw(&[0x55; 64]);
    assert_eq!(
        table(&elf).stats,
        CompileStats {
            functions: 1,
            rows_read: 1,
            ..CompileStats::default()
        }
    );
}

#[test]
fn a_file_that_describes_nothing_says_so() {
    assert_eq!(
        compile(&TinyElf::new().build()).map(|_| ()),
        Err(UnwindError::NoUnwindInformation)
    );
}

/// Entries of `.debug_frame` mark shared ones by all ones, count from the section's start, and hold whole addresses.
#[test]
fn what_only_debuggers_are_told_is_used_when_there_is_nothing_else() {
    let shared = [
        20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 4, 0, 8, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0, 0,
        0,
    ];
    let function = [
        &[20, 0, 0, 0, 0, 0, 0, 0][..],
        &(CODE + 0x40).to_le_bytes(),
        &[16, 0, 0, 0, 0, 0, 0, 0],
    ]
    .concat();
    let file = TinyElf::default()
        .raw(&shared)
        .raw(&[0; 4])
        .raw(&function)
        .build_for_debuggers(0x30);
    let table = compile(&file).expect("the file is whole").table;
    assert_eq!(at(&table, 0x40), Some(rsp(8)));
    assert_eq!(at(&table, 0x50), None);
    assert_eq!(table.stats.malformed_entries, 0);
    // lld describes no stubs.
    assert_eq!(at(&table, CODE_BYTES - 0x31), None);
    assert_eq!(at(&table, CODE_BYTES - 0x30), Some(rsp(16)));
    assert_eq!(
        at(&table, CODE_BYTES - 1).map(|rule| rule.cfa),
        Some(cfa::PLT)
    );
}

/// Running 200,000 instructions for each of 4,000 functions would take long.
#[test]
fn a_huge_shared_entry_does_not_cost_its_size_for_each_function() {
    let mut elf = TinyElf::new()
        .function(0, 16, &[])
        .shared(b"zR\0", &vec![0; 200_000]);
    for n in 1..4000 {
        elf = elf.function(n * 16, 16, &[]);
    }
    let table = table(&elf);
    assert_eq!(at(&table, 0), Some(rsp(8)));
    assert!(table.stats.malformed_entries > 3900, "{:?}", table.stats);
}

#[test]
fn a_table_never_grows_beyond_its_limits_and_ends_with_a_whole_page() {
    let mut builder = Builder::default();
    builder.put(0x1008, rsp(8));
    builder.put((PAGES_MAX << 12) + 0x1000, rsp(16));
    builder.put((PAGES_MAX << 12) + 0x1010, rsp(24));
    let table = builder.finish(CompileStats::default());
    assert_eq!(table.stats.dropped_rows, 2);
    assert_eq!(table.rule_at(Svma(0x1fff)), Some(&rsp(8)));
    assert_eq!(table.rule_at(Svma(0x2000)), None);

    let mut builder = Builder::default();
    builder.put(1 << 50, rsp(8));
    assert_eq!(
        builder.finish(CompileStats::default()).stats.dropped_rows,
        1
    );
}

#[test]
fn rules_beyond_the_limit_are_unsupported() {
    let mut builder = Builder::default();
    for n in 0..RULES_MAX as u64 + 2 {
        builder.put(0x1000 + n, rsp(n as i32));
    }
    let table = builder.finish(CompileStats::default());
    assert_eq!(table.stats.dropped_rules, 3);
    assert_eq!(table.rule_at(Svma(0x1000)), Some(&rsp(0)));
    assert_eq!(
        table.rule_at(Svma(0x1000 + RULES_MAX as u64)),
        Some(&only(cfa::UNSUPPORTED))
    );
}

proptest! {
    #[test]
    fn any_bytes_as_call_frame_information_give_a_table_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let _ = compile(&TinyElf::default().raw(&bytes).build());
    }

    #[test]
    fn any_instructions_leave_other_functions_alone(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let elf = TinyElf::new().function(0, 0x1800, &[&bytes]).function(0x2000, 16, &[]);
        let table = table(&elf);
        prop_assert!(at(&table, 0).is_some() || table.stats.rows_read > 0);
        prop_assert!(at(&table, 0x2000) == Some(rsp(8)));
    }
}
