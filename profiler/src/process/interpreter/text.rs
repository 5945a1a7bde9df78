//! Python's `str` objects, out of another process' memory.

#![forbid(unsafe_code)]

use std::ops::Range;

use super::{
    CodeLayout, ReadMemory,
    object::{half_word_at, read_data, word_at},
};

/// Ends a text that was cut.
const CUT: char = '…';

/// Longest text that anybody has. Lengths past it are not lengths.
const LENGTH_MAX: u64 = 1 << 40;

/// How the characters of a text are stored.
#[derive(Clone, Copy, Debug)]
struct Form {
    /// Bytes of one of them: 1, 2 or 4.
    width: usize,
    is_ascii: bool,
    /// There are more than wanted.
    is_cut: bool,
}

/// The text of the `str` at `at`, with at most `chars_max` characters and `bytes_max` bytes of UTF-8: of a longer one the
/// beginning, with `…` for the last of them.
///
/// Lone surrogates, which stand for bytes of file names that are not UTF-8, become U+FFFD. Control characters are kept.
/// `None`: not readable, or no text by its state, its length or its characters. Takes one read or two, and a third where
/// its memory ends soon behind it.
pub fn read_text(
    memory: &impl ReadMemory,
    layout: &CodeLayout,
    at: u64,
    chars_max: usize,
    bytes_max: usize,
) -> Option<Box<str>> {
    let length_end = usize::from(layout.text_length) + 8;
    let header_bytes = length_end.max(usize::from(layout.text_state) + 4);
    let (form, data) = read_data(memory, at, header_bytes, |header| {
        form_of(layout, header, chars_max)
    })?;
    let mut text = decode(form, &data)?;
    if text.len() > bytes_max {
        let end = bytes_max.saturating_sub(CUT.len_utf8());
        text.truncate(text.floor_char_boundary(end));
        text.push(CUT);
    } else if form.is_cut {
        text.pop();
        text.push(CUT);
    }
    Some(text.into_boxed_str())
}

/// `PyASCIIObject`, `Include/cpython/unicodeobject.h` (3.8 to 3.15): `state` has the bits of `interned`, then `kind` (3),
/// `compact`, `ascii`. Texts that are not compact have their characters elsewhere; the compiler makes none (nor does
/// anything else since 3.12, but for subclasses of `str`).
fn form_of(layout: &CodeLayout, header: &[u8], chars_max: usize) -> Option<(Form, Range<usize>)> {
    let length = word_at(header, usize::from(layout.text_length))?;
    let state = half_word_at(header, usize::from(layout.text_state))?;
    let state = state.checked_shr(u32::from(layout.text_interned_bits))?;
    let width = match state & 7 {
        width @ (1 | 2 | 4) => width as usize,
        _ => return None,
    };
    let (is_compact, is_ascii) = (state & 8 != 0, state & 16 != 0);
    if !is_compact || (is_ascii && width != 1) || length > LENGTH_MAX {
        return None;
    }
    let begin = usize::from(if is_ascii {
        layout.text_ascii
    } else {
        layout.text_compact
    });
    let chars = usize::try_from(length).ok()?;
    let form = Form {
        width,
        is_ascii,
        is_cut: chars > chars_max,
    };
    let bytes = chars.min(chars_max).checked_mul(width)?;
    Some((form, begin..begin.checked_add(bytes)?))
}

