//! Callers of code that nothing describes, where a walk is finished in user space: guessed as the kernel side does
//! (`profiler-ebpf/src/guess.rs`), and as uncertain.

use profiler_common::{
    frame_code::{is_before_frame, words_above_return_address},
    trampoline::{ends_in_call, sigreturn_rule},
};

use super::finish::{CodeBytes, Registers, Stack};
use crate::model::{Avma, SavedRegister};

/// Words of the stack in which the caller of code without unwind information is looked for.
const GUESS_WORDS: u64 = 8;
/// A frame of generated code is not larger than this.
const JIT_FRAME_BYTES_MAX: u64 = 64 * 1024;

/// What guesses go by. `code` gives the bytes around an address in a known executable mapping.
pub(super) struct Guess<'a, C> {
    pub(super) stack: &'a Stack<'a>,
    pub(super) code: C,
}

impl<C: Fn(Avma) -> Option<CodeBytes>> Guess<'_, C> {
    /// The caller of an interrupted frame, by the first word of the stack that is a return address.
    pub(super) fn by_return_address(&self, frame: &Registers) -> Option<Registers> {
        for n in 0..GUESS_WORDS {
            let place = frame.sp.wrapping_add(8 * n);
            let word = self.stack.word(place)?;
            if self.is_return_address(word) {
                // A frame that keeps a frame pointer has its caller's just below.
                let is_below = frame.bp == place.wrapping_sub(8);
                let callers = is_below.then(|| self.stack.word(frame.bp)).flatten();
                return Some(Registers {
                    ip: Avma(word),
                    sp: place.wrapping_add(8),
                    bp: callers.unwrap_or(frame.bp),
                    saved: frame.saved,
                    is_leaf: false,
                });
            }
        }
        None
    }

    /// The caller of a frame that keeps a frame pointer. `None`: what is found there does not look like a frame.
    pub(super) fn by_frame_pointer(&self, frame: &Registers) -> Option<Registers> {
        if frame.is_leaf {
            let [before, ahead @ ..] = words((self.code)(frame.ip)?);
            match words_above_return_address(before, ahead[0]) {
                Some(0) => return self.leave(frame.sp, frame.bp),
                Some(pushed) => {
                    let place = frame.sp.wrapping_add(8 * pushed);
                    return self.leave(place, self.stack.word(frame.sp)?);
                }
                None if is_before_frame(&ahead) => {
                    let caller = self.leave(frame.sp, frame.bp);
                    if caller.is_some() {
                        return caller;
                    }
                }
                None => {}
            }
        }
        if !frame.bp.is_multiple_of(8) || frame.bp.wrapping_sub(frame.sp) >= JIT_FRAME_BYTES_MAX {
            return None;
        }
        let callers = self.stack.word(frame.bp)?;
        self.leave(frame.bp.wrapping_add(8), callers)
    }

    /// The caller whose return address lies at `place`, if that is one.
    fn leave(&self, place: u64, bp: u64) -> Option<Registers> {
        let word = self.stack.word(place)?;
        self.is_return_address(word).then(|| Registers {
            ip: Avma(word),
            sp: place.wrapping_add(8),
            bp,
            saved: [SavedRegister::Unknown; 5],
            is_leaf: false,
        })
    }

    /// `word` is the address of code that a call stands before, or of a signal restorer.
    fn is_return_address(&self, word: u64) -> bool {
        (self.code)(Avma(word)).is_some_and(|bytes| {
            let [before, at, ..] = words(bytes);
            ends_in_call(before) || sigreturn_rule(at).is_some()
        })
    }
}

fn words(bytes: CodeBytes) -> [u64; 4] {
    let (words, _) = bytes.as_chunks::<8>();
    let mut all = [0; 4];
    for (word, bytes) in all.iter_mut().zip(words) {
        *word = u64::from_le_bytes(*bytes);
    }
    all
}

#[cfg(test)]
mod tests {
    use crate::{
        model::{Avma, CodeAddress, SavedRegister, StackCopy, StackEnd},
        unwind::{CodeBytes, FinishedWalk, RuleLookup, finish, trampoline_rule},
    };
    use profiler_common::unwind_row::{UnwindRule, cfa};

