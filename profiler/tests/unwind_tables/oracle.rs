//! What a row means, found in two ways: by gimli's own evaluation of its DWARF, and by the rule in the table. Both get
//! the same registers, and a memory in which the word at an address is a hash of the address.

use gimli::{
    CfaRule, Encoding, EndianSlice, EvaluationResult, Expression, Format, LittleEndian, Location,
    Register, RegisterRule, UnwindSection, UnwindTableRow, Value,
};
use profiler_common::unwind_row::{SAVED_REGISTERS, SAVED_UNKNOWN, UnwindRule, bp, cfa};

/// The bytes of a section.
pub(crate) type Reader<'a> = EndianSlice<'a, LittleEndian>;

const ENCODING: Encoding = Encoding {
    address_size: 8,
    format: Format::Dwarf32,
    version: 4,
};
const RBP: usize = 6;
const RSP: usize = 7;
const RIP: usize = 16;

/// A register file, by DWARF number; 16 is the instruction pointer.
pub(crate) type Registers = [u64; 17];

/// Any memory will do, as long as both sides see the same.
fn memory(address: u64) -> u64 {
    let mixed = (address ^ (address >> 31)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}

/// Registers that no row can confuse.
pub(crate) fn registers(seed: u64, ip: u64) -> Registers {
    let mut registers = [0; 17];
    for (n, register) in registers.iter_mut().enumerate() {
        *register = memory(seed.wrapping_mul(31).wrapping_add(n as u64)) & 0x7fff_ffff_fff8;
    }
    registers[RIP] = ip;
    registers
}

/// Where a register of the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// Still in the register.
    Same,
    /// In memory.
    At(u64),
    /// It has no value.
    Undefined,
    /// Somewhere else.
    Other,
}

/// The caller of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// The canonical frame address.
    pub(crate) cfa: u64,
    /// The return address, `rbp`, and `rbx, r12, r13, r14, r15`.
    pub(crate) places: [Place; 7],
    /// The place is written as a distance from the CFA, not as an expression.
    pub(crate) is_offset: [bool; 7],
}

/// The columns of [`Caller::places`].
fn columns() -> [usize; 7] {
    let mut columns = [RIP, RBP, 0, 0, 0, 0, 0];
    for (column, saved) in columns[2..].iter_mut().zip(SAVED_REGISTERS) {
        *column = usize::from(saved);
    }
    columns
}

/// Runs a DWARF expression with gimli.
fn run(
    expression: Expression<Reader<'_>>,
    initial: Option<u64>,
    registers: &Registers,
) -> Option<u64> {
    let mut evaluation = expression.evaluation(ENCODING);
    evaluation.set_max_iterations(1000);
    if let Some(value) = initial {
        evaluation.set_initial_value(value);
    }
    let mut result = evaluation.evaluate().ok()?;
    loop {
        result = match result {
            EvaluationResult::Complete => break,
            EvaluationResult::RequiresMemory { address, .. } => evaluation
                .resume_with_memory(Value::Generic(memory(address)))
                .ok()?,
            EvaluationResult::RequiresRegister { register, .. } => {
                let value = *registers.get(usize::from(register.0))?;
                evaluation
                    .resume_with_register(Value::Generic(value))
                    .ok()?
            }
            _ => return None,
        };
    }
    match evaluation.as_result().first()?.location {
        Location::Address { address } => Some(address),
        _ => None,
    }
}

/// What gimli says. `None`: the CFA cannot be computed.
pub(crate) fn by_gimli<'a, S, C>(
    section: &S,
    row: &UnwindTableRow<usize, C>,
    registers: &Registers,
) -> Option<Caller>
where
    S: UnwindSection<Reader<'a>>,
    C: gimli::UnwindContextStorage<usize>,
{
    let cfa = match row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } => registers
            .get(usize::from(register.0))?
            .wrapping_add_signed(*offset),
        CfaRule::Expression(e) => run(e.get(section).ok()?, None, registers)?,
    };
    let place = |column: usize| match row.register(Register(column as u16)) {
        None | Some(RegisterRule::SameValue) => Place::Same,
        Some(RegisterRule::Offset(offset)) => Place::At(cfa.wrapping_add_signed(offset)),
        Some(RegisterRule::Undefined) => Place::Undefined,
        Some(RegisterRule::Expression(e)) => {
            let address = e
                .get(section)
                .ok()
                .and_then(|e| run(e, Some(cfa), registers));
            address.map_or(Place::Other, Place::At)
        }
        Some(_) => Place::Other,
    };
    let is_offset = |column: usize| {
        matches!(
            row.register(Register(column as u16)),
            Some(RegisterRule::Offset(_))
        )
    };
    Some(Caller {
        cfa,
        places: columns().map(place),
        is_offset: columns().map(is_offset),
    })
}

