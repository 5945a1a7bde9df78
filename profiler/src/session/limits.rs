//! What a recording had no room or no time for.

use crate::{
    kernel::{Counters, MapSizes},
    unwind::BuilderStats,
};

/// A table that was full, or time that was used up: how much was left out because of it. The report has a sentence for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Number of processes that did not become targets: there was no room for more at a time.
    Processes {
        /// How many were left out.
        left_out: u64,
        /// How many there is room for.
        room: u32,
    },
    /// Number of processes without a list of mappings in the kernel: their stacks were finished in user space.
    Lists {
        /// How many processes.
        processes: u64,
        /// How many lists there are.
        room: u32,
    },
    /// Number of processes for whose interpreter's layout the kernel had no room: their Python frames were not read.
    Layouts(u64),
    /// Number of samples that found no room to remember their thread's state: it is looked for in each sample.
    Threads {
        /// How many samples.
        samples: u64,
        /// How many threads there is room for.
        room: u32,
    },
    /// Number of files without unwind rows, because the table of rows is full.
    Rows(u64),
    /// The same, because the table of pages is full.
    Pages(u64),
    /// The same, because the table of rules is full.
    Rules(u64),
    /// Number of files with more unwind rows than are kept of one file.
    FilesCut(u64),
    /// Number of files without unwind rows, because making them took more time than their process may use.
    FilesLate(u64),
    /// Number of mappings of a process beyond those that the kernel side can search.
    Mappings(u64),
    /// Number of processes that had not been examined when the recording ended.
    NotExamined(u64),
    /// Number of samples that were taken of processes before these were examined.
    SamplesBefore(u64),
}

/// The limits that were reached in the kernel and while unwind tables were made.
pub(super) fn reached(counters: &Counters, built: &BuilderStats, sizes: &MapSizes) -> Vec<Limit> {
    let all = [
        Limit::Processes {
            left_out: counters.processes_full + built.processes_refused,
            room: sizes.processes,
        },
        Limit::Lists {
            processes: built.slots_refused,
            room: sizes.slots,
        },
        Limit::Layouts(built.layouts_refused),
        Limit::Threads {
            samples: counters.threads_full,
            room: sizes.threads,
        },
        Limit::Rows(built.full.rows),
        Limit::Pages(built.full.pages),
        Limit::Rules(built.full.rules),
        Limit::FilesCut(built.files_cut),
        Limit::FilesLate(built.files_late),
        Limit::Mappings(built.mappings_refused),
    ];
    all.into_iter().filter(|it| it.count() > 0).collect()
}

impl Limit {
    /// How much was left out.
    pub const fn count(&self) -> u64 {
        match *self {
            Self::Processes {
                left_out: count, ..
            }
            | Self::Lists {
                processes: count, ..
            }
            | Self::Threads { samples: count, .. }
            | Self::Layouts(count)
            | Self::Rows(count)
            | Self::Pages(count)
            | Self::Rules(count)
            | Self::FilesCut(count)
            | Self::FilesLate(count)
            | Self::Mappings(count)
            | Self::NotExamined(count)
            | Self::SamplesBefore(count) => count,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{kernel::Following, unwind::FullTables};

    #[test]
    fn every_full_table_is_reported_and_no_other() {
        let sizes = MapSizes::for_targets(1, 0, Following::default());
        let (counters, built) = (Counters::default(), BuilderStats::default());
        assert!(reached(&counters, &built, &sizes).is_empty());
        let counters = Counters {
            processes_full: 1,
            threads_full: 2,
            ..counters
        };
        let built = BuilderStats {
            processes_refused: 3,
            slots_refused: 4,
            layouts_refused: 5,
            full: FullTables {
                rows: 6,
                pages: 7,
                rules: 8,
            },
            files_cut: 9,
            files_late: 10,
            mappings_refused: 11,
            ..built
        };
        let found = reached(&counters, &built, &sizes);
        let counts: Vec<u64> = found.iter().map(Limit::count).collect();
        assert_eq!(counts, [4, 4, 5, 2, 6, 7, 8, 9, 10, 11]);
    }
}
