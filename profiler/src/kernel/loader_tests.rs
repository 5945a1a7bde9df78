//! What older kernels ask of the object, and this one may not.

use std::collections::HashMap;

use object::{Object, ObjectSection, ObjectSymbol, RelocationTarget, SectionKind, SymbolKind};

use super::{OBJECT, PROGRAM, TRACEPOINTS};

/// `MAX_BPF_STACK` (include/linux/filter.h): what a program and all that it calls may use at once. Kernels that give a
/// program a stack of its own (`bpf_enable_priv_stack`, kernel/bpf/verifier.c, 6.13) ask it of each function alone.
const STACK_MAX: u32 = 512;
/// `MAX_CALL_FRAMES` (include/linux/bpf_verifier.h)
const CALLS_MAX: usize = 8;

const INSTRUCTION_BYTES: u64 = 8;
const CALL: u8 = 0x85;
/// `src_reg` of a call of another function (`BPF_PSEUDO_CALL`, include/uapi/linux/bpf.h).
const PSEUDO_CALL: u8 = 1;
const ADD_IMMEDIATE: u8 = 0x07;
const MOVE_REGISTER: u8 = 0xbf;
const FRAME_POINTER: u8 = 10;

/// The name of a function: its section's index and its address there.
type Place = (usize, u64);

/// A function: bytes of stack, and whom it calls.
#[derive(Debug, Default)]
struct Function {
    stack: u32,
    calls: Vec<Place>,
}

#[test]
fn the_stack_is_enough_for_kernels_that_have_one_for_all_functions() {
    let (functions, names) = functions();
    let programs = TRACEPOINTS.iter().map(|(program, _)| *program);
    for program in programs.chain([PROGRAM]) {
        let (stack, calls) = deepest(&functions, names[program], 1);
        assert!(stack <= STACK_MAX, "{program}: {stack} bytes of stack");
        assert!(calls <= CALLS_MAX, "{program}: {calls} functions");
    }
    // Some stack, and calls of calls: the object was understood.
    let (stack, calls) = deepest(&functions, names[PROGRAM], 1);
    assert!(
        stack > 200 && calls >= 5,
        "{stack} bytes, {calls} functions"
    );
}

/// As `check_max_stack_depth` (kernel/bpf/verifier.c) adds up: bytes and number of functions.
fn deepest(functions: &HashMap<Place, Function>, at: Place, calls: usize) -> (u32, usize) {
    assert!(calls <= 2 * CALLS_MAX, "a function that calls itself");
    let function = &functions[&at];
    let below = function.calls.iter();
    let below = below.map(|&called| deepest(functions, called, calls + 1));
    let (stack, most) = below.fold((0, calls), |(stack, most), (bytes, depth)| {
        (stack.max(bytes), most.max(depth))
    });
    (function.stack.max(1).next_multiple_of(32) + stack, most)
}

/// All functions of the object, and the places of those that have names.
fn functions() -> (HashMap<Place, Function>, HashMap<&'static str, Place>) {
    let file = object::File::parse(OBJECT).unwrap();
    let mut functions = HashMap::new();
    let mut names = HashMap::new();
    for symbol in file.symbols().filter(|one| one.kind() == SymbolKind::Text) {
        let Some(index) = symbol.section_index() else {
            continue;
        };
        let section = file.section_by_index(index).unwrap();
        if section.kind() != SectionKind::Text || symbol.size() == 0 {
            continue;
        }
        let place = (index.0, symbol.address());
        names.insert(symbol.name().unwrap(), place);
        let code = section.data_range(symbol.address(), symbol.size());
        let code = code.unwrap().unwrap();
        let relocations: HashMap<u64, _> = section.relocations().collect();
        let mut function = Function::default();
        let mut before = [0; INSTRUCTION_BYTES as usize];
        for (n, instruction) in code.chunks_exact(INSTRUCTION_BYTES as usize).enumerate() {
            let instruction: [u8; 8] = instruction.try_into().unwrap();
            let address = symbol.address() + n as u64 * INSTRUCTION_BYTES;
            function.stack = function.stack.max(stack_bytes(before, instruction));
            before = instruction;
            if instruction[0] != CALL || instruction[1] >> 4 != PSEUDO_CALL {
                continue;
            }
            let immediate = i64::from(immediate(instruction));
            let target = relocations.get(&address).map(object::Relocation::target);
            let called = if let Some(RelocationTarget::Symbol(target)) = target {
                let target = file.symbol_by_index(target).unwrap();
                // A section's symbol: the instruction has the distance from its beginning.
                let within = if target.kind() == SymbolKind::Section {
                    (immediate + 1) as u64 * INSTRUCTION_BYTES
                } else {
                    0
                };
                (target.section_index().unwrap().0, target.address() + within)
            } else {
                let distance = (immediate + 1) * INSTRUCTION_BYTES as i64;
                (index.0, address.checked_add_signed(distance).unwrap())
            };
            function.calls.push(called);
        }
        functions.insert(place, function);
    }
    (functions, names)
}

/// How much stack an instruction shows: by what it reads or writes there, or by the address that it makes.
fn stack_bytes(before: [u8; 8], instruction: [u8; 8]) -> u32 {
    let [code, registers, ..] = instruction;
    let (to, from) = (registers & 0xf, registers >> 4);
    let offset = i16::from_le_bytes([instruction[2], instruction[3]]);
    let down = match code & 7 {
        // BPF_LDX
        1 if from == FRAME_POINTER => i32::from(offset),
        // BPF_ST, BPF_STX
        2 | 3 if to == FRAME_POINTER => i32::from(offset),
        _ if code == ADD_IMMEDIATE
            && before[0] == MOVE_REGISTER
            && before[1] == FRAME_POINTER << 4 | to =>
        {
            immediate(instruction)
        }
        _ => 0,
    };
    down.min(0).unsigned_abs()
}

fn immediate(instruction: [u8; 8]) -> i32 {
    i32::from_le_bytes(instruction[4..].try_into().unwrap())
}
