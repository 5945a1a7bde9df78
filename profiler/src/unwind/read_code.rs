//! Rules for code that nothing describes, read out of the code itself.
//!
//! From where functions begin, each way through the code is followed, and what an instruction does to the stack pointer,
//! to `rbp` and to the registers that are kept is added up. Two ways that meet must agree, or nothing is known from there
//! on. So a rule is never a guess; what is not reached (by calls or jumps to places that are computed) has none.

use std::collections::BTreeMap;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use profiler_common::unwind_row::{SAVED_REGISTERS, SAVED_UNKNOWN, UnwindRule, bp, cfa};
use rustc_hash::{FxHashMap, FxHashSet};

use super::{c_library::CLibrary, eh_frame::NONE, elf::Section, rule::only};

/// Instructions that are followed, some 80 bytes of memory each: musl has some 150,000.
const INSTRUCTIONS_MAX: usize = 400_000;

/// What is known before an instruction. Distances are from the CFA downwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct State {
    /// Of the stack pointer; `None`: it was aligned or moved by a register.
    depth: Option<i32>,
    /// Of the address in `rbp`, while that is the frame's.
    frame: Option<i32>,
    /// Where the caller's `rbp` was saved.
    bp: Option<i32>,
    /// As [`UnwindRule::saved`].
    saved: [u8; 5],
}

impl State {
    const AT_ENTRY: Self = Self {
        depth: Some(8),
        frame: None,
        bp: None,
        saved: [0; 5],
    };

    fn rule(&self) -> UnwindRule {
        let (kind, offset) = match (self.depth, self.frame) {
            (Some(depth), _) => (cfa::RSP, depth),
            (None, Some(frame)) => (cfa::RBP, frame),
            (None, None) => return NONE,
        };
        let mut rule = only(kind);
        rule.cfa_off = offset;
        rule.saved = self.saved;
        if let Some(at) = self.bp {
            rule.bp = bp::AT_CFA;
            rule.bp_off = match i16::try_from(-at) {
                Ok(offset) => offset,
                Err(_) => return NONE,
            };
        }
        rule
    }

    /// After an instruction. `None`: nothing is known then.
    fn after(mut self, instruction: &Instruction) -> Option<Self> {
        let first = instruction.op0_register().full_register();
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let depth = self.depth? + 8;
                self.depth = Some(depth);
                if instruction.op0_kind() == OpKind::Register {
                    self.keep(first, depth);
                }
            }
            Mnemonic::Pushfq => self.depth = Some(self.depth? + 8),
            Mnemonic::Popfq => self.depth = Some(self.depth? - 8),
            Mnemonic::Pop => {
                let depth = self.depth?;
                self.depth = Some(depth - 8);
                if instruction.op0_kind() == OpKind::Register {
                    self.restore(first, depth)?;
                }
            }
            Mnemonic::Leave => {
                let depth = self.frame?;
                self.depth = Some(depth - 8);
                self.restore(Register::RBP, depth)?;
            }
            Mnemonic::Enter => return None,
            Mnemonic::Mov if stores_bp(instruction) => {
                let at = self.depth?.checked_sub(displacement(instruction)?)?;
                self.bp.get_or_insert(at);
            }
            Mnemonic::Cmp | Mnemonic::Test => {}
            _ if instruction.op0_kind() != OpKind::Register => {}
            mnemonic if first == Register::RSP => self = self.moved(mnemonic, instruction)?,
            mnemonic if first == Register::RBP => {
                // Without being saved first, it would be the caller's no more.
                self.bp?;
                let is_frame = mnemonic == Mnemonic::Mov
                    && instruction.op1_kind() == OpKind::Register
                    && instruction.op1_register() == Register::RSP;
                self.frame = if is_frame { self.depth } else { None };
            }
            _ => {}
        }
        (self.depth.is_none_or(|depth| depth >= 8)).then_some(self)
    }

    /// After an instruction that writes the stack pointer.
    fn moved(mut self, mnemonic: Mnemonic, instruction: &Instruction) -> Option<Self> {
        let by = || i32::try_from(instruction.immediate(1).cast_signed()).ok();
        let is_immediate = !matches!(instruction.op1_kind(), OpKind::Register | OpKind::Memory);
        self.depth = match mnemonic {
            Mnemonic::Sub if is_immediate => Some(self.depth?.checked_add(by()?)?),
            Mnemonic::Add if is_immediate => Some(self.depth?.checked_sub(by()?)?),
            Mnemonic::Lea if instruction.memory_index() == Register::None => {
                let base = match instruction.memory_base() {
                    Register::RSP => self.depth?,
                    Register::RBP => self.frame?,
                    _ => return None,
                };
                Some(base.checked_sub(displacement(instruction)?)?)
            }
            Mnemonic::Mov if instruction.op1_register() == Register::RBP => Some(self.frame?),
            // Only the frame's own register leads to the caller now.
            Mnemonic::And | Mnemonic::Sub if self.frame.is_some() => None,
            _ => return None,
        };
        Some(self)
    }

    /// A register was saved this far from the CFA, if it still was the caller's.
    fn keep(&mut self, register: Register, depth: i32) {
        if register == Register::RBP {
            self.bp.get_or_insert(depth);
        } else if let Some(index) = kept_index(register)
            && self.saved[index] == 0
        {
            self.saved[index] = u8::try_from(depth / 8).unwrap_or(SAVED_UNKNOWN);
        }
    }

    /// A register was read back from this far. `None`: from where something else is.
    fn restore(&mut self, register: Register, depth: i32) -> Option<()> {
        match register {
            Register::RSP => return None,
            Register::RBP => {
                self.frame = None;
                if self.bp == Some(depth) {
                    self.bp = None;
                }
            }
            _ => {
                if let Some(index) = kept_index(register)
                    && i32::from(self.saved[index]) * 8 == depth
                {
                    self.saved[index] = 0;
                }
            }
        }
        Some(())
    }
}

