//! What is said of a file that does not show everything.

use super::text::{grouped, percent};
use crate::output::{Format, Shortened};

/// The report, with what it must say of the files below its first line, and no longer than before.
pub(crate) fn with_lines(mut report: Vec<String>, files: &[(Format, Shortened)]) -> Vec<String> {
    let longest = report.len().max(super::report::LINES_MAX);
    let lines = files.iter().flat_map(|(format, it)| lines(*format, it));
    let lines: Vec<String> = lines.collect();
    let at = report.len().min(1);
    report.splice(at..at, lines);
    report.truncate(longest);
    report
}

fn lines(format: Format, shortened: &Shortened) -> Vec<String> {
    let mut lines = Vec::new();
    if shortened.merged > 0 {
        let share = percent((shortened.merged_share * 1e6) as u64, 1_000_000);
        let (frames, merged) = (grouped(shortened.frames), grouped(shortened.merged));
        lines.push(match format {
            Format::Svg => format!(
                "the picture shows {frames} frames; {merged} smaller ones are merged into `…`, in which {share} of the \
                 samples end: folded stacks (-f folded) have room for more"
            ),
            Format::Folded => format!(
                "the folded stacks have {frames} frames; {merged} rarer ones are merged into `[merged]`, in which {share} \
                 of the samples end: the file would be too large"
            ),
        });
    }
    if shortened.names > 0 {
        lines.push(format!(
            "{} of functions are cut in the folded stacks: lines would be too long",
            match shortened.names {
                1 => "1 name".to_owned(),
                names => format!("{} names", grouped(names)),
            }
        ));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_a_file_that_has_everything() {
        let report = vec!["wrote x.svg".to_owned(), "1 sample".to_owned()];
        let files = [(Format::Svg, Shortened::default())];
        assert_eq!(with_lines(report.clone(), &files), report);
    }

    #[test]
    fn what_was_merged_or_cut_is_said_below_the_names_of_the_files() {
        let report = vec!["wrote x.svg".to_owned(), "1 sample".to_owned()];
        let merged = Shortened {
            frames: 10_000,
            merged: 548_000,
            merged_share: 0.25,
            names: 0,
        };
        let cut = Shortened {
            names: 97,
            ..Shortened::default()
        };
        let lines = with_lines(report, &[(Format::Svg, merged), (Format::Folded, cut)]);
        assert_eq!(
            lines,
            [
                "wrote x.svg",
                "the picture shows 10,000 frames; 548,000 smaller ones are merged into `…`, in which 25.0 % of the \
                 samples end: folded stacks (-f folded) have room for more",
                "97 names of functions are cut in the folded stacks: lines would be too long",
                "1 sample"
            ]
        );
    }

    #[test]
    fn the_report_does_not_get_longer() {
        let report: Vec<String> = (0..8).map(|n| n.to_string()).collect();
        let cut = Shortened {
            names: 1,
            ..Shortened::default()
        };
        let lines = with_lines(report, &[(Format::Folded, cut)]);
        assert_eq!((lines.len(), lines[2].as_str()), (8, "1"));
    }
}
