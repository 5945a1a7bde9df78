//! What the report says of compiled functions whose names could not be had, and why.

use std::fmt::Write as _;

use super::text::{counted, grouped, percent};
use crate::profile::Quality;

/// A line for the report; `None`: every name that a file has was found.
pub(super) fn native(quality: &Quality) -> Option<String> {
    let Quality {
        native_named,
        native_unnamed,
        native_late,
        native_too_costly,
        native_unasked,
        native_past_limit,
        symbol_processes_lost,
        ..
    } = *quality;
    let causes = [
        (native_late, "not found in the time after the recording"),
        (
            native_too_costly,
            "in files whose symbols take too much time or memory or are damaged",
        ),
        (
            native_unasked,
            "not looked up: the process for that could not be started (see -v)",
        ),
        (
            native_past_limit,
            "of processes with more functions, or longer names, than are kept",
        ),
    ];
    let known: u64 = causes.iter().map(|(count, _)| count).sum();
    if known == 0 {
        return None;
    }
    let other = (
        native_unnamed.saturating_sub(known),
        "without a symbol in their files",
    );
    let causes: Vec<String> = causes
        .into_iter()
        .chain([other])
        .filter(|(count, _)| *count > 0)
        .map(|(count, cause)| format!("{} {cause}", grouped(count)))
        .collect();
    let all = native_named + native_unnamed;
    let mut line = format!(
        "{} of native frames have no names: {}",
        percent(native_unnamed, all),
        causes.join(", ")
    );
    if symbol_processes_lost > 0 {
        let times = counted(symbol_processes_lost, "time");
        // Writing to a `String` cannot fail.
        let _ = write!(line, "; the symbol process was lost {times}");
    }
    Some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_were_found_are_not_mentioned() {
        let quality = Quality {
            native_named: 90,
            native_unnamed: 10,
            symbol_processes_lost: 1,
            ..Quality::default()
        };
        assert_eq!(native(&quality), None, "the file has no symbols there");
    }

    #[test]
    fn each_reason_for_a_missing_name_has_its_number() {
        let quality = Quality {
            native_named: 5_000,
            native_unnamed: 5_000,
            native_late: 3_000,
            native_too_costly: 1_500,
            symbol_processes_lost: 2,
            ..Quality::default()
        };
        assert_eq!(
            native(&quality).as_deref(),
            Some(
                "50.0 % of native frames have no names: 3,000 not found in the time after the recording, \
                 1,500 in files whose symbols take too much time or memory or are damaged, 500 without a symbol in their files; \
                 the symbol process was lost 2 times"
            )
        );
    }

    #[test]
    fn a_process_that_could_not_be_started_is_a_reason() {
        let quality = Quality {
            native_unnamed: 10,
            native_unasked: 10,
            ..Quality::default()
        };
        let line = native(&quality).unwrap();
        assert!(line.contains("10 not looked up"), "{line}");
        let past_limit = Quality {
            native_unnamed: 10,
            native_past_limit: 10,
            ..Quality::default()
        };
        let line = native(&past_limit).unwrap();
        assert!(
            line.contains("10 of processes with more functions")
                && !line.contains("without a symbol"),
            "{line}"
        );
    }
}
