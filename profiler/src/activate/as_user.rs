//! Uses files as the user of a process would.
//!
//! Root that makes a file where another user may lay links, or in a file system of a user namespace that root's id means
//! nothing in, does what it should not, or fails. The process's own user can do no more there than the process.

use std::{io, thread};

use rustix::{
    process::{Gid, Uid, getegid, geteuid},
    thread::{CapabilitySet, set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

use crate::privilege;

/// Does `work` with the rights that a user and group have to files, without any other group and without capabilities.
///
/// On a thread of its own, since credentials belong to threads, unless they are our own anyway. Needs CAP_SETUID and
/// CAP_SETGID for others; fails with `PermissionDenied` without, and `InvalidInput` for ids that this user namespace has
/// no name for.
pub(super) fn as_user<T: Send>(
    (uid, gid): (u32, u32),
    work: impl FnOnce() -> io::Result<T> + Send,
) -> io::Result<T> {
    if (uid, gid) == (geteuid().as_raw(), getegid().as_raw()) {
        return work();
    }
    // All ones means "leave it" to the kernel.
    if uid == u32::MAX || gid == u32::MAX {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    let change = move || -> rustix::io::Result<()> {
        set_thread_groups(&[])?;
        set_thread_res_gid(None, Gid::from_raw(gid), None)?;
        set_thread_res_uid(None, Uid::from_raw(uid), None)?;
        privilege::use_only(CapabilitySet::empty())
    };
    thread::scope(|scope| {
        let changed = scope.spawn(move || {
            change()?;
            work()
        });
        changed
            .join()
            .unwrap_or_else(|_| Err(io::Error::other("the thread panicked")))
    })
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt as _};

    use super::*;

    #[test]
    fn what_is_made_belongs_to_that_user_and_other_threads_stay_who_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let own = (geteuid().as_raw(), getegid().as_raw());
        let ids = if own.0 == 0 { (65_533, 65_532) } else { own };
        std::os::unix::fs::chown(folder.path(), Some(ids.0), None).expect("its owner may");
        let path = folder.path().join("file");
        as_user(ids, || fs::write(&path, "")).expect("the folder is that user's");
        let about = fs::metadata(&path).expect("it is there");
        assert_eq!((about.uid(), about.gid()), ids);
        assert_eq!((geteuid().as_raw(), getegid().as_raw()), own);
        if own.0 == 0 {
            let secret = as_user(ids, || fs::read("/etc/shadow"));
            assert!(secret.is_err(), "no right of root's is left");
        }
    }
}
