//! Objects that hold data of variable length: header and data, in one read where they are short.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::ReadMemory;

/// Bytes that are read before the length is known. Nearly all names, and most line tables, end before: each read is a
/// system call, whose price hardly depends on these few bytes.
const AHEAD_BYTES: usize = 256;

/// The data of the object at `at`.
///
/// `place` looks at its header, the first `header_bytes` of it or more, and says where the data lie from the object's
/// beginning on; that is as much as is allocated for them. `None`: it is not readable, or `place` did not like it.
pub(super) fn read_data<T>(
    memory: &impl ReadMemory,
    at: u64,
    header_bytes: usize,
    place: impl FnOnce(&[u8]) -> Option<(T, Range<usize>)>,
) -> Option<(T, Vec<u8>)> {
    let mut ahead = [0; AHEAD_BYTES];
    let known = read_ahead(memory, at, header_bytes, &mut ahead)?;
    let (form, place) = place(known)?;
    if let Some(data) = known.get(place.clone()) {
        return Some((form, data.to_vec()));
    }
    let begun = known.get(place.start..).unwrap_or_default();
    let mut data = vec![0; place.len()];
    let (copied, missing) = data.split_at_mut_checked(begun.len())?;
    copied.copy_from_slice(begun);
    let missing_at = at.checked_add((place.start + begun.len()) as u64)?;
    memory.read(missing_at, missing).then_some((form, data))
}

/// As much of an object as fits into `ahead`, or only its header where the memory ends before.
fn read_ahead<'b>(
    memory: &impl ReadMemory,
    at: u64,
    header_bytes: usize,
    ahead: &'b mut [u8; AHEAD_BYTES],
) -> Option<&'b [u8]> {
    if memory.read(at, ahead) {
        return Some(ahead);
    }
    let header = ahead.get_mut(..header_bytes)?;
    memory.read(at, header).then_some(header)
}

/// The eight bytes of a header at an offset, as a number.
pub(super) fn word_at(header: &[u8], offset: usize) -> Option<u64> {
    let bytes = header.get(offset..)?.first_chunk()?;
    Some(u64::from_le_bytes(*bytes))
}

/// The four bytes of a header at an offset, as a number.
pub(super) fn half_word_at(header: &[u8], offset: usize) -> Option<u32> {
    let bytes = header.get(offset..)?.first_chunk()?;
    Some(u32::from_le_bytes(*bytes))
}
