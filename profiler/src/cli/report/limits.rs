//! What the report says where a table was full or time was used up: what it cost, and what helps.

use super::super::text::{counted, grouped};
use crate::session::Limit;

/// One sentence for a limit that was reached.
pub(super) fn sentence(limit: &Limit) -> String {
    let files = |count: u64| counted(count, "file");
    let fewer = "record fewer processes at a time";
    match *limit {
        Limit::Processes { left_out, room } => format!(
            "{} {} not recorded: {} at a time is the limit; {fewer}",
            processes(left_out),
            were(left_out),
            grouped(u64::from(room))
        ),
        Limit::Lists {
            processes: count,
            room,
        } => format!(
            "stacks of {} were finished from copies of 16 KiB, which ends deeper ones early: the {} lists of mappings in \
             the kernel were all in use; {fewer}",
            processes(count),
            grouped(u64::from(room))
        ),
        Limit::Layouts(count) => format!(
            "no Python frames were read of {} for some time: the kernel had no room for more interpreters; {fewer}",
            processes(count)
        ),
        Limit::Threads { samples, room } => format!(
            "the threads of {} could not be remembered, which made these samples slower: there is room for {} at a time",
            counted(samples, "sample"),
            counted(u64::from(room), "thread")
        ),
        Limit::Rows(count) => format!(
            "stacks break off in {}: the kernel's table of unwind rows is full; {fewer}",
            files(count)
        ),
        Limit::Pages(count) => format!(
            "stacks break off in {}: the kernel's table of pages with unwind rows is full; {fewer}",
            files(count)
        ),
        Limit::Rules(count) => format!(
            "stacks break off in {}: the kernel's table of unwind rules is full; {fewer}",
            files(count)
        ),
        Limit::FilesCut(count) => format!(
            "stacks break off in {}: more unwind information than is used of one file",
            files(count)
        ),
        Limit::FilesLate(count) => format!(
            "stacks break off in {}: reading the unwind information took too long; a longer recording allows for more",
            files(count)
        ),
        Limit::Mappings(count) => format!(
            "a process has {} with code more than the kernel side can search: stacks through them were finished from \
             copies of 16 KiB",
            counted(count, "mapping")
        ),
        Limit::NotExamined(count) => format!(
            "{} {} not examined before the recording ended, and shown without Python frames: record for longer",
            processes(count),
            were(count)
        ),
        Limit::SamplesBefore(count) => format!(
            "{} {} taken before the process was examined: without Python frames",
            counted(count, "sample"),
            were(count)
        ),
    }
}

/// `1 process`, `2 processes`.
fn processes(count: u64) -> String {
    let plural = if count == 1 { "" } else { "es" };
    format!("{} process{plural}", grouped(count))
}

/// `was` or `were`.
const fn were(count: u64) -> &'static str {
    if count == 1 { "was" } else { "were" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_limit_says_how_much_it_cost() {
        let limits = [
            (
                Limit::Processes {
                    left_out: 1,
                    room: 4096,
                },
                "1 process was not recorded: 4,096 at a time",
            ),
            (
                Limit::Lists {
                    processes: 2000,
                    room: 576,
                },
                "stacks of 2,000 processes were finished from copies of 16 KiB",
            ),
            (Limit::Layouts(3), "of 3 processes"),
            (
                Limit::Threads {
                    samples: 4,
                    room: 16_384,
                },
                "room for 16,384 threads",
            ),
            (
                Limit::Rows(5),
                "in 5 files: the kernel's table of unwind rows is full",
            ),
            (Limit::Pages(5), "table of pages"),
            (Limit::Rules(5), "table of unwind rules"),
            (Limit::FilesCut(1), "in 1 file: more"),
            (Limit::FilesLate(6), "in 6 files: reading"),
            (Limit::Mappings(7), "7 mappings with code more"),
            (Limit::NotExamined(8), "8 processes were not examined"),
            (Limit::SamplesBefore(9), "9 samples were taken before"),
        ];
        for (limit, words) in limits {
            let sentence = sentence(&limit);
            assert!(sentence.contains(words), "{sentence}");
        }
    }
}