/// `mov %rbp, N(%rsp)`.
fn stores_bp(instruction: &Instruction) -> bool {
    instruction.op0_kind() == OpKind::Memory
        && instruction.op1_kind() == OpKind::Register
        && instruction.op1_register() == Register::RBP
        && instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
}

fn displacement(instruction: &Instruction) -> Option<i32> {
    i32::try_from(instruction.memory_displacement64().cast_signed()).ok()
}

/// The register's place in [`UnwindRule::saved`].
fn kept_index(register: Register) -> Option<usize> {
    let number = match register {
        Register::RBX => 3,
        Register::R12 => 12,
        Register::R13 => 13,
        Register::R14 => 14,
        Register::R15 => 15,
        _ => return None,
    };
    SAVED_REGISTERS.iter().position(|&saved| saved == number)
}

/// What was found out about one instruction.
struct Known {
    state: State,
    /// Where the next one is.
    next: u64,
    /// Another way leads here with another state.
    contested: bool,
}

/// The code while it is read.
struct Code<'l, 'a> {
    sections: &'l [Section<'a>],
    never_return: &'l [u64],
    begins: FxHashSet<u64>,
    known: FxHashMap<u64, Known>,
    waiting: Vec<(u64, State)>,
    /// Behind a call and padding: the next function, or the head of a loop.
    doubtful: Vec<(u64, State)>,
}

/// Rules for the functions of a library as far as `is_described` is false, in ascending order.
pub(super) fn read_code(
    library: &CLibrary<'_>,
    is_described: impl Fn(u64) -> bool,
) -> Vec<(u64, UnwindRule)> {
    let begins: FxHashSet<u64> = library.functions.iter().copied().collect();
    let mut code = Code {
        sections: &library.code,
        never_return: &library.never_return,
        waiting: begins.iter().map(|&at| (at, State::AT_ENTRY)).collect(),
        begins,
        known: FxHashMap::default(),
        doubtful: Vec::new(),
    };
    // In an order that does not depend on a hash.
    code.waiting.sort_unstable_by_key(|(at, _)| *at);
    loop {
        if let Some((at, state)) = code.waiting.pop() {
            if !is_described(at) {
                code.follow(at, state);
            }
        } else if let Some((at, state)) = code.doubtful.pop() {
            if !code.known.contains_key(&at) && code.is_loop(at) {
                code.follow(at, state);
            }
        } else {
            break;
        }
    }
    rows(code.known, &library.roots)
}

