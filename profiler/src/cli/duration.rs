//! Durations as people type them.

use std::time::Duration;

/// Reads `10`, `2.5s`, `500ms`, `2m` or `1h`; a number alone is in seconds. The error says what is wrong.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let text = text.trim();
    let unit_at = text
        .find(|c: char| c.is_ascii_alphabetic())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let seconds_per_unit = match unit {
        "" | "s" => 1.0,
        "ms" => 0.001,
        "m" | "min" => 60.0,
        "h" => 3600.0,
        other => return Err(format!("unknown unit `{other}`: use ms, s, m or h")),
    };
    let number: f64 = number
        .trim_end()
        .parse()
        .map_err(|_| "not a number of seconds, such as 10, 2.5s, 500ms or 2m".to_owned())?;
    if number <= 0.0 {
        return Err("it must be more than 0".to_owned());
    }
    Duration::try_from_secs_f64(number * seconds_per_unit).map_err(|_| "it is too long".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_and_fractions() {
        for (text, millis) in [
            ("10", 10_000),
            ("10s", 10_000),
            ("2.5", 2_500),
            ("500ms", 500),
            ("2m", 120_000),
            ("2min", 120_000),
            ("1h", 3_600_000),
            (" 3 s ", 3_000),
            (".5", 500),
        ] {
            assert_eq!(
                parse_duration(text),
                Ok(Duration::from_millis(millis)),
                "{text}"
            );
        }
    }

    #[test]
    fn nonsense_is_refused_with_a_reason() {
        for text in [
            "", "0", "-1", "ten", "5x", "nan", "inf", "1e400", "1 0", "s",
        ] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        assert!(parse_duration("5x").unwrap_err().contains("`x`"));
    }
}
