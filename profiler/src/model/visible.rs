//! Text that others wrote, made visible.
//!
//! The names of functions, files, threads and commands may hold any character. Here each character that could mislead a
//! reader is spelled out, as `\n` or `\u{202e}`: one that a terminal obeys, that nobody sees, that reorders or covers
//! the text beside it, or that Unicode normalisation turns into a separator or into markup. Which characters these are is
//! decided by their Unicode properties, so that a new version of Unicode needs no change here. Everything that shows such
//! text uses this module: results, report, status line, errors and log.

use std::{borrow::Cow, fmt::Write as _};

use icu_normalizer::{DecomposingNormalizer, DecomposingNormalizerBorrowed};
use icu_properties::{
    CodePointMapData, CodePointMapDataBorrowed, CodePointSetData, CodePointSetDataBorrowed,
    props::{DefaultIgnorableCodePoint, GeneralCategory, GeneralCategoryGroup},
};

/// Combining marks shown on one letter. Vietnamese, Hebrew and Tibetan words have up to four; more of them grow over the
/// lines above and below.
const MARKS_MAX: usize = 4;

/// Characters that no property tells from visible ones, and whose glyph is blank, or stands for something else.
const BLANK_GLYPHS: [char; 5] = [
    '\u{2800}',  // BRAILLE PATTERN BLANK
    '\u{fffc}',  // OBJECT REPLACEMENT CHARACTER
    '\u{13441}', // EGYPTIAN HIEROGLYPH FULL BLANK
    '\u{13442}', // EGYPTIAN HIEROGLYPH HALF BLANK
    '\u{1d159}', // MUSICAL SYMBOL NULL NOTEHEAD
];

/// What separates frames in folded stacks, is markup in XML, or begins a comment.
const SYNTAX: [char; 5] = [';', '<', '>', '&', '#'];

const CATEGORIES: CodePointMapDataBorrowed<'static, GeneralCategory> = CodePointMapData::new();
const IGNORABLE: CodePointSetDataBorrowed<'static> =
    CodePointSetData::new::<DefaultIgnorableCodePoint>();
const NORMALIZER: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizer::new_nfkd();

/// Makes text visible, character by character.
#[derive(Debug, Default)]
pub(crate) struct Shower {
    /// Marks since the last letter; `None` where there is no letter that a mark could be on.
    marks: Option<usize>,
}

impl Shower {
    /// Appends `c` as it is shown.
    pub(crate) fn push(&mut self, c: char, shown: &mut String) {
        if matches!(c, ' '..='~') {
            self.marks = (c != ' ').then_some(0);
            shown.push(c);
            return;
        }
        let marks = self.marks.take();
        let category = CATEGORIES.get(c);
        if is_hidden(c, category) {
            spell_out(c, shown);
        } else if GeneralCategoryGroup::Mark.contains(category) {
            match marks {
                Some(marks) if marks < MARKS_MAX => {
                    self.marks = Some(marks + 1);
                    shown.push(c);
                }
                _ => spell_out(c, shown),
            }
        } else {
            self.marks = Some(0);
            shown.push(c);
        }
    }
}

/// All of `text`, visible.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut shower = Shower::default();
    for c in text.chars() {
        shower.push(c, &mut shown);
    }
    Cow::Owned(shown)
}

/// The text as one who compares by compatibility reads it (NFKD): full-width digits are digits.
pub(crate) fn as_compatible(text: &str) -> Cow<'_, str> {
    NORMALIZER.normalize(text)
}

/// It has no glyph of its own, or is not safe to be passed on. `c` is not a printable character of ASCII.
fn is_hidden(c: char, category: GeneralCategory) -> bool {
    matches!(
        category,
        GeneralCategory::Control
            | GeneralCategory::Format
            | GeneralCategory::Surrogate
            | GeneralCategory::PrivateUse
            | GeneralCategory::Unassigned
            | GeneralCategory::LineSeparator
            | GeneralCategory::ParagraphSeparator
            // All but U+0020 itself: they look like it, or like nothing.
            | GeneralCategory::SpaceSeparator
    ) || IGNORABLE.contains(c)
        || BLANK_GLYPHS.contains(&c)
        || as_compatible(c.encode_utf8(&mut [0; 4])).contains(SYNTAX)
}

fn spell_out(c: char, shown: &mut String) {
    match c {
        '\n' => shown.push_str("\\n"),
        '\r' => shown.push_str("\\r"),
        '\t' => shown.push_str("\\t"),
        '\0' => shown.push_str("\\0"),
        // Writing to a `String` cannot fail.
        c if c.is_ascii() => drop(write!(shown, "\\x{:02x}", u32::from(c))),
        c => drop(write!(shown, "\\u{{{:x}}}", u32::from(c))),
    }
}

