//! Text that others wrote, made visible.
//!
//! The names of functions, files, threads and commands may hold any character. Here each character that could mislead a
//! reader is spelled out, as `\n` or `\u{202e}`: one that a terminal obeys, that nobody sees, that reorders or covers
//! the text beside it, or that Unicode normalisation turns into a separator or into markup. Which characters these are is
//! decided by their Unicode properties, so that a new version of Unicode needs no change here. Everything that shows such
//! text uses this module: results, report, status line, errors and log.

use std::{borrow::Cow, fmt::Write as _, sync::OnceLock};

use icu_normalizer::{DecomposingNormalizer, DecomposingNormalizerBorrowed};
use icu_properties::{
    CodePointMapData, CodePointMapDataBorrowed, CodePointSetData, CodePointSetDataBorrowed,
    props::{
        DefaultIgnorableCodePoint, GeneralCategory, GeneralCategoryGroup, IndicSyllabicCategory,
        Script,
    },
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

/// Combining marks without a glyph: they join what is beside them, or choose how it is drawn. No property names them all.
const BLANK_MARKS: [std::ops::RangeInclusive<char>; 5] = [
    '\u{2d7f}'..='\u{2d7f}',   // TIFINAGH CONSONANT JOINER
    '\u{16fe4}'..='\u{16fe4}', // KHITAN SMALL SCRIPT FILLER
    '\u{1bc9d}'..='\u{1bc9d}', // DUPLOYAN THICK LETTER SELECTOR
    '\u{1da9b}'..='\u{1da9f}', // SIGNWRITING FILL MODIFIERS
    '\u{1daa1}'..='\u{1daaf}', // SIGNWRITING ROTATION MODIFIERS
];

/// What separates frames in folded stacks, is markup in XML, or begins a comment.
const SYNTAX: [char; 5] = [';', '<', '>', '&', '#'];

const CATEGORIES: CodePointMapDataBorrowed<'static, GeneralCategory> = CodePointMapData::new();
const SYLLABIC: CodePointMapDataBorrowed<'static, IndicSyllabicCategory> = CodePointMapData::new();
const SCRIPTS: CodePointMapDataBorrowed<'static, Script> = CodePointMapData::new();
const IGNORABLE: CodePointSetDataBorrowed<'static> =
    CodePointSetData::new::<DefaultIgnorableCodePoint>();
const NORMALIZER: DecomposingNormalizerBorrowed<'static> = DecomposingNormalizer::new_nfkd();

/// How a character is shown. Looking this up in the tables of Unicode takes longer than everything else that is done to a
/// character, so it is done once for each page of characters that occurs, however many names there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Class {
    /// As it is.
    Visible,
    /// As it is, on a letter.
    Mark,
    /// As it is, between two letters of its script: it joins them, and has no glyph of its own.
    Stacker,
    /// Spelled out.
    Hidden,
}

const PAGE_BITS: u32 = 8;
const PAGES: usize = (char::MAX as usize >> PAGE_BITS) + 1;

type Page = [Class; 1 << PAGE_BITS];

/// The classes of all characters that have occurred, by page.
static CLASSES: [OnceLock<Box<Page>>; PAGES] = [const { OnceLock::new() }; PAGES];

impl Class {
    fn of(c: char) -> Self {
        let code = u32::from(c);
        let page = &CLASSES[(code >> PAGE_BITS) as usize];
        let page = page.get_or_init(|| {
            let first = code >> PAGE_BITS << PAGE_BITS;
            let class = |offset| char::from_u32(first + offset as u32).map(Self::look_up);
            Box::new(std::array::from_fn(|offset| {
                class(offset).unwrap_or(Self::Hidden)
            }))
        });
        page[code as usize % page.len()]
    }

    fn look_up(c: char) -> Self {
        if matches!(c, ' '..='~') {
            return Self::Visible;
        }
        let category = CATEGORIES.get(c);
        if is_hidden(c, category) {
            Self::Hidden
        } else if SYLLABIC.get(c) == IndicSyllabicCategory::InvisibleStacker {
            Self::Stacker
        } else if GeneralCategoryGroup::Mark.contains(category) {
            Self::Mark
        } else {
            Self::Visible
        }
    }
}

/// Makes text visible, character by character.
#[derive(Debug, Default)]
pub(crate) struct Shower {
    /// Marks since the last letter; `None` where there is no letter that a mark could be on.
    marks: Option<usize>,
}

