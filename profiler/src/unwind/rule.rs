//! From one row of call frame information to one [`UnwindRule`].

use gimli::{
    CfaRule, EndianSlice, LittleEndian, RegisterRule, UnwindContextStorage, UnwindExpression,
    UnwindSection, UnwindTableRow,
};
use profiler_common::unwind_row::{SAVED_REGISTERS, SAVED_UNKNOWN, UnwindRule, bp, cfa};

use super::expression::{RIP, Symbol, evaluate};

/// `rbp` and `rsp` as DWARF numbers them (x86-64 psABI, figure 3.36).
const RBP: u16 = 6;
const RSP: u16 = 7;
/// The last general register.
const R15: u16 = 15;
/// Where a signal frame holds the interrupted `rsp`: in `uc_mcontext.gregs[REG_RSP]` of the context at its own `rsp`.
const CONTEXT_RSP: Symbol = Symbol::Word {
    register: RSP,
    at: 160,
    plus: 0,
};

/// The bytes of a section, as gimli reads them.
pub(super) type Reader<'a> = EndianSlice<'a, LittleEndian>;

/// Room for the rows of one function. Compilers nest `remember_state` once or twice and name at most the general and
/// some vector registers; a file that needs more is damaged, and small bounds keep hostile ones cheap.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Storage;

impl UnwindContextStorage<usize> for Storage {
    type Rules = [(gimli::Register, RegisterRule<usize>); 48];
    type Stack = Box<[UnwindTableRow<usize, Self>; 8]>;
}

/// There is unwind information, but no rule can say it.
pub(super) const UNSUPPORTED: UnwindRule = only(cfa::UNSUPPORTED);

/// A rule without parameters.
pub(super) const fn only(kind: u8) -> UnwindRule {
    UnwindRule {
        cfa: kind,
        bp: bp::SAME,
        reg: 0,
        saved: [0; 5],
        cfa_off: 0,
        bp_off: 0,
        flags: 0,
    }
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    /// Still in the register.
    Same,
    /// At `CFA + n`.
    AtCfa(i64),
    /// At `rbp + n`, with this frame's `rbp`.
    AtRbp(i64),
    /// Nowhere: the frame has no caller, if this is the return address.
    Undefined,
    /// Somewhere else.
    Elsewhere,
}

/// Translates the rows of one section.
pub(super) struct Translator<'s, S> {
    section: &'s S,
    /// Expressions that may still be evaluated. Real files have some thousands; a hostile one could have eight in each
    /// of its rows, and they are what takes time.
    expressions_left: u32,
}

impl<'a, 's, S: UnwindSection<Reader<'a>>> Translator<'s, S> {
    /// For the rows of `section`.
    pub(super) const fn new(section: &'s S) -> Self {
        Self {
            section,
            expressions_left: 1 << 21,
        }
    }

    /// Translates a row. `is_signal`: the augmentation says that this is a signal frame; `return_column` is the number
    /// of the column that holds the return address.
    pub(super) fn translate(
        &mut self,
        row: &UnwindTableRow<usize, Storage>,
        is_signal: bool,
        return_column: u16,
    ) -> UnwindRule {
        let cfa_symbol = match row.cfa() {
            CfaRule::RegisterAndOffset { register, offset } => {
                Some(Symbol::Register(register.0, *offset))
            }
            CfaRule::Expression(expression) => self.evaluate(expression, None),
        };
        let (mut return_address, mut frame_pointer) = (Place::Elsewhere, Place::Same);
        let mut saved = [0; 5];
        let mut stack_pointer_is_cfa = true;
        for (register, rule) in row.registers() {
            let mut place = || self.place(rule, cfa_symbol);
            match register.0 {
                n if n == return_column => return_address = place(),
                RBP => frame_pointer = place(),
                RSP => stack_pointer_is_cfa = matches!(rule, RegisterRule::ValOffset(0)),
                n => {
                    if let Some(index) = SAVED_REGISTERS.iter().position(|&s| u16::from(s) == n) {
                        saved[index] = saved_byte(place());
                    }
                }
            }
        }
        if is_signal && cfa_symbol == Some(CONTEXT_RSP) {
            return only(cfa::SIGNAL);
        }
        if return_address == Place::Undefined {
            return only(cfa::END);
        }
        if return_address != Place::AtCfa(-8) || return_column != RIP || !stack_pointer_is_cfa {
            return UNSUPPORTED;
        }
        let mut rule = only(cfa::NONE);
        rule.saved = saved;
        let complete = cfa_symbol
            .and_then(|symbol| set_cfa(&mut rule, symbol))
            .and_then(|()| set_bp(&mut rule, frame_pointer));
        complete.map_or(UNSUPPORTED, |()| rule)
    }

