//! Rules for jump stubs that no call frame information describes. GNU ld writes some for its stubs, lld does not. And
//! for the first function of the dynamic loader: a process spends its first millisecond or two below it.

use std::ops::Range;

use profiler_common::unwind_row::{UnwindRule, bp, cfa};

use super::elf::{Plt, PltKind};

/// Bytes of one stub, and of the code in front of the lazy ones that calls the linker.
const STUB_BYTES: u64 = 16;
/// `jmp *slot(%rip)` (6 bytes), `push $number` (5 bytes): behind both the stack is one word deeper.
const PUSHED_FROM: i32 = 11;
/// `push link_map(%rip)` in the first 16 bytes.
const FIRST_PUSH_BYTES: u64 = 6;

/// The stubs of a file that are not described yet, in ascending order.
pub(super) struct Stubs<'a> {
    rest: Vec<&'a Plt>,
}

impl<'a> Stubs<'a> {
    /// Keeps those sections that lie in code.
    pub(super) fn new(sections: &'a [Plt], code: &[Range<u64>]) -> Self {
        let is_code = |p: &&Plt| {
            let Range { start, end } = p.range;
            start < end && code.iter().any(|c| c.start <= start && end <= c.end)
        };
        let mut rest: Vec<_> = sections.iter().filter(is_code).collect();
        rest.sort_unstable_by_key(|p| std::cmp::Reverse(p.range.start));
        Self { rest }
    }

    /// Emits rules for the stubs that lie whole between `described_until` and `next`, and moves the former behind
    /// them. Sections that something else describes, be it in part, are left out.
    pub(super) fn fill(
        &mut self,
        described_until: &mut u64,
        next: u64,
        put: &mut impl FnMut(u64, UnwindRule),
    ) {
        while let Some(plt) = self.rest.pop_if(|plt| plt.range.start < next) {
            let Range { start, mut end } = plt.range;
            if plt.kind == PltKind::Entry {
                end = end.min(next);
            }
            if start < *described_until || end > next {
                continue;
            }
            if *described_until != 0 && *described_until < start {
                put(*described_until, UnwindRule::default());
            }
            match plt.kind {
                PltKind::Lazy if end - start > STUB_BYTES => {
                    put(start, from_rsp(cfa::RSP, 16));
                    put(start + FIRST_PUSH_BYTES, from_rsp(cfa::RSP, 24));
                    put(start + STUB_BYTES, from_rsp(cfa::PLT, PUSHED_FROM));
                }
                PltKind::Lazy | PltKind::Plain => put(start, from_rsp(cfa::RSP, 8)),
                PltKind::Entry => put(start, from_rsp(cfa::END, 0)),
            }
            *described_until = end;
        }
    }
}

const fn from_rsp(kind: u8, cfa_off: i32) -> UnwindRule {
    UnwindRule {
        cfa: kind,
        bp: bp::SAME,
        reg: 0,
        saved: [0; 5],
        cfa_off,
        bp_off: 0,
        flags: 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CODE: Range<u64> = 0x1000..0x9000;

    fn fill(sections: &[Plt], described_until: u64, next: u64) -> Vec<(u64, u8, i32)> {
        let mut emitted = Vec::new();
        let mut stubs = Stubs::new(sections, &[CODE]);
        let mut until = described_until;
        stubs.fill(&mut until, next, &mut |at, rule| {
            emitted.push((at, rule.cfa, rule.cfa_off));
        });
        emitted
    }

    #[test]
    fn lazy_stubs_are_a_word_deeper_behind_their_push() {
        let plt = [Plt {
            range: 0x2000..0x2040,
            kind: PltKind::Lazy,
        }];
        let expected = [
            (0x1100, cfa::NONE, 0),
            (0x2000, cfa::RSP, 16),
            (0x2006, cfa::RSP, 24),
            (0x2010, cfa::PLT, 11),
        ];
        assert_eq!(fill(&plt, 0x1100, 0x3000), expected);
    }

    #[test]
    fn nothing_has_called_the_code_at_the_entry_point() {
        let entry = [Plt {
            range: 0x2000..0x2040,
            kind: PltKind::Entry,
        }];
        let expected = [(0x1100, cfa::NONE, 0), (0x2000, cfa::END, 0)];
        assert_eq!(fill(&entry, 0x1100, 0x2020), expected);
        // It has unwind information of its own, or what is before it goes on.
        assert_eq!(fill(&entry, 0x1100, 0x2000), []);
        assert_eq!(fill(&entry, 0x2001, 0x2100), []);
    }

    #[test]
    fn stubs_that_are_described_or_not_code_are_left_alone() {
        let plt = [
            Plt {
                range: 0x2000..0x2040,
                kind: PltKind::Plain,
            },
            Plt {
                range: 0x2fff..0x3010,
                kind: PltKind::Plain,
            },
            Plt {
                range: 0xa000..0xa040,
                kind: PltKind::Plain,
            },
        ];
        assert_eq!(fill(&plt, 0x2001, 0x3000), []);
        assert_eq!(fill(&plt, 0x2000, 0x2ff0), [(0x2000, cfa::RSP, 8)]);
    }
}
