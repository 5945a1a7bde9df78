//! The one rule for code that no ELF file describes: trampolines, recognised by their own bytes.
//!
//! CPython copies the same few instructions before each Python function (`Python/asm_trampoline.S`, 3.12 and later).
//! On x86-64 there are two forms, each with or without a leading `endbr64` and with any padding after it:
//!
//! ```text
//! 3.12.0 – 3.13.5    48 83 ec 08   sub  $8,%rsp         later 3.13, 3.14+   55         push %rbp
//!                    ff d1         call *%rcx                               48 89 e5   mov  %rsp,%rbp
//!                    48 83 c4 08   add  $8,%rsp                             ff d1      call *%rcx
//!                    c3            ret                                      5d         pop  %rbp
//!                                                                           c3         ret
//! ```
//!
//! The bundled trampolines for older CPythons use the second form. Bytes are given as little-endian words, so that
//! the kernel side compares registers.

use crate::unwind_row::{UnwindRule, bp, cfa, rule_flags};

/// `sub $8,%rsp; call *%rcx;` and the first two bytes of `add`.
const PLAIN: u64 = u64::from_le_bytes([0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83]);
/// The whole of the frame-pointer form.
const FRAMED: u64 = u64::from_le_bytes([0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3]);
/// `endbr64`
const ENDBR64: u64 = 0xfa1e_0ff3;
/// `mov $15,%rax` and the first byte of `syscall`: the signal restorer of glibc and musl (`__NR_rt_sigreturn`).
const SIGRETURN: u64 = u64::from_le_bytes([0x48, 0xc7, 0xc0, 0x0f, 0x00, 0x00, 0x00, 0x0f]);

/// Bytes before a return address at which [`caller_rule`] wants to look.
pub const CALL_OFFSET: u64 = 6;

const fn rule(cfa_off: i32, bp_kind: u8) -> UnwindRule {
    UnwindRule {
        cfa: cfa::RSP,
        bp: bp_kind,
        reg: 0,
        saved: [0; 5],
        cfa_off,
        bp_off: -16,
        flags: rule_flags::TRAMPOLINE,
    }
}

/// Keeps the lowest `bytes` bytes of a word.
#[inline(always)]
const fn low(word: u64, bytes: u32) -> u64 {
    word & (u64::MAX >> (64 - 8 * bytes))
}

/// The rule for a frame that made a call: `around` is the word that begins [`CALL_OFFSET`] bytes before the return
/// address, so that it holds the call and what stands before it.
#[inline(always)]
pub fn caller_rule(around: u64) -> Option<UnwindRule> {
    if around == PLAIN {
        Some(rule(16, bp::SAME))
    } else if around == FRAMED {
        Some(rule(16, bp::AT_CFA))
    } else {
        None
    }
}

/// The rule for a signal restorer: `at` is the word at the instruction pointer.
#[inline(always)]
pub fn sigreturn_rule(at: u64) -> Option<UnwindRule> {
    if at == SIGRETURN {
        Some(UnwindRule {
            cfa: cfa::SIGNAL,
            flags: 0,
            ..rule(0, bp::SAME)
        })
    } else {
        None
    }
}

/// The rule for an interrupted frame: `at` is the word at the instruction pointer, `before` the one that ends there.
/// A word that could not be read is passed as 0.
#[inline(always)]
pub fn leaf_rule(at: u64, before: u64) -> Option<UnwindRule> {
    // Before anything was pushed: `endbr64`, `sub`, `push`; `before` is not looked at, it belongs to a neighbour. Behind
    // `endbr64`, with which a function begins, four bytes are enough: any function has pushed nothing there. Elsewhere
    // `sub $8,%rsp` may be in the middle of one, as V8 has it for floating-point remainders.
    let second = at >> 32;
    let is_entry = low(at, 4) == ENDBR64 && (second == low(PLAIN, 4) || second == low(FRAMED, 4));
    if is_entry || at == PLAIN || at == FRAMED {
        return Some(rule(8, bp::SAME));
    }
    // The plain form: call, add, ret.
    if low(at, 4) == PLAIN >> 32 && before >> 32 == low(PLAIN, 4) {
        return Some(rule(16, bp::SAME));
    }
    if low(at, 5) == 0xc3_08c4_8348 && before >> 48 == 0xd1ff {
        return Some(rule(16, bp::SAME));
    }
    if low(at, 1) == 0xc3 && before >> 16 == 0x08c4_8348_d1ff {
        return Some(rule(8, bp::SAME));
    }
    // The frame-pointer form: mov (rbp is still the caller's), call, pop, ret.
    if low(at, 7) == FRAMED >> 8 && before >> 56 == 0x55 {
        return Some(rule(16, bp::SAME));
    }
    if low(at, 4) == FRAMED >> 32 && before >> 32 == low(FRAMED, 4) {
        return Some(rule(16, bp::AT_CFA));
    }
    if low(at, 2) == FRAMED >> 48 && before >> 16 == low(FRAMED, 6) {
        return Some(rule(16, bp::AT_CFA));
    }
    if low(at, 1) == 0xc3 && before >> 8 == low(FRAMED, 7) {
        return Some(rule(8, bp::SAME));
    }
    None
}

