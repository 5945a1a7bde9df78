//! Names that every format can hold.
//!
//! A recorded name is what a program chose to call a function: it may hold separators, line ends, escape sequences for
//! terminals, nothing at all, or thousands of characters. Here it becomes one readable piece of text that a reader of
//! folded stacks takes for one frame, that XML may hold, and that a terminal prints without obeying it.

use std::fmt::Write;

/// Shown in the place of `;`, which separates frames: the Greek question mark, which looks the same.
const SEMICOLON: char = '\u{37e}';

/// Shown in the place of a space that would be lost or misread: a mark for a blank.
const BLANK: char = '␣';

/// Shown in the place of a name of no characters.
const UNNAMED: &str = "<unnamed>";

/// Makes every character of a recorded text harmless: one that separates or controls is shown, not obeyed. At most
/// `chars_max` characters are kept, the last of them `…` when there were more.
pub(super) fn clean(raw: &str, chars_max: usize) -> String {
    let mut text = String::with_capacity(raw.len().min(chars_max));
    for (index, c) in raw.chars().enumerate() {
        if index + 1 >= chars_max && raw.chars().nth(chars_max).is_some() {
            text.push('…');
            break;
        }
        push_clean(&mut text, c);
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
    let split = inner.rfind(char::is_whitespace).filter(|&space| {
        let last_word = inner[space..].trim_start();
        let number = last_word.split('.').next().unwrap_or(last_word);
        !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit())
    });
    for (index, c) in inner.char_indices() {
        let comment = index == 1 && inner.starts_with("# ");
        frame.push(if comment || split == Some(index) {
            BLANK
        } else {
            c
        });
    }
    frame.extend(text[at_start + inner.len()..].chars().map(|_| BLANK));
    frame
}

fn push_clean(text: &mut String, c: char) {
    match c {
        ';' => text.push(SEMICOLON),
        '\n' => text.push_str("\\n"),
        '\r' => text.push_str("\\r"),
        '\t' => text.push_str("\\t"),
        '\0' => text.push_str("\\0"),
        // Writing to a string cannot fail.
        c if c.is_control() => drop(write!(text, "\\x{:02x}", u32::from(c))),
        c if is_misleading(c) => drop(write!(text, "\\u{{{:x}}}", u32::from(c))),
        c => text.push(c),
    }
}

/// Ends a line for some readers, changes the direction of the text after it, is there without being seen, so that two
/// names look like one, or is not a character at all. The two joiners stay: words of some languages need them.
fn is_misleading(c: char) -> bool {
    matches!(c, '\u{ad}' | '\u{61c}' | '\u{200b}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}'
        | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
        || u32::from(c) & 0xfffe == 0xfffe
        || matches!(c, '\u{fdd0}'..='\u{fdef}')
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert_eq!(shown("a;b"), "a\u{37e}b");
        assert_eq!(shown("new\nline"), "new\\nline");
        assert_eq!(shown("tab\tcr\rnul\0"), "tab\\tcr\\rnul\\0");
        assert_eq!(shown("x\u{2028}y"), "x\\u{2028}y");
    }

    #[test]
    fn a_terminal_finds_nothing_to_obey() {
        assert_eq!(shown("\u{1b}[31mred"), "\\x1b[31mred");
        assert_eq!(shown("\u{7f}\u{9b}1m"), "\\x7f\\x9b1m");
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
        assert_eq!(shown("end42"), "end42");
        assert_eq!(shown("42"), "42");
    }

    #[test]
    fn blanks_at_the_ends_and_a_comment_sign_are_kept() {
        assert_eq!(shown(" a "), "␣a␣");
        assert_eq!(shown("   "), "␣␣␣");
        assert_eq!(shown("# not a comment"), "#␣not a comment");
        assert_eq!(shown("\u{a0}5"), "␣5");
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
}
