//! A C library that describes none of its functions, as musl does not: where stacks end in it, and what its functions
//! are, so that [`read_code`](super::read_code) can find out the rest.
//!
//! `main` is called by `exit(main(…))`, and a thread's function by `pthread_exit(function(…))`: what returns into the
//! argument of either has no caller of interest.
//!
//! A static program may have no symbols to tell these two by. Then it is known by how it starts: in all of musl, nothing
//! else is called like that.

use object::ReadRef;

use super::elf::{Section, Segment, code_at};
use super::symbol_table::SymbolTable;

/// More code is not looked through: static programs have less, and libraries that are larger are no C library.
const CODE_BYTES_MAX: u64 = 64 << 20;
/// Places that are kept; a C library has one for `main`, and two for threads.
const ROOTS_MAX: usize = 64;

/// What takes the result of a stack's first function, and never returns.
const LAST_CALLS: [&[u8]; 2] = [b"exit", b"pthread_exit"];

/// What is known of a C library before its call frame information is looked at.
#[derive(Debug)]
pub(super) struct CLibrary<'a> {
    /// Where each call returns to whose value goes straight into one of [`LAST_CALLS`], in ascending order.
    pub(super) roots: Vec<u64>,
    /// Functions that never return, as far as symbols say it.
    pub(super) never_return: Vec<u64>,
    /// Where functions begin, as far as symbols say it.
    pub(super) functions: Vec<u64>,
    /// Its code.
    pub(super) code: Vec<Section<'a>>,
}

impl<'a> CLibrary<'a> {
    /// `None`: stacks do not end in this file in that way.
    pub(super) fn find<R: ReadRef<'a>>(
        entry: u64,
        tables: &[SymbolTable<'a>],
        segments: &[Segment],
        data: R,
    ) -> Option<Self> {
        let mut symbols = Symbols::default();
        for &table in tables {
            symbols.read(table);
        }
        let last_calls = match symbols.last_calls.as_slice() {
            [] if starts_as_musl(entry, segments, data) => None,
            [] => return None,
            known => Some(known),
        };
        let (mut roots, mut code, mut left) = (Vec::new(), Vec::new(), CODE_BYTES_MAX);
        for segment in segments.iter().filter(|s| s.executable) {
            let bytes = segment.file_bytes.min(segment.memory_bytes);
            let Some(rest) = left.checked_sub(bytes) else {
                break;
            };
            left = rest;
            if let Ok(data) = data.read_bytes_at(segment.file_offset.0, bytes) {
                let svma = segment.svma.0;
                find(data, svma, last_calls, &mut roots);
                code.push(Section { data, svma });
            }
        }
        roots.sort_unstable();
        symbols.functions.push(entry);
        (!roots.is_empty()).then_some(Self {
            roots,
            never_return: symbols.never_return,
            functions: symbols.functions,
            code,
        })
    }
}

/// The program begins with musl's own `_start` (arch/x86_64/crt_arch.h): `xor %rbp,%rbp; mov %rsp,%rdi;
/// lea _DYNAMIC(%rip),%rsi; and $-16,%rsp; call _start_c`.
fn starts_as_musl<'a, R: ReadRef<'a>>(entry: u64, segments: &[Segment], data: R) -> bool {
    const FIRST: [u8; 9] = [0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x8d, 0x35];
    const THEN: [u8; 5] = [0x48, 0x83, 0xe4, 0xf0, 0xe8];
    const DISTANCE_BYTES: usize = 4;
    const BYTES: usize = FIRST.len() + DISTANCE_BYTES + THEN.len();
    code_at(segments, entry, BYTES as u64, data).is_some_and(|start| {
        start.starts_with(&FIRST) && start[FIRST.len() + DISTANCE_BYTES..] == THEN
    })
}

/// Functions behind whose calls no code follows.
const NEVER_RETURN: [&[u8]; 12] = [
    b"exit",
    b"_exit",
    b"_Exit",
    b"quick_exit",
    b"pthread_exit",
    b"thrd_exit",
    b"abort",
    b"__stack_chk_fail",
    b"__assert_fail",
    b"__libc_fatal",
    b"longjmp",
    b"siglongjmp",
];

/// Symbols of interest.
#[derive(Debug, Default)]
struct Symbols {
    /// Addresses of [`LAST_CALLS`]; empty where the file does not define them.
    last_calls: Vec<u64>,
    /// Addresses of [`NEVER_RETURN`].
    never_return: Vec<u64>,
    /// Addresses of all functions.
    functions: Vec<u64>,
}

