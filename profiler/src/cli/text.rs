//! Text for people: numbers with separators, and foreign names made harmless for a terminal.

use std::time::Duration;

/// `text` with everything that a terminal would act on, or that would hide or reorder other text, spelled out.
pub(crate) fn visible(text: &str) -> String {
    crate::model::visible(text).into_owned()
}

/// Columns a terminal gives a character: two from the first East Asian block on, a bound rather than a table.
fn columns_of(c: char) -> usize {
    if c < '\u{1100}' { 1 } else { 2 }
}

/// Columns a terminal gives `text`, at most.
pub(crate) fn columns(text: &str) -> usize {
    text.chars().map(columns_of).sum()
}

/// `text` cut to at most `columns`, with an ellipsis where something is missing.
pub(crate) fn clip(text: &str, columns: usize) -> String {
    if self::columns(text) <= columns {
        return text.to_owned();
    }
    let mut cut = String::new();
    let mut used = 1; // the ellipsis
    for c in text.chars() {
        used += columns_of(c);
        if used > columns {
            break;
        }
        cut.push(c);
    }
    if columns > 0 {
        cut.push('…');
    }
    cut
}

/// `2970` as `2,970`.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut shown = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            shown.push(',');
        }
        shown.push(digit);
    }
    shown
}

/// `1 sample`, `2 samples`.
pub(crate) fn counted(number: u64, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{} {what}{plural}", grouped(number))
}

/// A share with one decimal. Only a whole is called 100 %, and only nothing 0 %.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0 %".to_owned();
    }
    if part >= whole {
        return "100 %".to_owned();
    }
    let share = 100.0 * part as f64 / whole as f64;
    format!("{:.1} %", share.clamp(0.1, 99.9))
}

/// A time as seconds, or minutes from two on: `1.5 s`, `12.0 s`, `3 min 20 s`.
pub(crate) fn seconds(time: Duration) -> String {
    let whole = time.as_secs();
    if whole >= 120 {
        format!("{} min {} s", whole / 60, whole % 60)
    } else {
        format!("{:.1} s", time.as_secs_f64())
    }
}

/// CPU time: two decimals, as little of it matters.
pub(crate) fn cpu_seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clipping_counts_columns_and_never_exceeds_them() {
        assert_eq!(clip("abcdef", 6), "abcdef");
        assert_eq!(clip("abcdef", 4), "abc…");
        assert_eq!(clip("日本語", 5), "日本…");
        assert_eq!(clip("abc", 0), "");
        assert_eq!(clip("abc", 1), "…");
    }

    #[test]
    fn numbers_read_well() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(2_970), "2,970");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(counted(1, "sample"), "1 sample");
        assert_eq!(counted(2, "sample"), "2 samples");
    }

    #[test]
    fn only_a_whole_is_a_hundred_percent() {
        assert_eq!(percent(9_999, 10_000), "99.9 %");
        assert_eq!(percent(10_000, 10_000), "100 %");
        assert_eq!(percent(1, 1_000_000), "0.1 %");
        assert_eq!(percent(0, 10), "0 %");
        assert_eq!(percent(1, 0), "0 %");
    }

    #[test]
    fn long_times_are_given_in_minutes() {
        assert_eq!(seconds(Duration::from_millis(1_500)), "1.5 s");
        assert_eq!(seconds(Duration::from_secs(200)), "3 min 20 s");
    }
}