/// It must not be in anything that is shown: for the tests and the fuzz targets of outputs.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn is_never_shown(c: char) -> bool {
    !matches!(c, ' '..='~') && is_hidden(c, CATEGORIES.get(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ordinary_text_stays_as_it_is() {
        for text in [
            "main",
            "Outer.method.<locals>.<lambda>",
            "café_日本",
            "cafe\u{301}",
            "Vie\u{302}\u{323}t Nam",
            "שָׁלוֹם",
            "क्षत्रिय",
            "operator new(unsigned long)",
            "μ∇²φ…→■",
            "😀",
            "\u{fffd}",
        ] {
            assert_eq!(visible(text), text);
        }
    }

    #[test]
    fn control_characters_are_spelled_out() {
        assert_eq!(
            visible("a\nb\tc\rd\0e\x1b[31m"),
            "a\\nb\\tc\\rd\\0e\\x1b[31m"
        );
        assert_eq!(visible("\u{7f}\u{9b}31m"), "\\x7f\\u{9b}31m");
        assert_eq!(visible("\u{202e}gpj"), "\\u{202e}gpj");
    }

    #[test]
    fn nothing_invisible_is_shown_as_nothing() {
        for (kind, characters) in [
            (
                "joiners, spaces of no width",
                "\u{200b}\u{200c}\u{200d}\u{2060}\u{feff}\u{34f}",
            ),
            (
                "direction",
                "\u{61c}\u{200e}\u{200f}\u{202a}\u{202e}\u{2066}\u{2069}\u{206a}",
            ),
            ("line ends", "\u{85}\u{2028}\u{2029}"),
            (
                "spaces",
                "\u{a0}\u{1680}\u{2003}\u{200a}\u{202f}\u{205f}\u{3000}",
            ),
            (
                "fillers",
                "\u{115f}\u{1160}\u{3164}\u{ffa0}\u{17b4}\u{17b5}\u{180b}\u{180e}",
            ),
            (
                "variation selectors, tags",
                "\u{fe00}\u{fe0f}\u{e0100}\u{e01ef}\u{e0001}\u{e007f}",
            ),
            ("private use", "\u{e000}\u{f8ff}\u{f0000}\u{10fffd}"),
            (
                "not characters",
                "\u{fdd0}\u{fffe}\u{ffff}\u{1fffe}\u{10ffff}",
            ),
            ("unassigned", "\u{378}\u{e0fff}\u{3ffff}"),
            (
                "notation",
                "\u{ad}\u{2061}\u{2064}\u{fff9}\u{fffb}\u{1d173}\u{1bca0}\u{13430}",
            ),
            (
                "blank glyphs",
                "\u{2800}\u{fffc}\u{13441}\u{13442}\u{1d159}",
            ),
        ] {
            for c in characters.chars() {
                let escape = format!("a\\u{{{:x}}}b", u32::from(c));
                assert_eq!(visible(&format!("a{c}b")), escape, "{kind}");
                assert!(is_never_shown(c), "{kind}");
            }
        }
    }

    #[test]
    fn what_normalisation_turns_into_syntax_is_spelled_out() {
        for c in "\u{37e}\u{fe14}\u{fe54}\u{ff1b}\u{226e}\u{226f}\u{ff1c}\u{fe64}\u{ff06}\u{ff03}"
            .chars()
        {
            assert_eq!(
                visible(&c.to_string()),
                format!("\\u{{{:x}}}", u32::from(c))
            );
        }
    }

    #[test]
    fn marks_without_number_do_not_cover_the_lines_around() {
        let shown = visible("a\u{301}\u{302}\u{303}\u{304}\u{305}\u{306}b\u{301}");
        assert_eq!(
            shown,
            "a\u{301}\u{302}\u{303}\u{304}\\u{305}\\u{306}b\u{301}"
        );
    }

    #[test]
    fn a_mark_is_on_a_letter_or_spelled_out() {
        assert_eq!(visible("\u{338}x"), "\\u{338}x");
        assert_eq!(visible("a \u{338}"), "a \\u{338}");
        assert_eq!(visible("\u{200b}\u{301}"), "\\u{200b}\\u{301}");
    }

    #[test]
    fn what_is_visible_already_stays_as_it_is() {
        for c in (0..=0x10_ffff).filter_map(char::from_u32) {
            let once = visible(&format!("a{c}{c}")).into_owned();
            assert_eq!(visible(&once), once);
        }
    }

    /// For every character there is: neither a normalisation form brings back a separator or markup, nor is there one
    /// of a class that is not seen.
    #[test]
    fn no_normalisation_brings_back_what_separates() {
        use icu_normalizer::{ComposingNormalizer, DecomposingNormalizer};
        let composing = [
            ComposingNormalizer::new_nfc(),
            ComposingNormalizer::new_nfkc(),
        ];
        let decomposing = [
            DecomposingNormalizer::new_nfd(),
            DecomposingNormalizer::new_nfkd(),
        ];
        for c in (0..=0x10_ffff)
            .filter_map(char::from_u32)
            .filter(|c| !c.is_ascii())
        {
            let text = format!("a{c}{c}b");
            let shown = visible(&text);
            let normalised = composing
                .iter()
                .map(|form| form.normalize(&shown))
                .chain(decomposing.iter().map(|form| form.normalize(&shown)));
            for normalised in normalised.chain([Cow::Borrowed(shown.as_ref())]) {
                assert!(!normalised.contains(SYNTAX), "{c:?}: {normalised}");
                assert!(
                    !normalised
                        .chars()
                        .any(|c| c.is_control() || c.is_whitespace() && c != ' '),
                    "{c:?}: {normalised}"
                );
            }
        }
    }
}
