//! Which code is CPython's evaluation loop: the function whose frames stand for runs of Python frames.
//!
//! * **Job:** finds `_PyEval_EvalFrameDefault` in a file, and the parts that its compiler put elsewhere.
//! * **Gets** symbols, the functions that call frame information describes, and code.
//! * **Gives** [`LoopPart`]s; each rule made for one of them says so (`rule_flags::EVALUATION_LOOP`).
//!
//! The function is exported by every build (`PyAPI_FUNC` in Include/cpython/ceval.h, 3.9 to 3.13; Include/ceval.h, 3.8),
//! so its symbol survives `strip`. Compilers move what they believe to be rare to a *cold part* with an
//! entry of its own, where the profile of a build can put nearly all of the loop: of 3.15 as Debian builds it, 844 bytes
//! are left in place and 82 KB are cold. It is the same function: it runs in the same frame, at the same CFA, so it gets
//! the same mark. Its symbol (`_PyEval_EvalFrameDefault.cold`) is local, and gone from what is stripped; there it is
//! known by jumps. A jump into the middle of what has an entry of its own cannot be a call in place of a return, as one
//! to its beginning could be: both must be parts of one function.
//!
//! The jumps are looked for at each byte, not at each instruction, which would cost several times as much and find the
//! same: four other bytes that happen to follow one that looks like a jump lead into code once in some thousands of
//! times, and not to the same function again.
//!
//! Builds whose loop is a function for each instruction (`--with-tail-call-interp`, 3.14 and later) need no more than
//! that. `_PyEval_EvalFrameDefault` (Python/ceval.c, 3.14) holds the entry frame in its own frame and has given away its
//! address, so it has to call the first of these functions, `_TAIL_CALL_start_frame`, and stay below. They jump from one
//! to the next and lie above it on the stack, one at a time, just as any C function that the loop calls: the frame that
//! says which run of Python frames it is, is that of the marked function.

use std::ops::Range;

use rustc_hash::FxHashMap;

use super::entries::Function;
use super::symbol_table::{Symbol, SymbolTable};
use crate::model::Svma;

/// The function's name, which those of its parts and copies begin with.
const NAME: &[u8] = b"_PyEval_EvalFrameDefault";
/// Symbols that are kept of one file. There are the function, its cold part or a few (BOLT makes up to three), and
/// copies (`.constprop.0`, `.lto_priv.0`); each but the copies may be in two tables.
const SYMBOLS_MAX: usize = 16;
/// Parts of one file that are found by jumps. None was seen to have two.
const PARTS_MAX: usize = 4;
/// Jumps that make a part. Of the stripped builds that have one, 3.11 to 3.15, each has 11 or more, and none has another
/// function that any would lead into.
const JUMPS_MIN: u32 = 4;
/// Most code that is looked through of one file. The largest part seen has 84 KB.
const CODE_BYTES_MAX: u64 = 1 << 20;

/// Code that belongs to the evaluation loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopPart {
    /// First address.
    pub begin: Svma,
    /// One past the last address.
    pub end: Svma,
    /// How it is known.
    pub found: LoopEvidence,
}

/// How code is known to belong to the evaluation loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LoopEvidence {
    /// A symbol says so.
    Name,
    /// So many jumps lead from the named code into the middle of it, or back.
    Jumps(u32),
}

/// What symbols say of the loop.
#[derive(Debug)]
pub(super) struct LoopSymbols<'a> {
    /// Where the function and its parts lie, as far as they have names.
    named: Vec<u64>,
    /// Parts have names in this file, so there are no others.
    parts_are_named: bool,
    /// All symbols, to know an ordinary function by.
    tables: Vec<SymbolTable<'a>>,
}

impl<'a> LoopSymbols<'a> {
    /// `None`: there is no interpreter in this file. This costs a look at each symbol.
    pub(super) fn find(tables: Vec<SymbolTable<'a>>) -> Option<Self> {
        let symbols = tables.iter().flat_map(|table| table.defined());
        let mut named: Vec<u64> = symbols
            .filter(|&symbol| symbol.is_function() && is_of_loop(symbol))
            .take(SYMBOLS_MAX)
            .map(Symbol::at)
            .collect();
        if named.is_empty() {
            return None;
        }
        named.sort_unstable();
        named.dedup();
        let mut all = tables.iter().flat_map(|table| table.defined());
        let parts_are_named = all.any(|symbol| symbol.is_function() && symbol.is_local());
        Some(Self {
            named,
            parts_are_named,
            tables,
        })
    }

    /// The parts of the loop, by address. `functions` are all that are described, sorted; `code` gives the bytes of a
    /// range of addresses, as far as the file has them as code.
    pub(super) fn parts(
        &self,
        functions: &[Function],
        code: impl Fn(Range<u64>) -> Option<&'a [u8]>,
    ) -> Vec<LoopPart> {
        let mut hot: Vec<Function> = self
            .named
            .iter()
            .filter_map(|&at| function_at(functions, at).copied())
            .collect();
        hot.dedup_by_key(|function| function.begin);
        let mut parts: Vec<LoopPart> = hot.iter().map(|it| part(it, LoopEvidence::Name)).collect();
        if !self.parts_are_named {
            self.find_by_jumps(&hot, functions, code, &mut parts);
            parts.sort_unstable_by_key(|part| part.begin);
        }
        parts
    }

