//! Which line an instruction of a code object belongs to.
//!
//! Gets the table that the compiler left in the code object, decodes it once, and is then asked in the time of a binary
//! search. Knows nothing of processes. A table that makes no sense gives lines that make none, or no lines: never a
//! panic, and never more work than its length.
//!
//! **What is asked for is the instruction as the frame has it, in every version.** CPython itself takes it so for the
//! innermost frame and for its callers alike (`PyFrame_GetLineNumber`, `PyUnstable_InterpreterFrame_GetLine`: the line at
//! `_PyInterpreterFrame_LASTI`, nothing added):
//! * up to 3.10, `f_lasti` is the instruction that executes, also while it calls (`Python/ceval.c`, `fast_next_opcode`);
//! * 3.11 and 3.12, `prev_instr` is the one that was begun last, or one of the inline cache entries behind a call,
//!   which have the call's line; before the first it lies one unit before the code, which is no line;
//! * since 3.13, `instr_ptr` is the one that executes, or that will be the next. What a call returns to is kept apart
//!   from it, in `return_offset` (`_PyInterpreterFrame`, `pycore_frame.h`, since 3.14 `pycore_interpframe_structs.h`).

#![forbid(unsafe_code)]

use super::LineTableKind;

/// Most bytes of a table that are decoded: what code lies behind them has no lines. A function of 10,000 lines takes
/// some 60,000.
pub const LINE_TABLE_BYTES_MAX: usize = 256 << 10;

/// Bytes of a code unit, of which instructions, and the caches behind them, are made.
const UNIT_BYTES: u32 = 2;

/// In the place of a line: there is none.
const NO_LINE: u32 = u32::MAX;

/// The lines of one code object, ready to be asked.
///
/// 8 bytes for each change of line, so at most 8 times [`LINE_TABLE_BYTES_MAX`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LineMap {
    /// By where they begin. Each reaches to the next, the last one to the end of all code.
    runs: Box<[Run]>,
    /// What an instruction is counted in.
    unit: u32,
}

/// Instructions of one line, or of none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Run {
    /// In bytes from the beginning of the code.
    begin: u32,
    line: u32,
}

impl LineMap {
    /// Decodes a table. `first_line` is the code object's, from which the table counts.
    pub fn decode(kind: LineTableKind, first_line: u32, table: &[u8]) -> Self {
        let table = &table[..table.len().min(LINE_TABLE_BYTES_MAX)];
        let first_line = i64::from(first_line);
        let runs = match kind {
            LineTableKind::Lnotab => lnotab(first_line, table),
            LineTableKind::Ranges => ranges(first_line, table),
            LineTableKind::Locations => locations(first_line, table),
        };
        Self {
            runs: runs.done.into_boxed_slice(),
            unit: match kind {
                LineTableKind::Ranges => UNIT_BYTES,
                LineTableKind::Lnotab | LineTableKind::Locations => 1,
            },
        }
    }

    /// The line of an instruction, which is given as the kernel side sends it: in bytes from the beginning of the code,
    /// with [`LineTableKind::Ranges`] in units of two bytes.
    ///
    /// `None`: no line. So it is before the first instruction and behind the last, and for instructions that come from
    /// no line of the source. Line 0 is one: in 3.11 and later, what begins a module has it.
    pub fn line_at(&self, instruction: i32) -> Option<u32> {
        let offset = u32::try_from(instruction).ok()?.saturating_mul(self.unit);
        let behind = self.runs.partition_point(|run| run.begin <= offset);
        let run = self.runs.get(behind.checked_sub(1)?)?;
        (run.line != NO_LINE).then_some(run.line)
    }

    /// What it takes of the heap.
    pub fn heap_bytes(&self) -> usize {
        size_of_val(&*self.runs)
    }
}

/// Runs in the making.
#[derive(Default)]
struct Runs {
    done: Vec<Run>,
    /// Where the code ends that they cover so far.
    end: u32,
}

impl Runs {
    /// So many bytes more are of this line. One that no compiler counts up to is none.
    fn cover(&mut self, bytes: u32, line: Option<i64>) {
        if bytes == 0 {
            return;
        }
        let line = line
            .and_then(|line| i32::try_from(line).ok())
            .and_then(|line| u32::try_from(line).ok())
            .unwrap_or(NO_LINE);
        // Before the first run there is no line either.
        if self.done.last().map_or(NO_LINE, |run| run.line) != line {
            let begin = self.end;
            self.done.push(Run { begin, line });
        }
        self.end = self.end.saturating_add(bytes);
    }

    /// Nothing is known of what is behind the end.
    fn close(mut self) -> Self {
        self.cover(u32::MAX, None);
        self
    }
}

