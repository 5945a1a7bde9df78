//! Processes that call themselves by the same pid, each in a pid namespace of its own.

use std::{fs, path::PathBuf};

use super::{first_thread::proc_folder, select::all_pids, status::Status};
use crate::model::Pid;

/// The other live processes whose pid in their innermost namespace is `ns_pid`, as far as they are seen from here.
///
/// Reads one file of each process there is, some twenty microseconds each: not to be asked often.
pub fn namesakes(ns_pid: u32, besides: Pid) -> Vec<Pid> {
    let pids = all_pids().unwrap_or_default().into_iter();
    pids.filter(|&pid| pid != besides)
        .filter(|pid| {
            fs::read(format!("/proc/{pid}/status"))
                .ok()
                .and_then(|text| Status::parse(&text))
                .is_some_and(|status| status.ns_pid == ns_pid)
        })
        .collect()
}

/// The process has this file open: device and inode. At most so many descriptors are looked at.
pub fn has_open(pid: Pid, (device, inode): (u64, u64)) -> bool {
    use std::os::unix::fs::MetadataExt as _;

    const DESCRIPTORS_MAX: usize = 4096;
    let Ok(entries) = fs::read_dir(format!("{}/fd", proc_folder(pid))) else {
        return false;
    };
    let descriptors = entries.flatten().take(DESCRIPTORS_MAX);
    descriptors
        .map(|entry| entry.path())
        .filter_map(|path: PathBuf| fs::metadata(path).ok())
        .any(|file| (file.dev(), file.ino()) == (device, inode))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use super::*;

    #[test]
    fn nobody_else_has_our_pid_in_our_own_namespace() {
        let me = Pid(std::process::id());
        let ours = fs::read_link("/proc/self/ns/pid").unwrap();
        for pid in namesakes(me.0, me) {
            let theirs = fs::read_link(format!("/proc/{pid}/ns/pid"));
            assert!(theirs.is_ok_and(|theirs| theirs != ours), "{pid}");
        }
        assert!(namesakes(me.0, Pid(0)).contains(&me));
    }

    #[test]
    fn open_files_are_known_by_device_and_inode() {
        let file = tempfile::tempfile().unwrap();
        let metadata = file.metadata().unwrap();
        let identity = (metadata.dev(), metadata.ino());
        let me = Pid(std::process::id());
        assert!(has_open(me, identity));
        drop(file);
        assert!(!has_open(me, identity));
    }
}
