//! One line of a perf map: bytes in, an entry or the reason for skipping it out. Knows no file and no index.

use std::fmt;

/// One line, as its writer meant it. The size is not yet judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapLine<'a> {
    /// First address of the code. Never 0, and never in the kernel's half.
    pub start: u64,
    /// Length in bytes; may be 0, and may be absurd. `start + size` does not overflow.
    pub size: u64,
    /// The rest of the line: not empty, any bytes but a newline.
    pub name: &'a [u8],
}

/// Why a line is no entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SkipReason {
    /// Nothing but blanks.
    Blank,
    /// It does not begin with a hexadecimal number of at most 64 bits. This is also how the second half of a name
    /// with a newline in it, and lines that two writers tore apart, look.
    BadStart,
    /// The second field is not a hexadecimal number of at most 64 bits.
    BadSize,
    /// It ends before the name.
    NoName,
    /// It starts at address 0.
    NullStart,
    /// It starts in the kernel's half of the address space.
    KernelStart,
    /// It ends beyond the address space.
    Overflow,
    /// It is longer than 64 KiB.
    TooLong,
}

impl SkipReason {
    /// All reasons, in the order of their declaration.
    pub const ALL: [Self; 8] = [
        Self::Blank,
        Self::BadStart,
        Self::BadSize,
        Self::NoName,
        Self::NullStart,
        Self::KernelStart,
        Self::Overflow,
        Self::TooLong,
    ];
}

impl fmt::Display for SkipReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Blank => "blank",
            Self::BadStart => "no address at its start",
            Self::BadSize => "no size in its second field",
            Self::NoName => "no name",
            Self::NullStart => "address 0",
            Self::KernelStart => "an address of the kernel",
            Self::Overflow => "ends beyond the address space",
            Self::TooLong => "longer than 64 KiB",
        })
    }
}

/// The first bit of a kernel address, on x86-64 and aarch64 alike.
const KERNEL_HALF: u64 = 1 << 63;

/// Reads one line, given without its newline.
///
/// Taken as well as the plain form: `0x` before a number, capital digits, leading zeros, several blanks between the
/// fields, a carriage return at the end. A size of 0 is an entry (see [`PerfMap`](super::PerfMap) for what it covers).
pub fn parse_line(line: &[u8]) -> Result<MapLine<'_>, SkipReason> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let line = skip_blanks(line);
    if line.is_empty() {
        return Err(SkipReason::Blank);
    }
    let (start, rest) = hex_field(line).ok_or(SkipReason::BadStart)?;
    if rest.is_empty() {
        return Err(SkipReason::NoName);
    }
    let (size, name) = hex_field(rest).ok_or(SkipReason::BadSize)?;
    if name.is_empty() {
        return Err(SkipReason::NoName);
    }
    if start == 0 {
        return Err(SkipReason::NullStart);
    }
    if start & KERNEL_HALF != 0 {
        return Err(SkipReason::KernelStart);
    }
    if start.checked_add(size).is_none() {
        return Err(SkipReason::Overflow);
    }
    Ok(MapLine { start, size, name })
}

/// A hexadecimal number and the blanks behind it, and what follows. `None` if there is no digit, if a digit is followed
/// by anything but a blank or the end, or if the number needs more than 64 bits.
fn hex_field(text: &[u8]) -> Option<(u64, &[u8])> {
    let digits = match text {
        [b'0', b'x' | b'X', rest @ ..] => rest,
        _ => text,
    };
    let mut value = 0_u64;
    let mut len = 0;
    for &byte in digits {
        let Some(digit) = char::from(byte).to_digit(16) else {
            break;
        };
        if value >> 60 != 0 {
            return None;
        }
        value = value << 4 | u64::from(digit);
        len += 1;
    }
    let rest = &digits[len..];
    let ends_well = rest.first().is_none_or(|&byte| is_blank(byte));
    (len > 0 && ends_well).then(|| (value, skip_blanks(rest)))
}

fn is_blank(byte: u8) -> bool {
    byte == b' ' || byte == b'\t'
}

fn skip_blanks(text: &[u8]) -> &[u8] {
    let blanks = text.iter().take_while(|&&byte| is_blank(byte)).count();
    &text[blanks..]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn line(start: u64, size: u64, name: &str) -> MapLine<'_> {
        MapLine {
            start,
            size,
            name: name.as_bytes(),
        }
    }

    #[test]
    fn a_line_of_cpython_has_start_size_and_name() {
        assert_eq!(
            parse_line(b"7f3c1e8d2000 b py::outer.<locals>.inner:/srv/my app/x y.py"),
            Ok(line(
                0x7f3c_1e8d_2000,
                0xb,
                "py::outer.<locals>.inner:/srv/my app/x y.py"
            ))
        );
    }

    #[test]
    fn prefixes_capitals_zeros_and_wide_gaps_are_accepted() {
        let expected = Ok(line(0x7f6c_c920_0100, 0x368, "java.lang.Object f(long)"));
        for text in [
            &b"0x00007f6cc9200100 0x0000000000000368 java.lang.Object f(long)"[..],
            b"0X7F6CC9200100   368  java.lang.Object f(long)",
            b" 7f6cc9200100\t368\tjava.lang.Object f(long)\r",
        ] {
            assert_eq!(parse_line(text), expected, "{}", text.escape_ascii());
        }
    }

    #[test]
    fn a_name_keeps_its_own_blanks_and_colons() {
        assert_eq!(
            parse_line(b"18c4000 2bc JS:*hot  /tmp/n.js:1:13 "),
            Ok(line(0x18c_4000, 0x2bc, "JS:*hot  /tmp/n.js:1:13 "))
        );
    }

    #[test]
    fn each_kind_of_junk_has_its_reason() {
        for (text, reason) in [
            (&b""[..], SkipReason::Blank),
            (b" \r", SkipReason::Blank),
            (b"zz 10 x", SkipReason::BadStart),
            (b"line:a b/c d.py", SkipReason::BadStart),
            (b"0x 10 x", SkipReason::BadStart),
            (b"-7f00 10 x", SkipReason::BadStart),
            (b"17f00000000000000 10 x", SkipReason::BadStart),
            (b"7f00,10 x", SkipReason::BadStart),
            (b"7f00", SkipReason::NoName),
            (b"7f00 ", SkipReason::NoName),
            (b"7f00 py::f:x.py", SkipReason::BadSize),
            (b"7f00 10", SkipReason::NoName),
            (b"7f00 10  ", SkipReason::NoName),
            (b"0 10 x", SkipReason::NullStart),
            (b"ffffffffffffffff 10 x", SkipReason::KernelStart),
            (b"ffffffff81000000 d x", SkipReason::KernelStart),
            (b"7f00 ffffffffffffffff x", SkipReason::Overflow),
        ] {
            assert_eq!(parse_line(text), Err(reason), "{}", text.escape_ascii());
        }
    }

    #[test]
    fn all_lists_each_reason_at_its_own_place() {
        for (place, reason) in SkipReason::ALL.into_iter().enumerate() {
            assert_eq!(reason as usize, place);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse_line(&bytes);
        }

        #[test]
        fn what_cpython_prints_is_read_back(start in 1_u64..1 << 47, size in any::<u32>(), name in "[^ \t\r\n][^\r\n]*") {
            let text = format!("{start:x} {size:x} {name}");
            prop_assert_eq!(parse_line(text.as_bytes()), Ok(line(start, u64::from(size), &name)));
        }
    }
}