/// `Objects/lnotab_notes.txt` (3.9), `PyCode_Addr2Line` in `Objects/codeobject.c`: first so many bytes on, then so many
/// lines up or down. What follows the last pair belongs to the last line.
fn lnotab(mut line: i64, table: &[u8]) -> Runs {
    let mut runs = Runs::default();
    for pair in table.chunks_exact(2) {
        runs.cover(u32::from(pair[0]), Some(line));
        line += i64::from(pair[1].cast_signed());
    }
    runs.cover(u32::MAX, Some(line));
    runs
}

/// `Objects/lnotab_notes.txt` (3.10), `advance` in `Objects/codeobject.c`: the line changes first, and then so many bytes
/// are of it.
fn ranges(mut line: i64, table: &[u8]) -> Runs {
    /// As a change of line: these bytes have none, and the count stays as it is.
    const NONE: i8 = -128;
    let mut runs = Runs::default();
    for pair in table.chunks_exact(2) {
        let change = pair[1].cast_signed();
        if change == NONE {
            runs.cover(u32::from(pair[0]), None);
        } else {
            line += i64::from(change);
            runs.cover(u32::from(pair[0]), Some(line));
        }
    }
    runs.close()
}

/// `Objects/locations.md`, `get_line_delta` in `Objects/codeobject.c` (3.11 and later): entries that begin with a byte
/// whose uppermost bit is set, which no other byte's is.
fn locations(mut line: i64, table: &[u8]) -> Runs {
    let mut runs = Runs::default();
    let mut rest = table;
    while let Some((&head, behind)) = rest.split_first() {
        let length = behind.iter().take_while(|&&byte| byte < 0x80).count();
        let (operands, next) = behind.split_at(length);
        rest = next;
        let units = u32::from(head & 7) + 1;
        let change = match head >> 3 & 15 {
            // No location.
            15 => None,
            // In full, and without columns.
            14 | 13 => Some(signed_varint(operands)),
            // On a line one or two further on, or the same.
            code @ 10..=12 => Some(i64::from(code) - 10),
            // In short, on the same line.
            _ => Some(0),
        };
        line += change.unwrap_or(0);
        runs.cover(units * UNIT_BYTES, change.map(|_| line));
    }
    runs.close()
}