    /// Where a register rule says that the register is.
    fn place(&mut self, rule: &RegisterRule<usize>, cfa_symbol: Option<Symbol>) -> Place {
        let expression = match rule {
            RegisterRule::SameValue => return Place::Same,
            RegisterRule::Undefined => return Place::Undefined,
            RegisterRule::Offset(n) => return Place::AtCfa(*n),
            RegisterRule::Expression(expression) => expression,
            _ => return Place::Elsewhere,
        };
        match (self.evaluate(expression, Some(Symbol::Cfa(0))), cfa_symbol) {
            (Some(Symbol::Cfa(n)), _) => Place::AtCfa(n),
            // The register that the CFA is computed from: the distance to the CFA is fixed.
            (Some(Symbol::Register(register, n)), Some(Symbol::Register(base, to_cfa)))
                if register == base =>
            {
                Place::AtCfa(n.wrapping_sub(to_cfa))
            }
            (Some(Symbol::Register(RBP, n)), _) => Place::AtRbp(n),
            _ => Place::Elsewhere,
        }
    }

    fn evaluate(
        &mut self,
        expression: &UnwindExpression<usize>,
        initial: Option<Symbol>,
    ) -> Option<Symbol> {
        self.expressions_left = self.expressions_left.checked_sub(1)?;
        evaluate(expression.get(self.section).ok()?, initial)
    }
}

/// Writes how the CFA is found; `None` when a rule cannot say it.
fn set_cfa(rule: &mut UnwindRule, symbol: Symbol) -> Option<()> {
    match symbol {
        Symbol::Register(register, offset) => {
            rule.cfa = match register {
                RSP => cfa::RSP,
                RBP => cfa::RBP,
                n if n <= R15 => {
                    rule.reg = n as u8;
                    cfa::REG
                }
                _ => return None,
            };
            rule.cfa_off = i32::try_from(offset).ok()?;
        }
        Symbol::Word { register, at, plus } => {
            rule.cfa = match register {
                RSP => cfa::DEREF_RSP,
                RBP => cfa::DEREF_RBP,
                _ => return None,
            };
            let (at, plus) = (i16::try_from(at).ok()?, i16::try_from(plus).ok()?);
            rule.cfa_off = i32::from(at as u16) | (i32::from(plus) << 16);
        }
        Symbol::Stub(threshold) => {
            rule.cfa = cfa::PLT;
            rule.cfa_off = i32::try_from(threshold).ok()?;
        }
        _ => return None,
    }
    Some(())
}

/// Writes how the caller's `rbp` is found; `None` when a rule cannot say it.
fn set_bp(rule: &mut UnwindRule, place: Place) -> Option<()> {
    let (kind, offset) = match place {
        Place::Same => (bp::SAME, 0),
        Place::AtCfa(n) => (bp::AT_CFA, n),
        Place::AtRbp(n) => (bp::AT_RBP, n),
        Place::Undefined | Place::Elsewhere => return None,
    };
    rule.bp = kind;
    rule.bp_off = i16::try_from(offset).ok()?;
    Some(())
}

/// The byte for [`UnwindRule::saved`].
fn saved_byte(place: Place) -> u8 {
    match place {
        Place::Same => 0,
        Place::AtCfa(n) if n < 0 && n % 8 == 0 => match u8::try_from(n.unsigned_abs() / 8) {
            Ok(byte) => byte,
            Err(_) => SAVED_UNKNOWN,
        },
        _ => SAVED_UNKNOWN,
    }
}

#[cfg(test)]
#[path = "rule_tests.rs"]
mod tests;