/// The bytes just before `return_address` are a call instruction: `before` is the word that ends there.
///
/// Covers `call rel32` and the forms of `call r/m64` (Intel SDM volume 2, CALL) with their usual lengths.
#[inline(always)]
pub fn ends_in_call(before: u64) -> bool {
    let byte = |n: u32| (before >> (8 * n)) & 0xff;
    // opcode ff, register field 2 of the ModRM byte that follows
    let indirect = |opcode: u32, modrm: u32| byte(opcode) == 0xff && (byte(modrm) >> 3) & 7 == 2;
    byte(3) == 0xe8
        || indirect(6, 7)
        || indirect(5, 6)
        || indirect(4, 5)
        || indirect(2, 3)
        || indirect(1, 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN_CODE: [u8; 11] = [
        0x48, 0x83, 0xec, 0x08, 0xff, 0xd1, 0x48, 0x83, 0xc4, 0x08, 0xc3,
    ];
    const FRAMED_CODE: [u8; 8] = [0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3];
    const ENDBR: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

    fn word(code: &[u8], at: i64) -> u64 {
        let mut bytes = [0u8; 8];
        for (n, byte) in bytes.iter_mut().enumerate() {
            let index = at + n as i64;
            if index >= 0 {
                *byte = *code.get(index as usize).unwrap_or(&0xcc);
            }
        }
        u64::from_le_bytes(bytes)
    }

    /// Two copies of `code`, so that each has a neighbour, with `padding` between.
    fn pair(code: &[u8], padding: usize) -> ([u8; 96], usize) {
        let mut all = [0xcc; 96];
        let second = code.len() + padding;
        all[..code.len()].copy_from_slice(code);
        all[second..second + code.len()].copy_from_slice(code);
        (all, second)
    }

    fn with_endbr<const N: usize>(code: &[u8]) -> [u8; N] {
        let mut all = [0; N];
        all[..4].copy_from_slice(&ENDBR);
        all[4..].copy_from_slice(code);
        all
    }

    fn check(code: &[u8], expected: &[(usize, i32, u8)], return_offset: usize, return_bp: u8) {
        for padding in [0, 1, 5, 17] {
            let (all, second) = pair(code, padding);
            for start in [0, second] {
                for &(offset, cfa_off, bp_kind) in expected {
                    let at = (start + offset) as i64;
                    let found = leaf_rule(word(&all, at), word(&all, at - 8));
                    assert_eq!(
                        found,
                        Some(rule(cfa_off, bp_kind)),
                        "offset {offset} padding {padding}"
                    );
                }
                let at = (start + return_offset) as i64 - CALL_OFFSET as i64;
                assert_eq!(caller_rule(word(&all, at)), Some(rule(16, return_bp)));
            }
        }
    }

    #[test]
    fn every_instruction_of_the_plain_form_is_known() {
        let expected = [
            (0, 8, bp::SAME),
            (4, 16, bp::SAME),
            (6, 16, bp::SAME),
            (10, 8, bp::SAME),
        ];
        check(&PLAIN_CODE, &expected, 6, bp::SAME);
        let shifted = [
            (0, 8, bp::SAME),
            (4, 8, bp::SAME),
            (8, 16, bp::SAME),
            (10, 16, bp::SAME),
            (14, 8, bp::SAME),
        ];
        check(&with_endbr::<15>(&PLAIN_CODE), &shifted, 10, bp::SAME);
    }

    #[test]
    fn every_instruction_of_the_frame_pointer_form_is_known() {
        let expected = [
            (0, 8, bp::SAME),
            (1, 16, bp::SAME),
            (4, 16, bp::AT_CFA),
            (6, 16, bp::AT_CFA),
            (7, 8, bp::SAME),
        ];
        check(&FRAMED_CODE, &expected, 6, bp::AT_CFA);
        let shifted = [
            (0, 8, bp::SAME),
            (4, 8, bp::SAME),
            (5, 16, bp::SAME),
            (8, 16, bp::AT_CFA),
            (10, 16, bp::AT_CFA),
            (11, 8, bp::SAME),
        ];
        check(&with_endbr::<12>(&FRAMED_CODE), &shifted, 10, bp::AT_CFA);
    }

    #[test]
    fn other_code_is_not_taken_for_a_trampoline() {
        // push %rbp; mov %rsp,%rbp; sub $16,%rsp: an ordinary function
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10];
        assert_eq!(leaf_rule(word(&code, 0), 0), None);
        assert_eq!(leaf_rule(word(&[0xc3, 0xcc], 0), 0), None);
        // sub $8,%rsp; vmovsd %xmm2,(%rsp): the middle of one that V8 made
        let code = [0x48, 0x83, 0xec, 0x08, 0xc5, 0xfb, 0x11, 0x14, 0x24];
        assert_eq!(leaf_rule(word(&code, 0), 0), None);
        // add $8,%rsp; vaddsd %xmm0,%xmm1,%xmm0
        let code = [0x48, 0x83, 0xc4, 0x08, 0xc5, 0xf3, 0x58, 0xc0];
        assert_eq!(leaf_rule(word(&code, 0), word(&code, -8)), None);
        assert_eq!(caller_rule(word(&code, 0)), None);
    }

    #[test]
    fn calls_are_recognised_by_the_bytes_before_a_return_address() {
        let ending = |code: &[u8]| {
            let mut bytes = [0x90; 8];
            bytes[8 - code.len()..].copy_from_slice(code);
            u64::from_le_bytes(bytes)
        };
        assert!(ends_in_call(ending(&[0xe8, 1, 2, 3, 4])));
        assert!(ends_in_call(ending(&[0xff, 0xd0])));
        assert!(ends_in_call(ending(&[0x41, 0xff, 0xd4])));
        assert!(ends_in_call(ending(&[0xff, 0x15, 1, 2, 3, 4])));
        assert!(ends_in_call(ending(&[0xff, 0x50, 0x18])));
        assert!(!ends_in_call(ending(&[0xc3])));
    }
}
