//! What the report says of mapped files that could not be used as they are.

use super::text::{clip, counted, visible};
use crate::process::FileLimit;

/// A sentence for files with the same limit.
pub(super) fn file_remark(limit: FileLimit, names: &[String]) -> String {
    let more = if names.len() > 1 { ", …" } else { "" };
    let first = names.first().map(|name| clip(&visible(name), 40));
    let files = format!(
        "{} ({}{more})",
        counted(names.len() as u64, "file"),
        first.unwrap_or_default()
    );
    match limit {
        FileLimit::OutOfReach => format!(
            "stacks break off in {files}: deleted since, or out of reach; reading on takes CAP_CHECKPOINT_RESTORE"
        ),
        FileLimit::Unreadable => format!(
            "stacks break off in {files}: cannot be opened, nor read from the memory of the process"
        ),
        FileLimit::LoadedOutOfReach => format!(
            "functions that are not exported have no names in {files}: deleted since, or out of reach; naming them takes \
             CAP_CHECKPOINT_RESTORE"
        ),
        FileLimit::Loaded => format!(
            "functions that are not exported have no names in {files}: cannot be opened, so they were read from the memory \
             of the process"
        ),
        FileLimit::Changed => format!(
            "native stacks are incomplete in {files}: the process runs other code in their place, which they do \
             not describe"
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_capability_that_helps_is_asked_for() {
        let names = ["libpython3.12.so.1.0", "\x1b[31m.so"].map(str::to_owned);
        for (limit, helps) in [
            (FileLimit::OutOfReach, true),
            (FileLimit::LoadedOutOfReach, true),
            (FileLimit::Unreadable, false),
            (FileLimit::Loaded, false),
            (FileLimit::Changed, false),
        ] {
            let text = file_remark(limit, &names);
            assert!(
                text.contains("in 2 files (libpython3.12.so.1.0, …)"),
                "{text}"
            );
            assert_eq!(text.contains("CAP_CHECKPOINT_RESTORE"), helps, "{text}");
            let breaks_off = matches!(limit, FileLimit::OutOfReach | FileLimit::Unreadable);
            assert_eq!(text.contains("break off"), breaks_off, "{text}");
        }
        assert!(
            file_remark(FileLimit::Changed, &names[..1]).contains("1 file (libpython3.12.so.1.0)")
        );
    }
}