/// `None` if a character is none, or cannot be in a text of this form.
fn decode(form: Form, data: &[u8]) -> Option<String> {
    if form.is_ascii {
        return data
            .is_ascii()
            .then(|| String::from_utf8(data.to_vec()).ok())?;
    }
    let units = data.chunks_exact(form.width);
    let number = |unit: &[u8]| {
        unit.iter()
            .rev()
            .fold(0, |all, &byte| all << 8 | u32::from(byte))
    };
    let character = |unit| match number(unit) {
        0xd800..0xe000 => Some(char::REPLACEMENT_CHARACTER),
        other => char::from_u32(other),
    };
    units.map(character).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::testing::{LAYOUT, Memory, ascii_object, text_object};
    use super::*;

    const AT: u64 = 0x7f00_0000_1000;

    fn read(object: &[u8], chars_max: usize) -> Option<Box<str>> {
        let memory = Memory::default();
        memory.put(AT, object);
        let text = read_text(&memory, &LAYOUT, AT, chars_max, 1 << 20);
        assert!(memory.reads.get() <= 3);
        text
    }

    fn units(text: &str) -> Vec<u32> {
        text.chars().map(u32::from).collect()
    }

    #[test]
    fn every_kind_of_text_is_read() {
        for (width, text) in [
            (1, "café_"),
            (2, "функция.<locals>.λ"),
            (4, "𝒇.__init__"),
            (1, ""),
        ] {
            let object = text_object(width, false, &units(text));
            assert_eq!(read(&object, 4096).as_deref(), Some(text));
        }
        let ascii = "outer.<locals>.inner";
        assert_eq!(read(&ascii_object(ascii), 4096).as_deref(), Some(ascii));
        assert_eq!(read(&ascii_object(""), 4096).as_deref(), Some(""));
    }

    #[test]
    fn a_short_text_takes_one_read_and_a_long_one_two() {
        let long = "long_".repeat(100);
        for (text, reads) in [("short", 1), (&long, 2)] {
            let memory = Memory::default();
            let mut object = ascii_object(text);
            object.resize(object.len() + 300, 0xaa);
            memory.put(AT, &object);
            let found = read_text(&memory, &LAYOUT, AT, 4096, 1 << 20);
            assert_eq!((found.as_deref(), memory.reads.get()), (Some(text), reads));
        }
    }

    #[test]
    fn surrogates_become_replacement_characters() {
        // `os.fsdecode(b"/srv/\xff.py")`
        let wide = text_object(2, false, &[0x2f, 0xdcff, 0x2e, 0xd83d, 0xde00]);
        assert_eq!(
            read(&wide, 99).as_deref(),
            Some("/\u{fffd}.\u{fffd}\u{fffd}")
        );
        let wider = text_object(4, false, &[0x1_f600, 0xd800]);
        assert_eq!(read(&wider, 99).as_deref(), Some("\u{1f600}\u{fffd}"));
    }

    #[test]
    fn a_longer_text_is_cut_with_a_mark() {
        let long = "x".repeat(5000);
        let cut = read(&ascii_object(&long), 4096).unwrap();
        assert_eq!(cut.chars().count(), 4096);
        assert!(cut.ends_with("xx…"));
        let fits = read(&ascii_object(&long), 5000).unwrap();
        assert_eq!(&*fits, long);
        let wide = text_object(4, false, &units(&"\u{1f600}".repeat(11)));
        assert_eq!(read(&wide, 3).as_deref(), Some("\u{1f600}\u{1f600}…"));
    }

    #[test]
    fn free_threaded_builds_have_more_bits_before_the_kind() {
        let layout = CodeLayout {
            text_interned_bits: 8,
            ..LAYOUT
        };
        let memory = Memory::default();
        let mut object = ascii_object("name");
        object[32..36].copy_from_slice(&[3, 1 | 8 | 16, 0, 0]);
        memory.put(AT, &object);
        assert_eq!(
            read_text(&memory, &layout, AT, 9, 99).as_deref(),
            Some("name")
        );
        assert_eq!(read_text(&memory, &LAYOUT, AT, 9, 99), None);
    }

    #[test]
    fn what_cannot_be_a_text_is_none() {
        let good = ascii_object("name");
        assert!(read(&good, 9).is_some());
        for state in [
            0,                        // nothing at all
            1 << 2 | 1 << 6,          // not compact
            1 << 5 | 1 << 6,          // of no kind
            3 << 2 | 1 << 5,          // characters of three bytes
            2 << 2 | 1 << 5 | 1 << 6, // ASCII of two bytes
        ] {
            let mut object = good.clone();
            object[32] = state;
            assert_eq!(read(&object, 9), None, "{state:#x}");
        }
        for length in [u64::MAX, 1 << 63, LENGTH_MAX + 1] {
            let mut object = good.clone();
            object[16..24].copy_from_slice(&length.to_le_bytes());
            assert_eq!(read(&object, 9), None, "{length:#x}");
        }
        let mut object = good.clone();
        object[42] = 0x80;
        assert_eq!(read(&object, 9), None, "not ASCII");
        let beyond = text_object(4, false, &[0x11_0000]);
        assert_eq!(read(&beyond, 9), None, "past the last character");
        assert_eq!(read(&good[..43], 9), None, "its memory ends in it");
        assert_eq!(read(&good[..30], 9), None, "its memory ends in the header");
        assert_eq!(read_text(&Memory::default(), &LAYOUT, 0, 9, 99), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_text_within_the_limit_or_none(
            object in prop::collection::vec(any::<u8>(), 0..400),
            state in any::<u8>(),
            length in 0_u64..300,
            chars_max in 1_usize..100,
        ) {
            let mut object = object;
            if object.len() > 40 {
                object[32] = state;
                object[16..24].copy_from_slice(&length.to_le_bytes());
            }
            if let Some(text) = read(&object, chars_max) {
                prop_assert!(text.chars().count() <= chars_max);
            }
        }

        #[test]
        fn any_text_is_read_back(text in any::<String>()) {
            let object = text_object(4, false, &units(&text));
            let found = read(&object, 1 << 20);
            prop_assert_eq!(found.as_deref(), Some(&*text));
        }
    }
}
