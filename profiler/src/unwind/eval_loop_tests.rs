//! Loops made by hand; those of real interpreters are in `tests/unwind_tables.rs`.

use object::LittleEndian as Endian;
use object::elf::{STB_GLOBAL, STB_LOCAL, STT_FUNC, Sym64};
use object::endian::{U16, U32, U64};

use super::*;
use crate::unwind::elf::ElfView;
use crate::unwind::testing::{CODE, TinyElf, cfi};
use crate::unwind::{CompileStats, eh_frame};
use profiler_common::unwind_row::rule_flags;

/// The loop, what may be its cold part, and another function.
const HOT: Range<u64> = 0x4000..0x4100;
const COLD: Range<u64> = 0x1000..0x1100;
const OTHER: Range<u64> = 0x1100..0x1200;
/// The names of [`symbol`]s, by their places.
const NAMES: &[u8] = b"\0_PyEval_EvalFrameDefault\0_PyEval_EvalFrameDefault.lto_priv.0.cold\0\
    _PyEval_EvalFrameDefaults\0other\0";
const LOOP: usize = 1;
const LOOP_COLD: usize = 26;
const LOOPS: usize = 65;
const ANOTHER: usize = 91;

/// `jne` and `jmp` with a distance of four bytes, and `call`.
const JNE: &[u8] = &[0x0f, 0x85];
const JMP: &[u8] = &[0x90, 0xe9];
const CALL: &[u8] = &[0x90, 0xe8];

fn symbol(name: usize, bind: u8, at: u64) -> Sym64<Endian> {
    Sym64 {
        st_name: U32::new(Endian, name as u32),
        st_info: (bind << 4) | STT_FUNC,
        st_other: 0,
        st_shndx: U16::new(Endian, 1),
        st_value: U64::new(Endian, at),
        st_size: U64::new(Endian, 0x100),
    }
}

/// The code of a function that has these operations from its second byte on.
fn code(function: Range<u64>, operations: &[(&[u8], u64)]) -> Vec<u8> {
    let mut bytes = vec![0x90];
    for (operation, to) in operations {
        bytes.extend_from_slice(operation);
        let next = function.start + bytes.len() as u64 + 4;
        bytes.extend((to.wrapping_sub(next) as u32).to_le_bytes());
    }
    bytes.resize((function.end - function.start) as usize, 0x90);
    bytes
}

/// The parts besides the named one, with so many jumps.
fn found(symbols: &[Sym64<Endian>], hot: &[u8], cold: &[u8]) -> Vec<(u64, u32)> {
    let functions = [COLD, OTHER, HOT].map(|it| Function {
        begin: it.start,
        offset: 0,
        end: it.end,
    });
    let tables = vec![SymbolTable::new(symbols, NAMES)];
    let symbols = LoopSymbols::find(tables).expect("the loop has its symbol");
    let parts = symbols.parts(&functions, |range| match range {
        HOT => Some(hot),
        COLD => Some(cold),
        _ => None,
    });
    assert!(parts.is_sorted_by_key(|part| part.begin));
    let jumps = parts.iter().filter_map(|part| match part.found {
        LoopEvidence::Jumps(count) => Some((part.begin.0, count)),
        LoopEvidence::Name => None,
    });
    jumps.collect()
}

fn found_by_hot(operations: &[(&[u8], u64)]) -> Vec<(u64, u32)> {
    let exported = [symbol(LOOP, STB_GLOBAL, HOT.start)];
    found(&exported, &code(HOT, operations), &[])
}

#[test]
fn jumps_into_the_middle_of_another_entry_make_it_a_part() {
    let jumps = [(JNE, 0x1010), (JMP, 0x1020), (JNE, 0x1010), (JNE, 0x1030)];
    assert_eq!(found_by_hot(&jumps), [(COLD.start, 4)]);
}

#[test]
fn a_call_in_place_of_a_return_makes_no_part() {
    assert_eq!(found_by_hot(&[(JNE, 0x1000); 8]), []);
    assert_eq!(found_by_hot(&[(JMP, 0x1000); 8]), []);
    assert_eq!(found_by_hot(&[(CALL, 0x1010); 8]), []);
}

#[test]
fn few_jumps_need_others_that_lead_back() {
    let exported = [symbol(LOOP, STB_GLOBAL, HOT.start)];
    let hot = code(HOT, &[(JNE, 0x1010), (JNE, 0x1020)]);
    let found = |cold: &[(&[u8], u64)]| found(&exported, &hot, &code(COLD, cold));
    assert_eq!(found(&[]), []);
    assert_eq!(found(&[(JMP, 0x4020)]), []);
    assert_eq!(found(&[(JMP, 0x4020), (JNE, 0x4030)]), [(COLD.start, 4)]);
    assert_eq!(found(&[(JMP, 0x4000), (JNE, 0x4000)]), []);
}

#[test]
fn what_is_called_or_has_a_symbol_of_its_own_is_no_part() {
    let jumps = [(JNE, 0x1010); 5];
    assert_eq!(found_by_hot(&jumps), [(COLD.start, 5)]);
    let called = [&jumps[..], &[(CALL, 0x1000)]].concat();
    assert_eq!(found_by_hot(&called), []);
    let symbols = [
        symbol(LOOP, STB_GLOBAL, HOT.start),
        symbol(ANOTHER, STB_GLOBAL, COLD.start),
    ];
    assert_eq!(found(&symbols, &code(HOT, &jumps), &[]), []);
}