    const SP: u64 = 0x7ffe_0000_1000;
    /// Generated code; its callers are in a file without unwind information.
    const LEAF: u64 = 0x1000;
    const OUTER: u64 = 0x2000;
    const MAIN: u64 = 0x3000;

    /// Walks from `LEAF`, of which `code` is there. A call stands before `OUTER` and `MAIN`; `MAIN` has no caller.
    fn walk(stack: &[u64], bp: u64, code: &[u8], is_generated: bool) -> (Vec<u64>, FinishedWalk) {
        let bytes: Vec<u8> = stack.iter().flat_map(|word| word.to_le_bytes()).collect();
        let copy = StackCopy {
            ip: Avma(LEAF),
            sp: SP,
            bp,
            saved: [SavedRegister::Value(0); 5],
            is_leaf: true,
            begin: SP,
            stack: &bytes,
        };
        let code_around = |at: Avma| {
            let mut bytes = CodeBytes::default();
            match at.0 {
                LEAF => bytes[8..8 + code.len()].copy_from_slice(code),
                OUTER | MAIN => bytes[3] = 0xe8,
                _ => return None,
            }
            Some(bytes)
        };
        let rule_at = |address: CodeAddress| match address {
            CodeAddress::Leaf(at) if is_generated => {
                RuleLookup::Anonymous(code_around(at).unwrap_or_default())
            }
            CodeAddress::Caller(Avma(MAIN)) => RuleLookup::Rule(UnwindRule {
                cfa: cfa::END,
                ..UnwindRule::default()
            }),
            _ => RuleLookup::NoRule,
        };
        let mut words = vec![LEAF];
        let finished = finish(&copy, &mut words, rule_at, trampoline_rule, code_around);
        (words.split_off(1), finished)
    }

    const GUESSED: FinishedWalk = FinishedWalk {
        end: StackEnd::Root,
        guessed: true,
    };

    #[test]
    fn generated_code_is_left_by_its_frame_pointer() {
        // The word at the stack pointer looks like a return address, and is left over from an earlier call.
        let stack = [MAIN, 7, SP + 0x28, OUTER, 7, SP + 0x38, MAIN];
        let sub = [0x48, 0x83, 0xec, 0x08, 0xc5, 0xfb, 0x11, 0x14, 0x24];
        let found = walk(&stack, SP + 0x10, &sub, true);
        assert_eq!(found, (vec![OUTER, MAIN], GUESSED));
    }

    #[test]
    fn generated_code_without_its_frame_is_left_by_the_stack_pointer() {
        let stack = [OUTER, 7, SP + 0x30, MAIN];
        for code in [
            &[0x55, 0x48, 0x89, 0xe5][..],
            &[0xc3],
            &[0xc2, 0x10, 0x00],
            &[0xf6, 0x43, 0x35, 0x01, 0x55, 0x48, 0x89, 0xe5],
        ] {
            let found = walk(&stack, SP + 0x10, code, true);
            assert_eq!(found, (vec![OUTER, MAIN], GUESSED), "{code:x?}");
        }
        let pushed = [SP + 0x18, OUTER, 7, SP + 0x30, MAIN];
        let found = walk(&pushed, SP + 0x18, &[0x48, 0x89, 0xe5], true);
        assert_eq!(found, (vec![OUTER, MAIN], GUESSED));
    }

    #[test]
    fn the_leaf_of_a_file_without_unwind_information_is_left_by_the_first_return_address() {
        let stack = [7, 7, OUTER, 7, SP + 0x30, MAIN];
        let found = walk(&stack, SP + 0x20, &[0x90], false);
        assert_eq!(found, (vec![OUTER, MAIN], GUESSED));
    }

    #[test]
    fn what_does_not_look_like_a_frame_ends_the_walk() {
        let ended = |end| FinishedWalk {
            end,
            guessed: false,
        };
        for bp in [SP + 4, SP - 8, SP + 0x10_0000, 0] {
            let unknown = ended(StackEnd::UnknownJit(Avma(LEAF)));
            assert_eq!(walk(&[7; 16], bp, &[0x90], true), (vec![], unknown));
            let no_rule = ended(StackEnd::NoRule(Avma(LEAF)));
            assert_eq!(walk(&[7; 16], bp, &[0x90], false), (vec![], no_rule));
        }
    }
}