impl Code<'_, '_> {
    /// Something not far behind jumps back there, which nobody does to the beginning of a function.
    fn is_loop(&self, at: u64) -> bool {
        const LOOP_INSTRUCTIONS_MAX: usize = 64;
        let bytes = bytes_from(self.sections, at);
        let decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let until_return = decoder
            .into_iter()
            .take(LOOP_INSTRUCTIONS_MAX)
            .take_while(|it| !it.is_invalid() && it.flow_control() != FlowControl::Return);
        let branches = [
            FlowControl::ConditionalBranch,
            FlowControl::UnconditionalBranch,
        ];
        until_return
            .filter(|it| branches.contains(&it.flow_control()))
            .any(|it| it.near_branch_target() == at)
    }

    /// Follows one way until it ends or meets another one.
    fn follow(&mut self, mut at: u64, mut state: State) {
        let bytes = bytes_from(self.sections, at);
        let mut decoder = Decoder::with_ip(64, bytes, at, DecoderOptions::NONE);
        let mut instruction = Instruction::default();
        let mut after_call = false;
        while self.known.len() < INSTRUCTIONS_MAX && decoder.can_decode() {
            if let Some(known) = self.known.get_mut(&at) {
                known.contested |= known.state != state;
                return;
            }
            if state != State::AT_ENTRY && self.begins.contains(&at) {
                // The call before it does not return.
                return;
            }
            decoder.decode_out(&mut instruction);
            if instruction.is_invalid() {
                return;
            }
            if after_call && instruction.mnemonic() == Mnemonic::Nop {
                // Either the call does not return, and the next function is aligned; or a loop is.
                while instruction.mnemonic() == Mnemonic::Nop && decoder.can_decode() {
                    at = decoder.ip();
                    decoder.decode_out(&mut instruction);
                }
                self.doubtful.push((at, state));
                return;
            }
            let next = instruction.next_ip();
            let known = Known {
                state,
                next,
                contested: false,
            };
            self.known.insert(at, known);
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::IndirectCall => {}
                // Of the program's own code, or of the kernel's.
                FlowControl::Call => {
                    let target = instruction.near_branch_target();
                    if self.never_return.contains(&target) {
                        return;
                    }
                    // A call to what follows reads the instruction pointer.
                    if target != 0 && target != next && self.begins.insert(target) {
                        self.waiting.push((target, State::AT_ENTRY));
                    }
                }
                FlowControl::ConditionalBranch => {
                    self.waiting.push((instruction.near_branch_target(), state));
                }
                FlowControl::UnconditionalBranch => {
                    self.waiting.push((instruction.near_branch_target(), state));
                    return;
                }
                // It returns, jumps to where nobody knows, or stops.
                _ => return,
            }
            after_call = matches!(
                instruction.flow_control(),
                FlowControl::Call | FlowControl::IndirectCall
            );
            let Some(after) = state.after(&instruction) else {
                return;
            };
            (at, state) = (next, after);
        }
    }
}

fn bytes_from<'a>(sections: &[Section<'a>], at: u64) -> &'a [u8] {
    let inside = |it: &&Section<'_>| at >= it.svma && at - it.svma < it.data.len() as u64;
    let section = sections.iter().find(inside);
    section.map_or(&[], |it| &it.data[(at - it.svma) as usize..])
}

/// One row wherever another rule begins.
fn rows(known: FxHashMap<u64, Known>, roots: &[u64]) -> Vec<(u64, UnwindRule)> {
    let mut sorted: Vec<(u64, Known)> = known.into_iter().collect();
    sorted.sort_unstable_by_key(|(at, _)| *at);
    let mut rows = BTreeMap::new();
    for (
        at,
        Known {
            state,
            next,
            contested,
        },
    ) in &sorted
    {
        let rule = if *contested { NONE } else { state.rule() };
        rows.insert(*at, rule);
        rows.entry(*next).or_insert(NONE);
    }
    for &root in roots {
        // Return addresses are looked up one byte earlier.
        rows.insert(root - 1, only(cfa::END));
        rows.entry(root).or_insert(NONE);
    }
    let mut rows: Vec<(u64, UnwindRule)> = rows.into_iter().collect();
    rows.dedup_by(|next, before| next.1 == before.1);
    rows
}

#[cfg(test)]
#[path = "read_code_tests.rs"]
mod tests;