impl Symbols {
    fn read(&mut self, table: SymbolTable<'_>) {
        for symbol in table.defined() {
            let is = |wanted: &&[u8]| symbol.is_named(wanted);
            let at = symbol.at();
            // A hostile file may have any number of each.
            if LAST_CALLS.iter().any(is) && self.last_calls.len() < 2 * LAST_CALLS.len() {
                self.last_calls.push(at);
            }
            if NEVER_RETURN.iter().any(is) && self.never_return.len() < 2 * NEVER_RETURN.len() {
                self.never_return.push(at);
            }
            if symbol.is_function() {
                self.functions.push(at);
            }
        }
    }
}

/// Looks for `call *function; mov %eax,%edi; call exit`, and the like with 64 bits. `None`: whatever is called in the end.
fn find(code: &[u8], svma: u64, last_calls: Option<&[u64]>, roots: &mut Vec<u64>) {
    const CALL: u8 = 0xe8;
    const CALL_BYTES: usize = 5;
    for (at, call) in code.windows(CALL_BYTES).enumerate() {
        let [CALL, distance @ ..] = call else {
            continue;
        };
        let distance = i32::from_le_bytes([distance[0], distance[1], distance[2], distance[3]]);
        let next = svma.wrapping_add((at + CALL_BYTES) as u64);
        let called = next.wrapping_add_signed(i64::from(distance));
        if last_calls.is_some_and(|known| !known.contains(&called)) {
            continue;
        }
        // `mov %eax,%edi`, `mov %rax,%rdi` or `movslq %eax,%rdi`.
        let argument = match &code[..at] {
            [.., 0x48, 0x89, 0xc7] | [.., 0x48, 0x63, 0xf8] => 3,
            [.., 0x89, 0xc7] => 2,
            _ => continue,
        };
        let returns_to = at - argument;
        // A call through a register, or memory behind one: `ff /2`, with one byte of distance or none.
        let is_call = |modrm: u8| modrm & 0x38 == 0x10;
        let is_root = match &code[..returns_to] {
            [.., 0xff, modrm] if is_call(*modrm) => true,
            [.., 0xff, modrm, _] => is_call(*modrm) && modrm >> 6 == 1,
            _ => false,
        };
        if is_root && roots.len() < ROOTS_MAX {
            roots.push(svma.wrapping_add(returns_to as u64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Code at 0x1000 that calls `function`, and then goes on like this; `exit` is at 0x2000.
    fn found(function: &[u8], rest: &[u8]) -> Vec<u64> {
        let mut code = [&[0x90; 4], function, rest].concat();
        let next = 0x1000 + code.len() as i32 + 5;
        code.push(0xe8);
        code.extend((0x2000 - next).to_le_bytes());
        code.extend([0x90; 8]);
        let mut roots = Vec::new();
        find(&code, 0x1000, Some(&[0x2000]), &mut roots);
        let mut any = Vec::new();
        find(&code, 0x1000, None, &mut any);
        assert_eq!(any, roots);
        roots
    }

    #[test]
    fn what_returns_into_the_last_call_is_a_root() {
        let mov = [0x89, 0xc7];
        // call *%rbx; call *(%rax); call *%r12; call *8(%rbx).
        assert_eq!(found(&[0xff, 0xd3], &mov), [0x1006]);
        assert_eq!(found(&[0xff, 0x10], &mov), [0x1006]);
        assert_eq!(found(&[0x41, 0xff, 0xd4], &mov), [0x1007]);
        assert_eq!(found(&[0xff, 0x53, 8], &mov), [0x1007]);
        assert_eq!(found(&[0xff, 0xd3], &[0x48, 0x89, 0xc7]), [0x1006]);
        assert_eq!(found(&[0xff, 0xd3], &[0x48, 0x63, 0xf8]), [0x1006]);
    }

    #[test]
    fn other_calls_are_none() {
        // A direct call, a jump, another argument.
        assert!(found(&[0xe8, 0, 0, 0, 0], &[0x89, 0xc7]).is_empty());
        assert!(found(&[0xff, 0xe3], &[0x89, 0xc7]).is_empty());
        assert!(found(&[0xff, 0xd3], &[0x89, 0xef]).is_empty());
        let mut roots = Vec::new();
        find(
            &[0xff, 0xd3, 0x89, 0xc7, 0xe8, 0, 0, 0, 0],
            0x1000,
            Some(&[0x2000]),
            &mut roots,
        );
        assert!(roots.is_empty(), "it calls something else");
        find(&[0xe8, 0, 0], 0, None, &mut roots);
        find(&[], 0, None, &mut roots);
        assert!(roots.is_empty());
    }
}
