//! Walks over stacks made by hand.

use super::*;
use crate::unwind::merge::natives;

const SP: u64 = 0x7ffe_0000_1000;

/// A stack that begins at [`SP`], as words.
struct Hand {
    words: Vec<u64>,
    copy_is_leaf: bool,
    bp: u64,
    saved: [SavedRegister; 5],
}

impl Hand {
    fn new(words: &[u64]) -> Self {
        let saved = [SavedRegister::Value(0); 5];
        Self {
            words: words.to_vec(),
            copy_is_leaf: true,
            bp: 0,
            saved,
        }
    }

    /// Walks from `ip` on, with one rule for each address that is looked up.
    fn walk(&self, ip: u64, rules: &[(u64, RuleLookup)]) -> (Vec<CodeAddress>, StackEnd) {
        let bytes: Vec<u8> = self
            .words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let copy = StackCopy {
            ip: Avma(ip),
            sp: SP,
            bp: self.bp,
            saved: self.saved,
            is_leaf: self.copy_is_leaf,
            begin: SP,
            stack: &bytes,
        };
        let mut words = Vec::new();
        let rule_at = |address: CodeAddress| {
            let known = rules.iter().find(|(at, _)| *at == address.lookup().0);
            known.map_or(RuleLookup::NoMapping, |(_, lookup)| *lookup)
        };
        let end = finish(&copy, &mut words, rule_at, trampoline_rule, |_| None).end;
        let frames = natives(&words).map(|frame| frame.address);
        (frames.collect(), end)
    }
}

fn rule(kind: u8, cfa_off: i32) -> UnwindRule {
    UnwindRule {
        cfa: kind,
        cfa_off,
        ..UnwindRule::default()
    }
}

fn known(kind: u8, cfa_off: i32) -> RuleLookup {
    RuleLookup::Rule(rule(kind, cfa_off))
}

fn caller(at: u64) -> CodeAddress {
    CodeAddress::Caller(Avma(at))
}

#[test]
fn a_caller_is_looked_up_inside_its_call() {
    let stack = Hand::new(&[0xdead, 0x2000, 0x3000]);
    let rules = [
        (0x1000, known(cfa::RSP, 16)),
        (0x1fff, known(cfa::RSP, 8)),
        (0x2fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000), caller(0x3000)], StackEnd::Root)
    );
}

#[test]
fn a_frame_that_was_not_interrupted_is_a_caller_from_the_start() {
    let mut stack = Hand::new(&[0x2000]);
    stack.copy_is_leaf = false;
    let rules = [(0xfff, known(cfa::RSP, 8)), (0x1fff, known(cfa::END, 0))];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000)], StackEnd::Root)
    );
}

/// Between `pop %rbp` and `ret`, unwind information still says that `rbp` is where it was pushed.
#[test]
fn a_register_that_was_popped_below_the_copy_has_its_value() {
    let mut stack = Hand::new(&[0x2000, 0x3000]);
    stack.bp = SP;
    let popped = UnwindRule {
        bp: bp::AT_CFA,
        bp_off: -16,
        ..rule(cfa::RSP, 8)
    };
    let rules = [
        (0x1000, RuleLookup::Rule(popped)),
        (0x1fff, known(cfa::RBP, 16)),
        (0x2fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000), caller(0x3000)], StackEnd::Root)
    );
}

#[test]
fn a_zero_return_address_ends_the_walk() {
    let stack = Hand::new(&[0]);
    assert_eq!(
        stack.walk(0x1000, &[(0x1000, known(cfa::RSP, 8))]),
        (vec![], StackEnd::ZeroReturnAddress)
    );
}

