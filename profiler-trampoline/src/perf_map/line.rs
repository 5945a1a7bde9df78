//! One entry as one line: `START SIZE name`, both numbers in hexadecimal without a prefix.

use std::collections::TryReserveError;

/// Names up to this length, escapes included, are put together on the stack.
const STACK_NAME: usize = 1024;
/// Two numbers of 16 digits and two blanks.
const HEAD: usize = 34;

/// Calls `write` with the three parts of the line: numbers, name, line end. Fails when there is no memory for a long
/// name with escapes.
pub(super) fn with_entry<R>(
    address: usize,
    size: usize,
    name: &[u8],
    write: impl FnOnce(&[&[u8]; 3]) -> R,
) -> Result<R, TryReserveError> {
    let mut head = Text::<HEAD>::default();
    head.push_hex(address);
    head.push(b' ');
    head.push_hex(size);
    head.push(b' ');
    if is_plain(name) {
        return Ok(write(&[head.bytes(), name, b"\n"]));
    }
    let mut escaped = Text::<STACK_NAME>::default();
    if escape(name, &mut |bytes| escaped.extend(bytes)) {
        return Ok(write(&[head.bytes(), escaped.bytes(), b"\n"]));
    }
    let mut length = 0;
    escape(name, &mut |bytes| {
        length += bytes.len();
        true
    });
    let mut long = Vec::new();
    long.try_reserve_exact(length)?;
    escape(name, &mut |bytes| {
        long.extend_from_slice(bytes);
        true
    });
    Ok(write(&[head.bytes(), &long, b"\n"]))
}

/// Nothing in `name` needs an escape.
fn is_plain(name: &[u8]) -> bool {
    name.iter().all(|byte| (0x20..0x7f).contains(byte))
        || std::str::from_utf8(name).is_ok_and(|name| !name.contains(char::is_control))
}

/// Hands the name over in pieces, and stops when one is not taken.
///
/// Control characters would end the line or reach a terminal; other bytes that are not UTF-8 are nobody's text. A
/// backslash stays as it is: an escape is for the eye, not to be undone.
fn escape(name: &[u8], take: &mut dyn FnMut(&[u8]) -> bool) -> bool {
    let hex = |byte: u8| {
        let digit = |n: u8| b"0123456789abcdef"[usize::from(n & 15)];
        [b'\\', b'x', digit(byte >> 4), digit(byte)]
    };
    for chunk in name.utf8_chunks() {
        for character in chunk.valid().chars() {
            let fits = match character {
                '\n' => take(b"\\n"),
                '\r' => take(b"\\r"),
                '\t' => take(b"\\t"),
                // All of these are below U+00A0.
                control if control.is_control() => take(&hex(control as u8)),
                other => take(other.encode_utf8(&mut [0; 4]).as_bytes()),
            };
            if !fits {
                return false;
            }
        }
        if !chunk.invalid().iter().all(|byte| take(&hex(*byte))) {
            return false;
        }
    }
    true
}

/// Bytes on the stack.
struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Default for Text<N> {
    fn default() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }
}

impl<const N: usize> Text<N> {
    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn push(&mut self, byte: u8) {
        self.extend(&[byte]);
    }

    /// False, and nothing added, when there is no room.
    fn extend(&mut self, bytes: &[u8]) -> bool {
        let Some(room) = self
            .bytes
            .get_mut(self.length..)
            .and_then(|rest| rest.get_mut(..bytes.len()))
        else {
            return false;
        };
        room.copy_from_slice(bytes);
        self.length += bytes.len();
        true
    }

    fn push_hex(&mut self, number: usize) {
        let digits = (usize::BITS - number.leading_zeros()).div_ceil(4).max(1);
        for n in (0..digits).rev() {
            self.push(b"0123456789abcdef"[(number >> (4 * n)) & 15]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(address: usize, size: usize, name: &[u8]) -> String {
        let line = with_entry(address, size, name, |parts| parts.concat()).unwrap();
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn an_entry_is_written_as_cpython_writes_it() {
        assert_eq!(entry(0x1234, 5678, b"entry1"), "1234 162e entry1\n");
        assert_eq!(entry(0x2345, 6789, b"entry2"), "2345 1a85 entry2\n");
        assert_eq!(
            entry(0, 1 << 33, "py::größe:/x y.py".as_bytes()),
            "0 200000000 py::größe:/x y.py\n"
        );
        assert_eq!(
            entry(usize::MAX, usize::MAX, b""),
            "ffffffffffffffff ffffffffffffffff \n"
        );
    }

    #[test]
    fn what_would_break_the_line_is_escaped() {
        assert_eq!(
            entry(1, 1, b"a\nb\r\tc\x1b[31m\0\x7f"),
            "1 1 a\\nb\\r\\tc\\x1b[31m\\x00\\x7f\n"
        );
        assert_eq!(entry(1, 1, b"caf\xe9 \xc3\xa9"), "1 1 caf\\xe9 é\n");
        // C1 controls, as UTF-8
        assert_eq!(entry(1, 1, "\u{85}\u{9b}".as_bytes()), "1 1 \\x85\\x9b\n");
        assert_eq!(entry(1, 1, b"C:\\new"), "1 1 C:\\new\n");
    }

    #[test]
    fn long_names_are_whole() {
        for length in [1, 1023, 1024, 1025, 3000, 100_000] {
            let plain = "n".repeat(length);
            assert_eq!(entry(1, 2, plain.as_bytes()), format!("1 2 {plain}\n"));
            let control = "\u{1}".repeat(length);
            assert_eq!(
                entry(1, 2, control.as_bytes()),
                format!("1 2 {}\n", "\\x01".repeat(length))
            );
        }
    }
}
