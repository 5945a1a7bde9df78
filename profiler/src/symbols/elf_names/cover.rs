//! Which symbol covers an address: all symbols of a file, taken apart into pieces that do not overlap.

use super::{
    frames::Functions,
    input::NameRef,
    symbols::{Entry, EntryKind, Tables},
};

/// No symbol covers this piece.
const NOBODY: u32 = u32::MAX;

/// For each address, the symbol that covers it.
#[derive(Debug, Default)]
pub(super) struct Cover {
    /// In ascending order; each reaches up to the next.
    pieces: Vec<Piece>,
    /// In ascending order of their addresses.
    symbols: Vec<(u64, NameRef)>,
}

#[derive(Clone, Copy, Debug)]
struct Piece {
    begin: u64,
    symbol: u32,
}

/// A symbol that has begun, and not ended.
#[derive(Clone, Copy, Debug)]
struct Open {
    end: u64,
    symbol: u32,
}

impl Cover {
    pub(super) fn new(tables: Tables, functions: &Functions) -> Self {
        let Tables {
            mut entries,
            is_cut,
            ..
        } = tables;
        // Of one address, those with a size come first, so that others can be dropped; the best comes last, to lie on
        // top. The sort is stable: of equals, the first in the table is the best.
        entries.reverse();
        entries.sort_by_key(|it| (it.start, it.end == it.start, it.rank));
        bound_those_without_size(&mut entries, functions, is_cut);
        entries.retain(|it| it.end > it.start && it.kind != EntryKind::Data);

        let mut cover = Self {
            pieces: Vec::with_capacity(entries.len() * 2),
            symbols: entries.iter().map(|it| (it.start, it.name)).collect(),
        };
        let mut open: Vec<Open> = Vec::new();
        for (entry, symbol) in entries.iter().zip(0..) {
            cover.close(&mut open, entry.start);
            open.push(Open {
                end: entry.end,
                symbol,
            });
            cover.begin(entry.start, symbol);
        }
        cover.close(&mut open, u64::MAX);
        cover
    }

    /// The symbol that covers an address: where it begins, and its name.
    pub(super) fn at(&self, address: u64) -> Option<(u64, NameRef)> {
        let behind = self.pieces.partition_point(|it| it.begin <= address);
        let piece = self.pieces.get(behind.checked_sub(1)?)?;
        self.symbols.get(piece.symbol as usize).copied()
    }

    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.pieces) + size_of_val(&*self.symbols)
    }

    fn begin(&mut self, begin: u64, symbol: u32) {
        match self.pieces.last_mut() {
            Some(last) if last.begin == begin => last.symbol = symbol,
            Some(last) if last.symbol == symbol => {}
            _ => self.pieces.push(Piece { begin, symbol }),
        }
    }

    /// Ends all that ends at `until` or before; what lies around it goes on.
    fn close(&mut self, open: &mut Vec<Open>, until: u64) {
        while let Some(ended) = open.pop_if(|top| top.end <= until) {
            while open.pop_if(|below| below.end <= ended.end).is_some() {}
            self.begin(ended.end, open.last().map_or(NOBODY, |below| below.symbol));
        }
    }
}

/// Sets the end of each symbol that does not state its size, and removes those that are labels inside of a function.
fn bound_those_without_size(entries: &mut Vec<Entry>, functions: &Functions, is_cut: bool) {
    let mut covered_until = 0;
    // Where the `.eh_frame` function ends that a symbol without a size begins.
    let mut function_end = 0;
    entries.retain(|it| {
        if it.end > it.start {
            if it.kind != EntryKind::Data {
                covered_until = covered_until.max(it.end);
            }
            return true;
        }
        let is_label = it.kind == EntryKind::Label && it.start < function_end;
        if is_label || it.start < covered_until {
            return false;
        }
        if it.kind == EntryKind::Function
            && let Some(function) = functions.at(it.start)
            && function.start == it.start
        {
            function_end = function.end;
        }
        true
    });
    if is_cut {
        // The next symbol may be one that was left out.
        return;
    }
    let (mut next, mut here) = (u64::MAX, u64::MAX);
    for entry in entries.iter_mut().rev() {
        if entry.start < here {
            (next, here) = (here, entry.start);
        }
        if entry.end == entry.start {
            let described_until = functions
                .at(entry.start)
                .map_or_else(|| functions.next_after(entry.start), |it| it.end);
            entry.end = next.min(entry.section_end).min(described_until);
        }
    }
}