#[test]
fn each_way_to_have_no_rule_has_its_own_end() {
    let stack = Hand::new(&[1]);
    let at = Avma(0x1000);
    let end = |lookup| stack.walk(0x1000, &[(0x1000, lookup)]).1;
    assert_eq!(end(RuleLookup::NoRule), StackEnd::NoRule(at));
    assert_eq!(end(RuleLookup::NoMapping), StackEnd::NoMapping(at));
    assert_eq!(end(RuleLookup::NotYet), StackEnd::NoMapping(at));
    assert_eq!(
        end(RuleLookup::Anonymous([0; 32])),
        StackEnd::UnknownJit(at)
    );
    assert_eq!(end(known(cfa::NONE, 0)), StackEnd::NoRule(at));
    assert_eq!(end(known(cfa::UNSUPPORTED, 0)), StackEnd::Unsupported(at));
    assert_eq!(end(known(200, 0)), StackEnd::Unsupported(at));
}

#[test]
fn the_stack_pointer_must_move_up_by_whole_words() {
    let stack = Hand::new(&[0x2000; 4]);
    for offset in [0, -8, 12] {
        let end = stack.walk(0x1000, &[(0x1000, known(cfa::RSP, offset))]).1;
        assert_eq!(end, StackEnd::NotUp(Avma(0x1000)), "{offset}");
    }
}

#[test]
fn what_was_not_copied_cannot_be_read() {
    let stack = Hand::new(&[0x2000, 0x2000]);
    let fault = StackEnd::ReadFault(Avma(0x1000));
    assert_eq!(
        stack.walk(0x1000, &[(0x1000, known(cfa::RSP, 24))]).1,
        fault
    );
    assert_eq!(
        stack.walk(0x1000, &[(0x1000, known(cfa::DEREF_RSP, 16))]).1,
        fault
    );
    assert_eq!(
        stack.walk(0x1000, &[(0x1000, known(cfa::SIGNAL, 0))]).1,
        fault
    );
    let far = Hand {
        bp: u64::MAX - 7,
        ..Hand::new(&[0x2000])
    };
    assert_eq!(
        far.walk(0x1000, &[(0x1000, known(cfa::DEREF_RBP, 0))]).1,
        fault
    );
}

#[test]
fn the_frame_pointer_is_followed_through_its_saved_values() {
    let stack = Hand {
        bp: SP + 8,
        ..Hand::new(&[0, SP + 32, 0x2000, 0, 0xb0, 0x3000])
    };
    let framed = RuleLookup::Rule(UnwindRule {
        bp: bp::AT_CFA,
        bp_off: -16,
        ..rule(cfa::RBP, 16)
    });
    let rules = [
        (0x1000, framed),
        (0x1fff, framed),
        (0x2fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000), caller(0x3000)], StackEnd::Root)
    );
}

/// A function that realigns its stack keeps the CFA's neighbour at `rbp - 8`, and the old `rbp` at `rbp`.
#[test]
fn a_realigned_stack_is_left_through_the_word_below_the_frame_pointer() {
    let stack = Hand {
        bp: SP + 16,
        ..Hand::new(&[0, SP + 40, SP + 48, 0x99, 0x2000, 0, 0x3000])
    };
    let offsets = i32::from(-8_i16 as u16);
    let realigned = RuleLookup::Rule(UnwindRule {
        bp: bp::AT_RBP,
        bp_off: 0,
        ..rule(cfa::DEREF_RBP, offsets)
    });
    let rules = [
        (0x1000, realigned),
        (0x1fff, known(cfa::RBP, 8)),
        (0x2fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000), caller(0x3000)], StackEnd::Root)
    );
}

#[test]
fn a_word_of_the_stack_plus_an_offset_can_be_the_frame_address() {
    let stack = Hand::new(&[0, SP + 16, 0x2000]);
    let rules = [
        (0x1000, known(cfa::DEREF_RSP, 8 | (8 << 16))),
        (0x1fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000)], StackEnd::Root)
    );
}

#[test]
fn a_plt_stub_is_a_word_deeper_behind_its_push() {
    let stack = Hand::new(&[0x2000, 0x3000]);
    let rules = [(0x100a, known(cfa::PLT, 11)), (0x100b, known(cfa::PLT, 11))];
    assert_eq!(stack.walk(0x100a, &rules).0, [caller(0x2000)]);
    assert_eq!(stack.walk(0x100b, &rules).0, [caller(0x3000)]);
}

