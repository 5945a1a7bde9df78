//! Finishes in user space a walk that the kernel side had to stop, because it met a file whose table was not there
//! yet. Steps are the same as the kernel's, but memory is what the sample carries: a copy of the stack.

use profiler_common::sample::{NATIVE_FRAMES_MAX, native};
use profiler_common::trampoline::{CALL_OFFSET, caller_rule, leaf_rule, sigreturn_rule};
use profiler_common::unwind_row::{
    SAVED_REGISTERS, SAVED_UNKNOWN, UnwindRule, bp, cfa, rule_flags,
};

use super::finish_guess::Guess;
use crate::model::{Avma, CodeAddress, SavedRegister, StackCopy, StackEnd};

/// Bytes of [`CodeBytes`] that lie before the instruction pointer.
pub const CODE_BEFORE: usize = 8;
/// Code around an instruction pointer: [`CODE_BEFORE`] bytes before it, 24 from it on. What could not be read is 0.
pub type CodeBytes = [u8; 32];

/// Where in the `ucontext` a signal frame's registers are, from its own stack pointer on (struct `sigcontext`,
/// arch/x86/include/uapi/asm/sigcontext.h, which begins 40 bytes into `struct ucontext`).
mod context {
    pub(super) const RBP: u64 = 120;
    pub(super) const RSP: u64 = 160;
    pub(super) const RIP: u64 = 168;
    /// `rbx, r12, r13, r14, r15`
    pub(super) const SAVED: [u64; 5] = [128, 72, 80, 88, 96];
}

/// The caller's answer: what is known of the code that a frame executes.
#[derive(Clone, Copy, Debug)]
pub enum RuleLookup {
    /// A file's table has this rule.
    Rule(UnwindRule),
    /// Executable memory of no file: perhaps a trampoline. The bytes are those around the frame's instruction pointer
    /// (for a [`CodeAddress::Caller`]: its return address), all 0 when they cannot be read.
    Anonymous(CodeBytes),
    /// A file that has no rule there.
    NoRule,
    /// A file whose table is still being made.
    NotYet,
    /// No mapping of the process is known there.
    NoMapping,
}

/// How a walk was finished.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FinishedWalk {
    /// How it ended.
    pub end: StackEnd,
    /// Callers of code without unwind information were guessed.
    pub guessed: bool,
}

/// The registers of one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Registers {
    /// Instruction pointer.
    pub ip: Avma,
    /// `rsp`
    pub sp: u64,
    /// `rbp`
    pub bp: u64,
    /// `rbx, r12, r13, r14, r15`
    pub saved: [SavedRegister; 5],
    /// The frame was interrupted: `ip` is where it goes on, not a return address.
    pub is_leaf: bool,
}

impl Registers {
    /// The frame's place in code.
    const fn address(&self) -> CodeAddress {
        if self.is_leaf {
            CodeAddress::Leaf(self.ip)
        } else {
            CodeAddress::Caller(self.ip)
        }
    }

    /// The same as a word of a sample.
    const fn word(&self) -> u64 {
        let address = self.ip.0 & native::ADDRESS;
        if self.is_leaf {
            address | native::INTERRUPTED
        } else {
            address
        }
    }
}

