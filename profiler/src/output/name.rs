//! Names that every format can hold.
//!
//! A recorded name is what a program chose to call a function: it may hold separators, line ends, escape sequences for
//! terminals, nothing at all, or thousands of characters. Here it becomes one readable piece of text that a reader of
//! folded stacks takes for one frame, that XML may hold, and that a terminal prints without obeying it.

use crate::model::{Shower, begins_as_number, needs_next};

/// Shown in the place of `;`, which separates frames: REVERSED SEMICOLON. No normalisation form turns it into one, as it
/// would the Greek question mark, which looks more like it.
const SEMICOLON: char = '\u{204f}';

/// Shown in the place of a space that would be lost or misread: a mark for a blank.
const BLANK: char = '␣';

/// Shown in the place of a name of no characters.
const UNNAMED: &str = "<unnamed>";

/// Makes every character of a recorded text harmless: one that separates, controls or cannot be seen is spelled out. At
/// most `chars_max` characters are shown, the last of them `…` where there were more.
pub(super) fn clean(raw: &str, chars_max: usize) -> String {
    let mut text = String::with_capacity(raw.len().min(chars_max));
    let (mut shown, mut cut_at) = (0, 0);
    let mut shower = Shower::default();
    let mut chars = raw.chars().peekable();
    while let Some(c) = chars.next() {
        let begin = text.len();
        let next = chars.peek().copied();
        shower.push(if c == ';' { SEMICOLON } else { c }, next, &mut text);
        shown += text[begin..].chars().count();
        if shown < chars_max && !needs_next(c) {
            cut_at = text.len();
        }
        if shown > chars_max {
            text.truncate(cut_at);
            text.push('…');
            break;
        }
    }
    if text.is_empty() {
        UNNAMED.to_owned()
    } else {
        text
    }
}

/// Makes clean text one whole frame: readers cut spaces off the ends of a line, take a number after a space for a
/// count, and skip lines that begin with `# `.
pub(super) fn frame(text: &str) -> String {
    let inner = text.trim();
    let at_start = text.len() - text.trim_start().len();
    let mut frame = String::with_capacity(text.len() + 8);
    frame.extend(text[..at_start].chars().map(|_| BLANK));
    let split = inner
        .rfind(char::is_whitespace)
        .filter(|&space| begins_as_number(inner[space..].trim_start()));
    // So begin comments, and frames that stand for others.
    let mark = ["# ", "… "].iter().find(|mark| inner.starts_with(**mark));
    let mark = mark.map(|mark| mark.len() - 1);
    for (index, c) in inner.char_indices() {
        frame.push(if Some(index) == mark || split == Some(index) {
            BLANK
        } else {
            c
        });
    }
    frame.extend(text[at_start + inner.len()..].chars().map(|_| BLANK));
    frame
}

