//! Memory of a process that there is not, with a CPython in it of which the tests are the compiler.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
};

use super::{CodeLayout, LineTableKind, ReadMemory};

/// Where `PyCode_Type` is.
pub(super) const CODE_TYPE: u64 = 0x7f00_0010_0000;
/// The layout of CPython 3.12 on x86-64.
pub(super) const LAYOUT: CodeLayout = CodeLayout {
    code_type: CODE_TYPE,
    object_type: 8,
    identity: 56,
    first_line: 68,
    file: 112,
    name: 120,
    qualified_name: Some(128),
    line_table: 136,
    lines: LineTableKind::Locations,
    text_length: 16,
    text_state: 32,
    text_interned_bits: 2,
    text_ascii: 40,
    text_compact: 56,
    bytes_size: 16,
    bytes_data: 32,
};

/// What the process does.
pub(super) type Change = fn(&Memory);

/// Pieces of memory, with nothing between them.
#[derive(Default)]
pub(super) struct Memory {
    pieces: RefCell<BTreeMap<u64, Vec<u8>>>,
    /// Reads so far.
    pub(super) reads: Cell<usize>,
    /// Done before the read of this number, counted from 0.
    pub(super) meanwhile: Option<(usize, Change)>,
}

impl Memory {
    pub(super) fn put(&self, at: u64, bytes: &[u8]) {
        self.pieces.borrow_mut().insert(at, bytes.to_vec());
    }

    pub(super) fn remove(&self, at: u64) {
        self.pieces.borrow_mut().remove(&at);
    }

    /// Other bytes inside of what was put at `at`.
    pub(super) fn change(&self, at: u64, offset: usize, bytes: &[u8]) {
        let mut pieces = self.pieces.borrow_mut();
        let piece = pieces.get_mut(&at).expect("it is there");
        piece[offset..offset + bytes.len()].copy_from_slice(bytes);
    }
}

impl ReadMemory for Memory {
    fn read(&self, at: u64, into: &mut [u8]) -> bool {
        let number = self.reads.replace(self.reads.get() + 1);
        if let Some((when, change)) = &self.meanwhile
            && *when == number
        {
            change(self);
        }
        let pieces = self.pieces.borrow();
        let Some((begin, piece)) = pieces.range(..=at).next_back() else {
            return false;
        };
        let offset = (at - begin) as usize;
        let Some(found) = piece.get(offset..).and_then(|rest| rest.get(..into.len())) else {
            return false;
        };
        into.copy_from_slice(found);
        true
    }
}

/// A text that ends where its memory does, as [`LAYOUT`] has them: units of `width` bytes.
pub(super) fn text_object(width: usize, is_ascii: bool, units: &[u32]) -> Vec<u8> {
    let mut object = vec![0; if is_ascii { 40 } else { 56 }];
    object[16..24].copy_from_slice(&(units.len() as u64).to_le_bytes());
    let state = (width as u32) << 2 | 1 << 5 | u32::from(is_ascii) << 6 | 2;
    object[32..36].copy_from_slice(&state.to_le_bytes());
    for unit in units {
        object.extend_from_slice(&unit.to_le_bytes()[..width]);
    }
    object
}

/// An ASCII text.
pub(super) fn ascii_object(text: &str) -> Vec<u8> {
    let units: Vec<u32> = text.bytes().map(u32::from).collect();
    text_object(1, true, &units)
}

/// `bytes` that end where their memory does.
pub(super) fn bytes_object(data: &[u8]) -> Vec<u8> {
    let mut object = vec![0; 32];
    object[16..24].copy_from_slice(&(data.len() as u64).to_le_bytes());
    object.extend_from_slice(data);
    object
}