#[test]
fn callee_saved_registers_are_known_until_a_frame_hides_them() {
    let mut stack = Hand::new(&[SP + 40, 0x2000, 0, 0x3000, 0x4000]);
    stack.saved[1] = SavedRegister::Value(SP);
    let saves = |saved| {
        RuleLookup::Rule(UnwindRule {
            saved,
            ..rule(cfa::RSP, 16)
        })
    };
    let from_r12 = |offset| {
        RuleLookup::Rule(UnwindRule {
            reg: 12,
            ..rule(cfa::REG, offset)
        })
    };
    // The frame keeps r12 in a register: SP + 32.
    let rules = [
        (0x1000, saves([0; 5])),
        (0x1fff, from_r12(32)),
        (0x2fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000), caller(0x3000)], StackEnd::Root)
    );
    // The frame saved r12 two words below its CFA: SP + 40.
    let rules = [
        (0x1000, saves([0, 2, 0, 0, 0])),
        (0x1fff, from_r12(0)),
        (0x3fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2000), caller(0x4000)], StackEnd::Root)
    );
    let rules = [
        (0x1000, saves([0, SAVED_UNKNOWN, 0, 0, 0])),
        (0x1fff, from_r12(0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules).1,
        StackEnd::Unsupported(Avma(0x2000))
    );
}

#[test]
fn a_caller_saved_register_is_never_known() {
    let r10 = RuleLookup::Rule(UnwindRule {
        reg: 10,
        ..rule(cfa::REG, 8)
    });
    let end = Hand::new(&[0x2000]).walk(0x1000, &[(0x1000, r10)]).1;
    assert_eq!(end, StackEnd::Unsupported(Avma(0x1000)));
}

#[test]
fn a_signal_frame_gives_all_registers_of_the_interrupted_one() {
    let mut words = [0; 26];
    words[9] = SP + 200; // r12
    words[15] = SP + 192; // rbp
    words[20] = SP + 176; // rsp
    words[21] = 0x2000; // rip
    words[22] = 0x3000;
    words[24] = 0x4000;
    let mut stack = Hand::new(&words);
    stack.copy_is_leaf = false;
    let from_r12 = RuleLookup::Rule(UnwindRule {
        reg: 12,
        ..rule(cfa::REG, 0)
    });
    let rules = [
        (0xfff, known(cfa::SIGNAL, 0)),
        (0x2000, known(cfa::RSP, 8)),
        (0x2fff, from_r12),
        (0x3fff, known(cfa::END, 0)),
    ];
    let frames = vec![
        CodeAddress::Leaf(Avma(0x2000)),
        caller(0x3000),
        caller(0x4000),
    ];
    assert_eq!(stack.walk(0x1000, &rules), (frames, StackEnd::Root));
}

/// `sub $8,%rsp; call *%rcx; add $8,%rsp; ret`
#[test]
fn a_trampoline_is_stepped_over_by_its_bytes() {
    let code = [
        0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    let mut around = [0xcc; 32];
    around[2..13].copy_from_slice(&code);
    let stack = Hand::new(&[0x2006, 0, 0x3000]);
    let rules = [
        (0x1000, known(cfa::RSP, 8)),
        (0x2005, RuleLookup::Anonymous(around)),
        (0x2fff, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x1000, &rules),
        (vec![caller(0x2006), caller(0x3000)], StackEnd::Root)
    );
    around[8..19].copy_from_slice(&code);
    let leaf = [
        (0x2000, RuleLookup::Anonymous(around)),
        (0x2005, known(cfa::END, 0)),
    ];
    assert_eq!(
        stack.walk(0x2000, &leaf),
        (vec![caller(0x2006)], StackEnd::Root)
    );
}

#[test]
fn a_deep_stack_ends_at_the_limit() {
    let stack = Hand::new(&[0x2000; 2000]);
    let rules = [(0x1000, known(cfa::RSP, 8)), (0x1fff, known(cfa::RSP, 8))];
    let (frames, end) = stack.walk(0x1000, &rules);
    assert_eq!(
        (frames.len(), end),
        (NATIVE_FRAMES_MAX, StackEnd::DepthLimit)
    );
}
