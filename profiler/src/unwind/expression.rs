//! DWARF expressions that an [`UnwindRule`](profiler_common::unwind_row::UnwindRule) can say.
//!
//! Expressions are run on symbols instead of numbers: what is left at the end is a register plus an offset, a word of
//! the stack plus an offset, or the sum that linkers write for PLT entries. It does not matter by which operations a
//! compiler got there; anything else has no meaning to the walk.

use gimli::{Encoding, EndianSlice, Expression, Format, LittleEndian, Operation};

/// `rip` as DWARF numbers it: the return address column.
pub(super) const RIP: u16 = 16;
/// How `.eh_frame` of x86-64 is encoded, as far as expressions are concerned.
const ENCODING: Encoding = Encoding {
    address_size: 8,
    format: Format::Dwarf32,
    version: 4,
};
/// Most values on the stack, and most operations: real expressions have eight.
const STACK_MAX: usize = 8;
const OPERATIONS_MAX: usize = 32;

/// A value made of what is known only when a frame is unwound.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Symbol {
    /// A number.
    Constant(i64),
    /// `CFA + n`.
    Cfa(i64),
    /// `register + n`.
    Register(u16, i64),
    /// `*(register + at) + plus`.
    Word { register: u16, at: i64, plus: i64 },
    /// `rip & 15`.
    InStub,
    /// `(rip & 15) >= n`: 1 or 0.
    InStubFrom(i64),
    /// 8 when `(rip & 15) >= n`, else 0.
    StubPush(i64),
    /// `rsp + 8`, and 8 more when `(rip & 15) >= n`.
    Stub(i64),
}

impl Symbol {
    /// Adds a number.
    fn plus(self, n: i64) -> Option<Self> {
        Some(match self {
            Self::Constant(a) => Self::Constant(a.wrapping_add(n)),
            Self::Cfa(a) => Self::Cfa(a.wrapping_add(n)),
            Self::Register(register, a) => Self::Register(register, a.wrapping_add(n)),
            Self::Word { register, at, plus } => Self::Word {
                register,
                at,
                plus: plus.wrapping_add(n),
            },
            _ => return None,
        })
    }

    /// Adds another symbol.
    fn add(self, other: Self) -> Option<Self> {
        match (self, other) {
            (symbol, Self::Constant(n)) | (Self::Constant(n), symbol) => symbol.plus(n),
            (Self::Register(7, 8), Self::StubPush(n))
            | (Self::StubPush(n), Self::Register(7, 8)) => Some(Self::Stub(n)),
            _ => None,
        }
    }
}

/// Runs an expression over `initial` (the CFA for register rules, nothing for the CFA itself). `None`: it does
/// something that no rule can say, or it is damaged.
pub(super) fn evaluate(
    expression: Expression<EndianSlice<'_, LittleEndian>>,
    initial: Option<Symbol>,
) -> Option<Symbol> {
    let mut stack = [Symbol::Constant(0); STACK_MAX];
    let mut depth = 0_usize;
    if let Some(symbol) = initial {
        stack[0] = symbol;
        depth = 1;
    }
    let mut operations = expression.operations(ENCODING);
    for _ in 0..OPERATIONS_MAX {
        let Some(operation) = operations.next().ok()? else {
            return depth.checked_sub(1).map(|top| stack[top]);
        };
        let mut pop = || {
            depth = depth.checked_sub(1)?;
            Some(stack[depth])
        };
        let result = match operation {
            Operation::Nop => continue,
            Operation::RegisterOffset {
                register, offset, ..
            } => Symbol::Register(register.0, offset),
            Operation::UnsignedConstant { value } => Symbol::Constant(value as i64),
            Operation::SignedConstant { value } => Symbol::Constant(value),
            Operation::CallFrameCFA => Symbol::Cfa(0),
            Operation::PlusConstant { value } => pop()?.plus(value as i64)?,
            Operation::Plus => {
                let right = pop()?;
                pop()?.add(right)?
            }
            Operation::Minus => match pop()? {
                Symbol::Constant(n) => pop()?.plus(n.wrapping_neg())?,
                _ => return None,
            },
            Operation::Deref {
                size: 8,
                space: false,
                ..
            } => match pop()? {
                Symbol::Register(register, at) => Symbol::Word {
                    register,
                    at,
                    plus: 0,
                },
                _ => return None,
            },
            Operation::And => match (pop()?, pop()?) {
                (Symbol::Constant(15), Symbol::Register(RIP, 0))
                | (Symbol::Register(RIP, 0), Symbol::Constant(15)) => Symbol::InStub,
                _ => return None,
            },
            Operation::Ge => match (pop()?, pop()?) {
                (Symbol::Constant(n), Symbol::InStub) => Symbol::InStubFrom(n),
                _ => return None,
            },
            Operation::Shl => match (pop()?, pop()?) {
                (Symbol::Constant(3), Symbol::InStubFrom(n)) => Symbol::StubPush(n),
                _ => return None,
            },
            _ => return None,
        };
        *stack.get_mut(depth)? = result;
        depth += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(bytes: &[u8], initial: Option<Symbol>) -> Option<Symbol> {
        evaluate(Expression(EndianSlice::new(bytes, LittleEndian)), initial)
    }

    /// `breg7+8; breg16+0; lit15; and; lit11; ge; lit3; shl; plus`, as GNU ld writes it for `.plt`.
    #[test]
    fn a_stub_is_recognised_whatever_its_threshold() {
        for threshold in [5, 10, 11] {
            let code = [
                0x77,
                8,
                0x80,
                0,
                0x3f,
                0x1a,
                0x30 + threshold,
                0x2a,
                0x33,
                0x24,
                0x22,
            ];
            assert_eq!(run(&code, None), Some(Symbol::Stub(i64::from(threshold))));
        }
        // Shifted by two: entries are not 8 bytes.
        assert_eq!(
            run(
                &[0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x32, 0x24, 0x22],
                None
            ),
            None
        );
    }

    /// `breg7+152; deref; plus_uconst 8` and `breg7+152; deref; lit8; plus` say the same.
    #[test]
    fn a_word_of_the_stack_is_recognised_by_what_it_is() {
        let word = Some(Symbol::Word {
            register: 7,
            at: 152,
            plus: 8,
        });
        assert_eq!(run(&[0x77, 0x98, 1, 0x06, 0x23, 8], None), word);
        assert_eq!(run(&[0x77, 0x98, 1, 0x06, 0x38, 0x22], None), word);
        assert_eq!(
            run(&[0x76, 0x78, 0x06], None),
            Some(Symbol::Word {
                register: 6,
                at: -8,
                plus: 0
            })
        );
    }

    #[test]
    fn an_address_relative_to_a_register_or_the_cfa_is_recognised() {
        let cfa = Some(Symbol::Cfa(0));
        assert_eq!(run(&[0x76, 0x70], cfa), Some(Symbol::Register(6, -16)));
        assert_eq!(run(&[0x40, 0x1c], cfa), Some(Symbol::Cfa(-16)));
        assert_eq!(run(&[], cfa), cfa);
    }

    #[test]
    fn anything_else_has_no_meaning() {
        let cases: [&[u8]; 6] = [
            &[],
            &[0x06],
            &[0x77],
            &[0x22],
            &[0x2f, 0xfd, 0xff],
            &[0x77, 0, 0x06, 0x06],
        ];
        for code in cases {
            assert_eq!(run(code, None), None, "{code:x?}");
        }
        assert_eq!(run(&[0x31; 20], None), None);
        assert_eq!(run(&[0x96; 64], Some(Symbol::Cfa(0))), None);
    }
}