/// Goes on where the kernel side stopped, and appends the callers of the frame at `copy.ip` to `words`, innermost
/// first, as the kernel side does ([`native`]). That frame itself is in `words` already: the kernel side writes a frame's
/// address before it looks for its rule. There are never more than [`NATIVE_FRAMES_MAX`] frames.
///
/// `rule_at` says what is known of a frame's code; look up `address.lookup()`. `trampoline` recognises code of no file
/// by its bytes; the second argument is true for an interrupted frame. Pass [`trampoline_rule`]. `code_around` gives the
/// bytes around an address in a known executable mapping: by them callers of code that nothing describes are guessed.
///
/// An end that names an address names the frame's instruction pointer, as the kernel side does.
///
/// No system call, no allocation but for the growth of `words`.
pub fn finish<S: AsRef<[u8]>>(
    copy: &StackCopy<S>,
    words: &mut Vec<u64>,
    mut rule_at: impl FnMut(CodeAddress) -> RuleLookup,
    trampoline: impl Fn(&CodeBytes, bool) -> Option<UnwindRule>,
    code_around: impl Fn(Avma) -> Option<CodeBytes>,
) -> FinishedWalk {
    let stack = Stack {
        begin: copy.begin,
        bytes: copy.stack.as_ref(),
    };
    let mut registers = Registers {
        ip: copy.ip,
        sp: copy.sp,
        bp: copy.bp,
        saved: copy.saved,
        is_leaf: copy.is_leaf,
    };
    let guess = Guess {
        stack: &stack,
        code: code_around,
    };
    let mut frames = words.iter().filter(|&word| word & native::CFA == 0).count();
    let mut guessed = false;
    let end = loop {
        let at = registers.ip;
        let (rule, without) = match rule_at(registers.address()) {
            RuleLookup::Rule(rule) if rule.cfa != cfa::NONE => (Some(rule), StackEnd::NoRule(at)),
            RuleLookup::Anonymous(bytes) => (
                trampoline(&bytes, registers.is_leaf),
                StackEnd::UnknownJit(at),
            ),
            RuleLookup::Rule(_) | RuleLookup::NoRule => (None, StackEnd::NoRule(at)),
            RuleLookup::NotYet | RuleLookup::NoMapping => break StackEnd::NoMapping(at),
        };
        if let Some(rule) = rule {
            registers = match step(&registers, &rule, &stack) {
                Ok(caller) => caller,
                Err(end) => break end,
            };
            if rule.flags & rule_flags::EVALUATION_LOOP != 0 {
                words.push(native::CFA | registers.sp & native::ADDRESS);
            } else if rule.flags & rule_flags::TRAMPOLINE != 0
                && let Some(last) = words.last_mut()
            {
                *last |= native::TRAMPOLINE;
            }
        } else {
            let of_leaf = || {
                let leaf = Some(&registers).filter(|frame| frame.is_leaf);
                leaf.and_then(|frame| guess.by_return_address(frame))
            };
            let by_frame_pointer = || guess.by_frame_pointer(&registers);
            // Generated code keeps a frame pointer more often than code of a file that says nothing of it.
            let caller = if matches!(without, StackEnd::UnknownJit(_)) {
                by_frame_pointer().or_else(of_leaf)
            } else {
                of_leaf().or_else(by_frame_pointer)
            };
            let Some(caller) = caller else { break without };
            registers = caller;
            guessed = true;
        }
        if frames >= NATIVE_FRAMES_MAX {
            break StackEnd::DepthLimit;
        }
        frames += 1;
        words.push(registers.word());
    };
    FinishedWalk { end, guessed }
}

/// Recognises CPython's trampolines and the C library's signal restorer by their bytes.
pub fn trampoline_rule(around_ip: &CodeBytes, is_leaf: bool) -> Option<UnwindRule> {
    let word = |at: usize| {
        around_ip
            .get(at..)?
            .first_chunk()
            .map(|bytes| u64::from_le_bytes(*bytes))
    };
    let at_ip = word(CODE_BEFORE)?;
    let by_place = if is_leaf {
        leaf_rule(at_ip, word(0)?)
    } else {
        caller_rule(word(CODE_BEFORE - CALL_OFFSET as usize)?)
    };
    by_place.or_else(|| sigreturn_rule(at_ip))
}

/// The part of the target's memory that is known.
pub(super) struct Stack<'a> {
    begin: u64,
    bytes: &'a [u8],
}

impl Stack<'_> {
    /// The word at `address`, when all of it was copied.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        let offset = usize::try_from(address.checked_sub(self.begin)?).ok()?;
        Some(u64::from_le_bytes(
            *self.bytes.get(offset..)?.first_chunk()?,
        ))
    }
}