#[test]
fn where_parts_have_names_none_is_looked_for() {
    let symbols = [
        symbol(LOOP, STB_GLOBAL, HOT.start),
        symbol(ANOTHER, STB_LOCAL, OTHER.start),
    ];
    assert_eq!(found(&symbols, &code(HOT, &[(JNE, 0x1010); 5]), &[]), []);
}

#[test]
fn parts_are_named_as_the_function_and_a_suffix() {
    let named = |symbols: &[Sym64<Endian>]| {
        let tables = vec![SymbolTable::new(symbols, NAMES)];
        LoopSymbols::find(tables).map(|it| it.named)
    };
    let [hot, cold, loops, other] =
        [LOOP, LOOP_COLD, LOOPS, ANOTHER].map(|name| symbol(name, STB_LOCAL, 0x1000 + name as u64));
    assert_eq!(named(&[hot, cold, hot]), Some(vec![0x1001, 0x101a]));
    assert_eq!(named(&[loops, other]), None);
    let undefined = Sym64 {
        st_shndx: U16::new(Endian, 0),
        ..hot
    };
    assert_eq!(named(&[undefined]), None);
    assert_eq!(named(&[symbol(usize::MAX, STB_GLOBAL, 0x1000)]), None);
    let many = vec![hot; 1000];
    assert_eq!(named(&many), Some(vec![0x1001]));
}

#[test]
fn rules_of_a_part_are_marked_and_those_around_it_are_not() {
    let room = [
        &[cfi::advance(4)][..],
        &cfi::def_cfa_offset(32),
        &[cfi::advance(8)],
        &cfi::def_cfa_offset(8),
    ]
    .concat();
    let elf = TinyElf::new()
        .function(0x1000, 0x100, &[&room])
        .function(0x1100, 0x100, &[&room])
        .function(0x1200, 0x100, &[&room])
        .build();
    let elf = ElfView::parse(&*elf).expect("the file is whole");
    let second = LoopPart {
        begin: Svma(CODE + 0x1100),
        end: Svma(CODE + 0x1200),
        found: LoopEvidence::Name,
    };
    let mut rows = Vec::new();
    let parts = eh_frame::rules(
        &elf,
        &|functions| {
            assert_eq!(functions.len(), 3);
            vec![second]
        },
        &crate::unwind::interrupt::Interrupt::new(&|| false),
        &mut CompileStats::default(),
        |at, rule| rows.push((at - CODE, rule.flags)),
    );
    assert_eq!(parts, Ok(vec![second]));
    let marked = rows
        .iter()
        .filter(|(_, flags)| *flags == rule_flags::EVALUATION_LOOP);
    let marked: Vec<u64> = marked.map(|(at, _)| *at).collect();
    assert_eq!(marked, [0x1100, 0x1104, 0x110c]);
    assert!(rows.len() > 8);
}

#[test]
fn anything_can_be_looked_through() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut parts = 0;
    for turn in 0..200 {
        // Functions that lie next to each other, up to the end of all addresses, and code that leads into them.
        let base = [0, 0x1000, u64::MAX - 0x1000][turn % 3];
        let mut functions: Vec<Function> = (0..32)
            .map(|offset| {
                let begin = base + random() % 0xf00;
                Function {
                    begin,
                    offset,
                    end: begin + 1 + random() % 0x100,
                }
            })
            .collect();
        functions.sort_unstable();
        let code: Vec<u8> = (0..0x400)
            .map(|_| match random() % 4 {
                0 => [0x0f, 0x85, 0xe9, 0xe8][(random() % 4) as usize],
                1 => random() as u8,
                _ => 0,
            })
            .collect();
        let symbols: Vec<_> = (0..8)
            .map(|_| symbol(LOOP, STB_GLOBAL, base + random() % 0xf00))
            .collect();
        let symbols = LoopSymbols::find(vec![SymbolTable::new(&symbols, NAMES)]);
        let symbols = symbols.expect("each has its name");
        let found = symbols.parts(&functions, |range| {
            code.get(..usize::try_from(range.end - range.start).ok()?)
        });
        assert!(found.len() <= SYMBOLS_MAX + PARTS_MAX);
        parts += found.len();
    }
    assert!(parts > 200);
}

#[test]
fn more_code_than_an_interpreter_has_is_not_read() {
    let huge = Function {
        begin: 0x1000,
        offset: 0,
        end: 0x1000 + CODE_BYTES_MAX + 1,
    };
    let exported = [symbol(LOOP, STB_GLOBAL, huge.begin)];
    let symbols = LoopSymbols::find(vec![SymbolTable::new(&exported, NAMES)]);
    let symbols = symbols.expect("the loop has its symbol");
    let parts = symbols.parts(&[huge], |range| panic!("{range:x?} was asked for"));
    assert_eq!(parts, [part(&huge, LoopEvidence::Name)]);
}