impl Shower {
    /// Appends `c` as it is shown before `next`.
    pub(crate) fn push(&mut self, c: char, next: Option<char>, shown: &mut String) {
        if matches!(c, ' '..='~') {
            self.marks = (c != ' ').then_some(0);
            shown.push(c);
            return;
        }
        let marks = self.marks.take();
        let class = Class::of(c);
        let fits = match class {
            Class::Visible => {
                self.marks = Some(0);
                shown.push(c);
                return;
            }
            Class::Mark => true,
            Class::Stacker => next.is_some_and(|next| joins(c, next)),
            Class::Hidden => false,
        };
        match marks {
            Some(marks) if fits && marks < MARKS_MAX => {
                self.marks = Some(marks + 1);
                shown.push(c);
            }
            _ => spell_out(c, shown),
        }
    }
}

/// A mark that nobody sees without the letter behind it: text must not be cut off after it.
pub(crate) fn needs_next(c: char) -> bool {
    !c.is_ascii() && Class::of(c) == Class::Stacker
}

/// `next` is a letter that the stacker puts below the one before.
fn joins(stacker: char, next: char) -> bool {
    GeneralCategoryGroup::Letter.contains(CATEGORIES.get(next))
        && SCRIPTS.get(stacker) == SCRIPTS.get(next)
}

/// All of `text`, visible.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    if text.bytes().all(|byte| matches!(byte, b' '..=b'~')) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len());
    let mut shower = Shower::default();
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        shower.push(c, chars.peek().copied(), &mut shown);
    }
    Cow::Owned(shown)
}

/// The word is one of digits to one who compares by compatibility, up to its first dot or end. Reads no more of it than
/// it takes to say so.
pub(crate) fn begins_as_number(word: &str) -> bool {
    let mut before_dot = NORMALIZER
        .normalize_iter(word.chars())
        .take_while(|c| *c != '.')
        .peekable();
    before_dot.peek().is_some() && before_dot.all(|c| c.is_ascii_digit())
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
        || BLANK_MARKS.iter().any(|marks| marks.contains(&c))
        || SYLLABIC.get(c) == IndicSyllabicCategory::NumberJoiner
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
    Class::of(c) == Class::Hidden
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
            (
                "blank marks",
                "\u{16fe4}\u{1107f}\u{2d7f}\u{1bc9d}\u{1da9b}\u{1da9f}\u{1daa1}\u{1daaf}",
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
    fn a_mark_that_joins_two_letters_is_spelled_out_where_there_is_none_behind_it() {
        for (letter, stacker) in [
            ('\u{1780}', '\u{17d2}'),   // Khmer
            ('\u{1000}', '\u{1039}'),   // Myanmar
            ('\u{1a20}', '\u{1a60}'),   // Tai Tham
            ('\u{10a10}', '\u{10a3f}'), // Kharoshthi
            ('\u{11107}', '\u{11133}'), // Chakma
            ('\u{aae0}', '\u{aaf6}'),   // Meetei Mayek
            ('\u{1b8a}', '\u{1bab}'),   // Sundanese
        ] {
            let joined = format!("{letter}{stacker}{letter}");
            assert_eq!(visible(&joined), joined, "as people write it");
            let escape = format!("\\u{{{:x}}}", u32::from(stacker));
            for before in ['a', letter] {
                for after in ["", "a", ".", " ", "\u{301}", "\u{4e2d}"] {
                    let shown = visible(&format!("{before}{stacker}{after}")).into_owned();
                    assert!(shown.starts_with(&format!("{before}{escape}")), "{shown}");
                }
            }
        }
    }

    #[test]
    fn a_word_is_a_number_to_all_who_might_read_it_as_one() {
        for word in ["1", "12.5", "１２", "²", "7.x"] {
            assert!(begins_as_number(word), "{word}");
        }
        for word in ["", ".", ".5", "x1", "1x", "一"] {
            assert!(!begins_as_number(word), "{word}");
        }
    }

    /// The tables of Unicode are read once for each character, not once for each time that it occurs.
    #[test]
    fn a_character_is_looked_up_once() {
        let page = &CLASSES[0x1_f600 >> PAGE_BITS];
        visible("\u{1f600}");
        let first = page.get().map(|page| std::ptr::from_ref(&**page));
        visible(&"\u{1f600}\u{1f601}".repeat(100));
        assert!(first.is_some());
        assert_eq!(page.get().map(|page| std::ptr::from_ref(&**page)), first);
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