/// Six bits a byte, the lowest first; bit 6 says that there are more. The lowest bit of all is the sign. What is past 32
/// bits, or not there, counts as nothing.
fn signed_varint(bytes: &[u8]) -> i64 {
    let mut value = 0_u64;
    for (index, byte) in bytes.iter().take(6).enumerate() {
        value |= u64::from(byte & 63) << (6 * index);
        if byte & 64 == 0 {
            break;
        }
    }
    let value = value as u32;
    let amount = i64::from(value >> 1);
    if value & 1 == 0 { amount } else { -amount }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KINDS: [LineTableKind; 3] = [
        LineTableKind::Lnotab,
        LineTableKind::Ranges,
        LineTableKind::Locations,
    ];

    fn lines(map: &LineMap, instructions: &[i32]) -> Vec<Option<u32>> {
        instructions.iter().map(|&at| map.line_at(at)).collect()
    }

    #[test]
    fn an_lnotab_goes_up_and_down_and_its_last_line_has_no_end() {
        // 300 bytes of line 10, then 200 lines on, then two lines back.
        let table = [255, 0, 45, 127, 0, 73, 4, 0xfe];
        let map = LineMap::decode(LineTableKind::Lnotab, 10, &table);
        let found = lines(&map, &[-1, 0, 299, 300, 303, 304, i32::MAX]);
        let (first, far, back) = (Some(10), Some(210), Some(208));
        assert_eq!(found, [None, first, first, far, far, back, back]);
        assert_eq!(map.heap_bytes(), 3 * 8, "one for each line");
    }

    #[test]
    fn code_without_a_table_is_of_its_first_line_before_3_10_only() {
        let [lnotab, ranges, locations] = KINDS.map(|kind| LineMap::decode(kind, 7, &[]));
        assert_eq!(lnotab.line_at(0), Some(7));
        assert_eq!(ranges.line_at(0), None);
        assert_eq!(locations.line_at(0), None);
    }

    #[test]
    fn ranges_count_units_and_may_have_no_line() {
        // Four bytes of line 10, none for two bytes, then two bytes of line 9.
        let table = [4, 0, 2, 0x80, 2, 0xff];
        let map = LineMap::decode(LineTableKind::Ranges, 10, &table);
        let found = lines(&map, &[-1, 0, 1, 2, 3, 4, i32::MAX]);
        assert_eq!(found, [None, Some(10), Some(10), None, Some(9), None, None]);
    }

    #[test]
    fn locations_of_every_form_are_understood() {
        let table = [
            0x80 | 15 << 3,     // one unit without a place
            0x80 | 1,           // short: two units, the same line
            0x33,               // (its columns)
            0x80 | 11 << 3,     // one line on
            0x01,               // (its columns)
            0x02,               //
            0x80 | 13 << 3,     // without columns, 100 lines on
            0x40 | 0x08,        //
            0x03,               // (twice 100, in two parts)
            0x80 | 14 << 3 | 7, // in full, 3 lines back, eight units
            0x07,               //
            0x00,               // (its end line and columns)
            0x01,               //
            0x02,               //
        ];
        let map = LineMap::decode(LineTableKind::Locations, 10, &table);
        let found = lines(&map, &[-2, 0, 2, 5, 6, 8, 10, 25, 26]);
        let (ten, eleven) = (Some(10), Some(11));
        let (far, back) = (Some(111), Some(108));
        assert_eq!(found, [None, None, ten, ten, eleven, far, back, back, None]);
    }

    #[test]
    fn neighbours_of_one_line_are_one_run() {
        let table = [0x80 | 7, 0, 0x80 | 10 << 3, 0, 0, 0x80 | 3, 1].repeat(1000);
        let map = LineMap::decode(LineTableKind::Locations, 3, &table);
        assert_eq!(map.line_at(20_000), Some(3));
        assert_eq!(map.heap_bytes(), 2 * 8, "the line, and what is behind it");
    }

    #[test]
    fn a_line_before_the_first_one_of_a_file_is_none() {
        let map = LineMap::decode(LineTableKind::Ranges, 3, &[2, 0xfc, 2, 2]);
        assert_eq!(lines(&map, &[0, 1]), [None, Some(1)]);
        let map = LineMap::decode(LineTableKind::Lnotab, u32::MAX, &[]);
        assert_eq!(map.line_at(0), None);
    }

    #[test]
    fn a_table_without_end_is_cut() {
        // Each entry has another line, which takes the most room there is.
        let table = [0x80 | 11 << 3].repeat(3 * LINE_TABLE_BYTES_MAX);
        let map = LineMap::decode(LineTableKind::Locations, 0, &table);
        assert!(map.heap_bytes() <= 8 * (LINE_TABLE_BYTES_MAX + 1));
        let entries = LINE_TABLE_BYTES_MAX as i32;
        assert_eq!(map.line_at(2 * entries - 1), Some(entries as u32));
        assert_eq!(map.line_at(2 * entries), None);
    }

    #[test]
    fn a_number_longer_than_32_bits_ends_there() {
        let mut table = vec![0x80 | 13 << 3];
        table.resize(100_000, 0x7f);
        let map = LineMap::decode(LineTableKind::Locations, 5, &table);
        assert_eq!(map.line_at(0), None, "far before the file");
        assert_eq!(signed_varint(&[0x40; 5]), 0);
        assert_eq!(signed_varint(&[0x7f; 9]), -i64::from(u32::MAX >> 1));
        assert_eq!(signed_varint(&[]), 0);
    }

    proptest! {
        #[test]
        fn any_bytes_give_runs_in_order_and_lines_that_can_be(
            kind in prop::sample::select(&KINDS[..]),
            first_line in any::<u32>(),
            table in prop::collection::vec(any::<u8>(), 0..600),
        ) {
            let map = LineMap::decode(kind, first_line, &table);
            prop_assert!(map.runs.is_sorted_by(|a, b| a.begin < b.begin && a.line != b.line));
            prop_assert!(map.runs.len() <= table.len() + 1);
            for at in [i32::MIN, -1, 0, 1, 255, 1 << 16, i32::MAX] {
                prop_assert!(map.line_at(at).is_none_or(|line| line < 1 << 31));
            }
        }

        #[test]
        fn a_table_cut_short_says_the_same_as_far_as_it_goes(
            table in prop::collection::vec(any::<i8>(), 2..200),
            end in any::<prop::sample::Index>(),
        ) {
            let table: Vec<u8> = table.into_iter().map(i8::cast_unsigned).collect();
            let cut = &table[..end.index(table.len()) / 2 * 2];
            let whole = LineMap::decode(LineTableKind::Ranges, 1000, &table);
            let part = LineMap::decode(LineTableKind::Ranges, 1000, cut);
            let covered: i32 = cut.chunks(2).map(|pair| i32::from(pair[0])).sum();
            for at in 0..covered / 2 {
                prop_assert_eq!(part.line_at(at), whole.line_at(at));
            }
        }
    }
}