/// From a frame to its caller, or why there is none.
fn step(frame: &Registers, rule: &UnwindRule, stack: &Stack<'_>) -> Result<Registers, StackEnd> {
    let at = frame.ip;
    let read = |address| stack.word(address).ok_or(StackEnd::ReadFault(at));
    let cfa = match rule.cfa {
        cfa::RSP => frame.sp.wrapping_add_signed(i64::from(rule.cfa_off)),
        cfa::RBP => frame.bp.wrapping_add_signed(i64::from(rule.cfa_off)),
        cfa::PLT => frame
            .sp
            .wrapping_add(if frame.ip.0 & 15 >= rule.cfa_off as u64 {
                16
            } else {
                8
            }),
        cfa::DEREF_RSP => deref(frame.sp, rule.cfa_off, read)?,
        cfa::DEREF_RBP => deref(frame.bp, rule.cfa_off, read)?,
        cfa::REG => {
            // Only callee-saved registers are known here, also when the frame was interrupted.
            let index = SAVED_REGISTERS
                .iter()
                .position(|&register| register == rule.reg);
            let base = match index.map(|index| frame.saved[index]) {
                Some(SavedRegister::Value(value)) => value,
                Some(SavedRegister::At(address)) => read(address)?,
                Some(SavedRegister::Unknown) | None => return Err(StackEnd::Unsupported(at)),
            };
            base.wrapping_add_signed(i64::from(rule.cfa_off))
        }
        cfa::SIGNAL => return interrupted(frame.sp, read),
        cfa::END => return Err(StackEnd::Root),
        cfa::NONE => return Err(StackEnd::NoRule(at)),
        _ => return Err(StackEnd::Unsupported(at)),
    };
    if cfa <= frame.sp || cfa % 8 != 0 {
        return Err(StackEnd::NotUp(at));
    }
    let ip = read(cfa.wrapping_sub(8))?;
    if ip == 0 {
        return Err(StackEnd::ZeroReturnAddress);
    }
    // Compilers do not note that a register was restored: between the pops and the return of a function, its place is
    // still said to be where it was pushed, which lies below the stack pointer. Where the copy does not reach down so
    // far, the register itself has the value.
    let was_popped = |place: u64| place < frame.sp && stack.word(place).is_none();
    let offset = i64::from(rule.bp_off);
    let bp_place = match rule.bp {
        bp::AT_CFA => Some(cfa.wrapping_add_signed(offset)),
        bp::AT_RBP => Some(frame.bp.wrapping_add_signed(offset)),
        _ => None,
    };
    let caller_bp = match bp_place.filter(|&place| !was_popped(place)) {
        Some(place) => read(place)?,
        None => frame.bp,
    };
    let mut saved = frame.saved;
    for (register, &byte) in saved.iter_mut().zip(&rule.saved) {
        if byte == SAVED_UNKNOWN {
            *register = SavedRegister::Unknown;
        } else if byte != 0 {
            let place = cfa.wrapping_sub(8 * u64::from(byte));
            if !was_popped(place) {
                *register = SavedRegister::At(place);
            }
        }
    }
    Ok(Registers {
        ip: Avma(ip),
        sp: cfa,
        bp: caller_bp,
        saved,
        is_leaf: false,
    })
}

/// `*(base + low16(offsets)) + high16(offsets)`
fn deref(
    base: u64,
    offsets: i32,
    read: impl Fn(u64) -> Result<u64, StackEnd>,
) -> Result<u64, StackEnd> {
    let word = read(base.wrapping_add_signed(i64::from(offsets as i16)))?;
    Ok(word.wrapping_add_signed(i64::from(offsets >> 16)))
}

/// The frame that a signal interrupted. Its stack may be another one (`sigaltstack`), so it may lie anywhere.
fn interrupted(
    sp: u64,
    read: impl Fn(u64) -> Result<u64, StackEnd>,
) -> Result<Registers, StackEnd> {
    let ip = read(sp.wrapping_add(context::RIP))?;
    if ip == 0 {
        return Err(StackEnd::ZeroReturnAddress);
    }
    Ok(Registers {
        ip: Avma(ip),
        sp: read(sp.wrapping_add(context::RSP))?,
        bp: read(sp.wrapping_add(context::RBP))?,
        saved: context::SAVED.map(|offset| SavedRegister::At(sp.wrapping_add(offset))),
        is_leaf: true,
    })
}

#[cfg(test)]
#[path = "finish_tests.rs"]
mod tests;
