//! The forms that rules can have, each from a function made by hand.

use profiler_common::unwind_row::{SAVED_UNKNOWN, UnwindRule, bp, cfa};

use crate::unwind::testing::{TinyElf, at, cfi, only, rsp, table};

/// The rule of a function that has one row with these instructions.
fn single(instructions: &[&[u8]]) -> UnwindRule {
    let table = table(&TinyElf::new().function(0, 16, instructions));
    assert_eq!(at(&table, 0), at(&table, 15));
    at(&table, 0).expect("the function is described")
}

#[test]
fn registers_say_where_they_were_saved() {
    let saved = [
        cfi::saved(6, 2),
        cfi::saved(3, 3),
        cfi::saved(12, 100),
        cfi::saved(14, 4),
        cfi::saved(15, 5),
    ]
    .concat();
    let undefined_r13 = cfi::undefined(13);
    let found = single(&[&cfi::def_cfa_offset(48), &saved, &undefined_r13]);
    let expected = UnwindRule {
        bp: bp::AT_CFA,
        bp_off: -16,
        saved: [3, 100, SAVED_UNKNOWN, 4, 5],
        ..rsp(48)
    };
    assert_eq!(found, expected);
}

#[test]
fn a_frame_address_can_come_from_any_general_register() {
    let from = |kind, reg| UnwindRule {
        cfa: kind,
        reg,
        cfa_off: 16,
        ..UnwindRule::default()
    };
    assert_eq!(single(&[&cfi::def_cfa(6, 16)]), from(cfa::RBP, 0));
    assert_eq!(single(&[&cfi::def_cfa(10, 16)]), from(cfa::REG, 10));
    assert_eq!(single(&[&cfi::def_cfa(3, 16)]), from(cfa::REG, 3));
    assert_eq!(single(&[&cfi::def_cfa(17, 16)]), only(cfa::UNSUPPORTED));
}

#[test]
fn expressions_become_rules() {
    let stub =
        cfi::def_cfa_expression(&[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22]);
    assert_eq!(
        single(&[&stub]),
        UnwindRule {
            cfa: cfa::PLT,
            cfa_off: 11,
            ..UnwindRule::default()
        }
    );
    let word = cfi::def_cfa_expression(&[0x77, 0x98, 1, 0x06, 0x23, 8]);
    let expected = UnwindRule {
        cfa: cfa::DEREF_RSP,
        cfa_off: (8 << 16) + 152,
        ..UnwindRule::default()
    };
    assert_eq!(single(&[&word]), expected);
    // A realigned stack: CFA = *(rbp - 8), rbp at rbp + 0, rbx at rbp - 16.
    let realigned = cfi::def_cfa_expression(&[0x76, 0x78, 0x06]);
    let found = single(&[
        &realigned,
        &cfi::expression(6, &[0x76, 0]),
        &cfi::expression(3, &[0x76, 0x70]),
    ]);
    let expected = UnwindRule {
        cfa: cfa::DEREF_RBP,
        cfa_off: i32::from(-8_i16 as u16),
        bp: bp::AT_RBP,
        saved: [SAVED_UNKNOWN, 0, 0, 0, 0],
        ..UnwindRule::default()
    };
    assert_eq!(found, expected);
    assert_eq!(
        single(&[&cfi::def_cfa_expression(&[0x77, 8, 0x06, 0x06])]),
        only(cfa::UNSUPPORTED)
    );
}

#[test]
fn a_frame_without_a_return_address_is_the_outermost_one() {
    assert_eq!(single(&[&cfi::undefined(16)]), only(cfa::END));
}

#[test]
fn a_return_address_in_another_place_is_unsupported() {
    assert_eq!(single(&[&cfi::saved(16, 2)]), only(cfa::UNSUPPORTED));
    let in_register = [0x09, 16, 8];
    assert_eq!(single(&[&in_register]), only(cfa::UNSUPPORTED));
}

#[test]
fn a_frame_pointer_that_no_rule_can_find_makes_the_row_unsupported() {
    let far = [0x11, 6, 0x80, 0x40, 0]; // offset_extended_sf rbp: -8 * 8192
    assert_eq!(single(&[&far]), only(cfa::UNSUPPORTED));
    assert_eq!(single(&[&cfi::undefined(6)]), only(cfa::UNSUPPORTED));
    let pushed = cfi::saved(7, 2);
    assert_eq!(
        single(&[&pushed]),
        only(cfa::UNSUPPORTED),
        "the caller's stack pointer is not the CFA"
    );
}

#[test]
fn only_a_frame_that_holds_a_context_is_a_signal_frame() {
    let context = cfi::def_cfa_expression(&[0x77, 0xa0, 1, 0x06]);
    let rip = cfi::expression(16, &[0x77, 0xa8, 1]);
    let elf = TinyElf::new().shared(b"zRS\0", &[]);
    let restorer = elf.clone().function(0, 16, &[&context, &rip]);
    assert_eq!(at(&table(&restorer), 0), Some(only(cfa::SIGNAL)));
    // Assembly that borrows the mark to have its address taken as it is.
    assert_eq!(at(&table(&elf.function(0, 16, &[])), 0), Some(rsp(8)));
}

#[test]
fn a_place_relative_to_the_frame_addresses_own_register_is_relative_to_the_frame_address() {
    // CFA = rsp + 48; rbp at rsp + 32, rbx at rsp + 24.
    let found = single(&[
        &cfi::def_cfa_offset(48),
        &cfi::expression(6, &[0x77, 32]),
        &cfi::expression(3, &[0x77, 24]),
    ]);
    let expected = UnwindRule {
        bp: bp::AT_CFA,
        bp_off: -16,
        saved: [3, 0, 0, 0, 0],
        ..rsp(48)
    };
    assert_eq!(found, expected);
}
