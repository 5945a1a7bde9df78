//! A file that does not have its name yet.

use std::{
    ffi::{OsStr, OsString},
    fs::File,
    os::fd::{AsRawFd as _, OwnedFd},
    path::Path,
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, RenameFlags},
    io::Errno,
};

/// Names tried before giving up.
const ATTEMPTS: u32 = 99;

/// A file that does not have its name yet. Unless it gets one, nothing of it remains.
#[derive(Debug)]
pub(super) struct Unfinished<'d> {
    directory: &'d OwnedFd,
    /// Its name for the time being, where it cannot do without.
    part: Option<String>,
    pub(super) file: File,
}

impl<'d> Unfinished<'d> {
    /// Makes one. It has no name at all where the file system can do that: then nobody can put another file in its
    /// place, and nothing is left of it should this process be killed. `mode` says who may read it, less the umask.
    pub(super) fn create(directory: &'d OwnedFd, mode: u32) -> Result<Self, Errno> {
        let flags = OFlags::WRONLY | OFlags::TMPFILE | OFlags::CLOEXEC;
        match rustix::fs::openat(directory, ".", flags, Mode::from_raw_mode(mode)) {
            Ok(file) => Ok(Self {
                directory,
                part: None,
                file: file.into(),
            }),
            // The file system cannot (NFS, FAT), or the kernel's driver for it has never heard of it.
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS) => {
                Self::create_named(directory, mode)
            }
            Err(errno) => Err(errno),
        }
    }

    /// The same with a name that begins with a dot.
    pub(super) fn create_named(directory: &'d OwnedFd, mode: u32) -> Result<Self, Errno> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mut attempt = 0;
        loop {
            let name = format!(".pyprof-bpf-{}-{attempt}.part", std::process::id());
            match rustix::fs::openat(directory, &name, flags, Mode::from_raw_mode(mode)) {
                Ok(file) => {
                    return Ok(Self {
                        directory,
                        part: Some(name),
                        file: file.into(),
                    });
                }
                Err(Errno::EXIST) if attempt < ATTEMPTS => attempt += 1,
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Gives the file its name, or the first free one like it.
    pub(super) fn publish(&mut self, wanted: &OsStr) -> Result<OsString, Errno> {
        let mut number = 0;
        loop {
            let name = numbered(wanted, number);
            match self.publish_as(&name) {
                Ok(()) => break self.confirm(&name).map(|()| name),
                Err(Errno::EXIST) if number < ATTEMPTS => number += 1,
                Err(errno) => return Err(errno),
            }
        }
    }

    fn publish_as(&mut self, name: &OsStr) -> Result<(), Errno> {
        let Some(part) = self.part.as_deref() else {
            // By way of its descriptor; unlike `AT_EMPTY_PATH`, this takes no capability (`man 2 open`, O_TMPFILE).
            let file = format!("/proc/self/fd/{}", self.file.as_raw_fd());
            let follow = AtFlags::SYMLINK_FOLLOW;
            return rustix::fs::linkat(CWD, file, self.directory, name, follow);
        };
        rename_to_new(self.directory, part, name)?;
        self.part = None;
        Ok(())
    }

    /// Whoever owns the directory may have put another file in the place of the named one: that is no success.
    fn confirm(&self, name: &OsStr) -> Result<(), Errno> {
        let ours = rustix::fs::fstat(&self.file)?;
        let there = rustix::fs::statat(self.directory, name, AtFlags::SYMLINK_NOFOLLOW)?;
        if (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino) {
            Ok(())
        } else {
            Err(Errno::STALE)
        }
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if let Some(name) = &self.part {
            // Nobody is left to tell, and the next one takes another name.
            let _ = rustix::fs::unlinkat(self.directory, name, AtFlags::empty());
        }
    }
}

/// Renames, unless there is a file of that name. A file system that cannot do both at once (NFS) has links, which never
/// replace anything.
fn rename_to_new(directory: &OwnedFd, from: &str, to: &OsStr) -> Result<(), Errno> {
    match rustix::fs::renameat_with(directory, from, directory, to, RenameFlags::NOREPLACE) {
        Err(Errno::INVAL | Errno::NOSYS) => {
            rustix::fs::linkat(directory, from, directory, to, AtFlags::empty())?;
            rustix::fs::unlinkat(directory, from, AtFlags::empty())
        }
        result => result,
    }
}

/// `profile.svg`, `profile-1.svg`, `profile-2.svg`, …
pub(super) fn numbered(name: &OsStr, number: u32) -> OsString {
    if number == 0 {
        return name.to_owned();
    }
    let path = Path::new(name);
    let mut numbered = path.file_stem().unwrap_or_default().to_owned();
    numbered.push(format!("-{number}"));
    if let Some(extension) = path.extension() {
        numbered.push(".");
        numbered.push(extension);
    }
    numbered
}