    /// Appends the parts that jumps out of the `hot` ones lead to.
    ///
    /// Each jump counts, conditional or not. Where few lead out, because the hot part is little more than a table of
    /// places to go on at, those that lead back count as well.
    fn find_by_jumps(
        &self,
        hot: &[Function],
        functions: &[Function],
        code: impl Fn(Range<u64>) -> Option<&'a [u8]>,
        parts: &mut Vec<LoopPart>,
    ) {
        let mut left = CODE_BYTES_MAX;
        let mut read = |function: &Function| {
            left = left.checked_sub(function.end - function.begin)?;
            let bytes = code(function.begin..function.end)?;
            Some(Code {
                bytes,
                at: function.begin,
            })
        };
        let hot_code: Vec<Code<'_>> = hot.iter().filter_map(&mut read).collect();
        let is_in_hot = |at| hot.iter().any(|it| is_inside(it, at));
        let mut jumps_to: FxHashMap<u64, u32> = FxHashMap::default();
        for to in hot_code.iter().flat_map(|it| it.jumps()) {
            if !is_in_hot(to)
                && let Some(function) = function_at(functions, to)
                && is_inside(function, to)
            {
                *jumps_to.entry(function.begin).or_default() += 1;
            }
        }
        let mut candidates: Vec<(u64, u32)> = jumps_to.into_iter().collect();
        candidates.sort_unstable_by_key(|&(at, jumps)| (std::cmp::Reverse(jumps), at));
        candidates.truncate(PARTS_MAX);
        for (at, mut jumps) in candidates {
            let is_called = || hot_code.iter().flat_map(|it| it.calls()).any(|to| to == at);
            let Some(function) = function_at(functions, at) else {
                continue;
            };
            if jumps < JUMPS_MIN
                && let Some(code) = read(function)
            {
                jumps += code.jumps().filter(|&to| is_in_hot(to)).count() as u32;
            }
            if jumps >= JUMPS_MIN && !is_called() && !self.has_symbol(at) {
                parts.push(part(function, LoopEvidence::Jumps(jumps)));
            }
        }
    }

    /// A function of some name begins here. What has one is called from elsewhere; nothing else could, but through a
    /// pointer, and nobody takes that of half a function.
    fn has_symbol(&self, at: u64) -> bool {
        let mut symbols = self.tables.iter().flat_map(|table| table.defined());
        symbols.any(|symbol| symbol.is_function() && symbol.at() == at)
    }
}

/// The bytes of a function.
#[derive(Clone, Copy)]
struct Code<'a> {
    bytes: &'a [u8],
    /// Where the first one lies.
    at: u64,
}

impl Code<'_> {
    /// Where jumps lead to, by a distance of four bytes: `jmp`, and `jCC` with a byte before it. Shorter ones do not
    /// leave a function.
    fn jumps(self) -> impl Iterator<Item = u64> {
        const JMP: u8 = 0xe9;
        const CONDITIONAL: [u8; 2] = [0x0f, 0x80];
        self.targets(|before, operation| {
            operation == JMP || [before, operation & 0xf0] == CONDITIONAL
        })
    }

    /// Where calls lead to.
    fn calls(self) -> impl Iterator<Item = u64> {
        const CALL: u8 = 0xe8;
        self.targets(|_, operation| operation == CALL)
    }

    /// Where each byte leads to that is such an operation; the byte before it is asked for, too. The first byte is none:
    /// no function begins with a jump to another one's middle.
    fn targets(self, is_wanted: impl Fn(u8, u8) -> bool) -> impl Iterator<Item = u64> {
        let places = self.bytes.windows(6).zip(self.at..);
        let wanted = places.filter(move |(bytes, _)| is_wanted(bytes[0], bytes[1]));
        wanted.filter_map(|(bytes, at)| {
            let distance = i32::from_le_bytes(*bytes.last_chunk()?);
            let next = at.wrapping_add(bytes.len() as u64);
            Some(next.wrapping_add_signed(i64::from(distance)))
        })
    }
}

/// The function itself, a part or a copy of it.
fn is_of_loop(symbol: Symbol<'_>) -> bool {
    matches!(symbol.after(NAME), Some(0 | b'.'))
}

const fn part(function: &Function, found: LoopEvidence) -> LoopPart {
    LoopPart {
        begin: Svma(function.begin),
        end: Svma(function.end),
        found,
    }
}

/// Behind the first instruction of the function, which takes a byte at least.
const fn is_inside(function: &Function, at: u64) -> bool {
    function.begin < at && at < function.end
}

/// The function whose rules are in force at an address, as [`eh_frame`](super::eh_frame) chooses it.
fn function_at(functions: &[Function], at: u64) -> Option<&Function> {
    let below = functions.partition_point(|function| function.begin <= at);
    let begin = functions[..below].last()?.begin;
    let first = functions[..below].partition_point(|function| function.begin < begin);
    functions.get(first).filter(|function| at < function.end)
}

#[cfg(test)]
#[path = "eval_loop_tests.rs"]
mod tests;