/// Clean text of at most the given number of bytes, which has `…` for its middle where it is longer.
pub(super) fn without_middle(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let room = bytes_max.saturating_sub('…'.len_utf8()) / 2;
    let start = text[..text.floor_char_boundary(room)].trim_end_matches(needs_next);
    let end = text.ceil_char_boundary(text.len() - room);
    // A mark belongs to the letter before it, which is gone.
    let end = text[end..].trim_start_matches(|c: char| !c.is_ascii() && !c.is_alphanumeric());
    format!("{start}…{end}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::as_compatible;

    fn shown(raw: &str) -> String {
        frame(&clean(raw, 8192))
    }

    #[test]
    fn ordinary_names_stay_as_they_are() {
        for name in [
            "main",
            "Outer.method.<locals>.<lambda>",
            "café_日本",
            "operator new(unsigned long)",
            "a::b<c, 2>",
        ] {
            assert_eq!(shown(name), name);
        }
    }

    #[test]
    fn separators_are_shown_and_do_not_separate() {
        assert_eq!(shown("a;b"), "a\u{204f}b");
        assert_eq!(shown("new\nline"), "new\\nline");
        assert_eq!(shown("tab\tcr\rnul\0"), "tab\\tcr\\rnul\\0");
        assert_eq!(shown("x\u{2028}y"), "x\\u{2028}y");
    }

    #[test]
    fn a_terminal_finds_nothing_to_obey() {
        assert_eq!(shown("\u{1b}[31mred"), "\\x1b[31mred");
        assert_eq!(shown("\u{7f}\u{9b}1m"), "\\x7f\\u{9b}1m");
        assert_eq!(shown("abc\u{202e}def"), "abc\\u{202e}def");
        assert_eq!(shown("abc\u{61c}def"), "abc\\u{61c}def");
        assert_eq!(shown("a\u{200b}b\u{e0041}"), "a\\u{200b}b\\u{e0041}");
    }

    #[test]
    fn what_xml_may_not_hold_is_spelled_out() {
        assert_eq!(shown("\u{fffe}\u{ffff}\u{1}"), "\\u{fffe}\\u{ffff}\\x01");
    }

    #[test]
    fn a_number_at_the_end_is_part_of_the_name() {
        assert_eq!(shown("end 42"), "end␣42");
        assert_eq!(shown("end 4.2"), "end␣4.2");
        assert_eq!(shown("two  7"), "two ␣7");
        assert_eq!(shown("end \u{ff14}\u{ff12}"), "end␣\u{ff14}\u{ff12}");
        assert_eq!(shown("end \u{2474}"), "end \u{2474}");
        assert_eq!(shown("end ²"), "end␣²");
        assert_eq!(shown("end42"), "end42");
        assert_eq!(shown("42"), "42");
    }

    #[test]
    fn blanks_at_the_ends_and_a_comment_sign_are_kept() {
        assert_eq!(shown(" a "), "␣a␣");
        assert_eq!(shown("   "), "␣␣␣");
        assert_eq!(shown("# not a comment"), "#␣not a comment");
        assert_eq!(shown("… 7 frames"), "…␣7 frames");
        assert_eq!(shown("\u{a0}5"), "\\u{a0}5");
    }

    #[test]
    fn no_name_is_called_unnamed() {
        assert_eq!(shown(""), "<unnamed>");
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        let long = "é".repeat(5000);
        assert_eq!(clean(&long, 8192), long);
        assert_eq!(clean(&long, 10), "é".repeat(9) + "…");
        assert_eq!(clean(&"é".repeat(10), 10), "é".repeat(10));
    }

    #[test]
    fn what_is_spelled_out_counts_as_what_is_shown() {
        assert_eq!(clean("a\u{202e}bc", 10), "a\\u{202e}…");
        assert_eq!(clean("a\u{202e}b", 9), "a…");
        assert_eq!(clean("a\u{202e}b", 10), "a\\u{202e}b");
        assert_eq!(clean("a\u{202e}b", 8), "a…");
        let marks = format!("comb{}", "\u{301}".repeat(300));
        let shown = clean(&marks, 256);
        assert!(
            shown.chars().count() <= 256 && shown.ends_with("\\u{301}…"),
            "{shown}"
        );
    }

    /// Whatever a name is made of, and in whatever form its reader normalises it.
    #[test]
    fn a_line_has_as_many_frames_in_every_normalisation_form() {
        use icu_normalizer::{ComposingNormalizer, DecomposingNormalizer};
        let (nfc, nfkc) = (
            ComposingNormalizer::new_nfc(),
            ComposingNormalizer::new_nfkc(),
        );
        let nfd = DecomposingNormalizer::new_nfd();
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            for name in [
                format!("{c}5"),
                format!("{c} 5"),
                format!("a {c}"),
                format!("a {c}5"),
            ] {
                let line = format!("{0};{0} 7", shown(&name));
                for form in [
                    line.clone(),
                    nfc.normalize(&line).into_owned(),
                    nfkc.normalize(&line).into_owned(),
                    nfd.normalize(&line).into_owned(),
                    as_compatible(&line).into_owned(),
                ] {
                    let (stack, count) = form.rsplit_once(' ').expect("a count");
                    assert_eq!(
                        (stack.split(';').count(), count),
                        (2, "7"),
                        "{name:?}: {form}"
                    );
                    assert!(!stack.starts_with("# "), "{name:?}: {form}");
                    let is_count = |word: &str| {
                        let whole = word.split('.').next().unwrap_or(word);
                        !whole.is_empty() && whole.bytes().all(|byte| byte.is_ascii_digit())
                    };
                    let last_word = stack.rsplit_once(' ').map(|(_, word)| word);
                    assert!(
                        !last_word.is_some_and(is_count),
                        "{name:?}: a second count in {form}"
                    );
                }
            }
        }
    }
}