/// A row that every rule can say: its CFA is a register and an offset, the rest lies at fixed distances from it.
pub(crate) fn is_plain<C: gimli::UnwindContextStorage<usize>>(
    row: &UnwindTableRow<usize, C>,
) -> bool {
    let register = |column: usize| row.register(Register(column as u16));
    let is_near = |offset: i64| i16::try_from(offset).is_ok();
    matches!(row.cfa(), CfaRule::RegisterAndOffset { register, .. } if register.0 < 16)
        && register(RIP) == Some(RegisterRule::Offset(-8))
        && matches!(register(RSP), None | Some(RegisterRule::ValOffset(0)))
        && match register(RBP) {
            None | Some(RegisterRule::SameValue) => true,
            Some(RegisterRule::Offset(offset)) => is_near(offset),
            _ => false,
        }
}

/// What the rule says of a frame whose rule is not one of a kind without parameters.
///
/// Where it says "unknown", the place is copied from `expected`, unless it is one that a rule must be able to say.
pub(crate) fn by_rule(rule: &UnwindRule, registers: &Registers, expected: &Caller) -> Caller {
    let add = |base: usize| registers[base].wrapping_add_signed(i64::from(rule.cfa_off));
    let deref = |base: usize| {
        let (low, high) = (rule.cfa_off as i16, rule.cfa_off >> 16);
        memory(registers[base].wrapping_add_signed(i64::from(low)))
            .wrapping_add_signed(i64::from(high))
    };
    let cfa = match rule.cfa {
        cfa::RSP => add(RSP),
        cfa::RBP => add(RBP),
        cfa::REG => add(usize::from(rule.reg)),
        cfa::DEREF_RSP => deref(RSP),
        cfa::DEREF_RBP => deref(RBP),
        cfa::PLT => {
            registers[RSP]
                + if registers[RIP] % 16 >= rule.cfa_off as u64 {
                    16
                } else {
                    8
                }
        }
        kind => panic!("a rule of kind {kind} has no frame address"),
    };
    let offset = i64::from(rule.bp_off);
    let caller_bp = match rule.bp {
        bp::SAME => Place::Same,
        bp::AT_CFA => Place::At(cfa.wrapping_add_signed(offset)),
        bp::AT_RBP => Place::At(registers[RBP].wrapping_add_signed(offset)),
        kind => panic!("{kind} is no way to find rbp"),
    };
    let mut places = [Place::Same; 7];
    places[0] = Place::At(cfa.wrapping_sub(8));
    places[1] = caller_bp;
    for (n, &byte) in rule.saved.iter().enumerate() {
        places[n + 2] = match (byte, expected.places[n + 2]) {
            (0, _) => Place::Same,
            (SAVED_UNKNOWN, Place::At(address))
                if expected.is_offset[n + 2] && is_sayable(cfa, address) =>
            {
                Place::Other
            }
            (SAVED_UNKNOWN, Place::Same) => Place::Other,
            (SAVED_UNKNOWN, place) => place,
            (words, _) => Place::At(cfa.wrapping_sub(8 * u64::from(words))),
        };
    }
    Caller {
        cfa,
        places,
        is_offset: expected.is_offset,
    }
}

/// A whole number of words below the CFA, within a byte's reach.
fn is_sayable(cfa: u64, address: u64) -> bool {
    let below = cfa.wrapping_sub(address);
    below > 0 && below.is_multiple_of(8) && below / 8 < u64::from(SAVED_UNKNOWN)
}

/// The frame that a signal interrupted, by the layout of `struct sigcontext` on x86-64.
pub(crate) fn interrupted(registers: &Registers) -> Caller {
    let at = |offset| Place::At(registers[RSP] + offset);
    Caller {
        cfa: memory(registers[RSP] + 160),
        places: [at(168), at(120), at(128), at(72), at(80), at(88), at(96)],
        is_offset: [false; 7],
    }
}
