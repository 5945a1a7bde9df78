//! Trampolines for CPython 3.9 to 3.11, which have none of their own, where a running process can load them.

use std::{
    fs::{self, File, Permissions},
    io::{self, Write as _},
    os::{fd::AsRawFd as _, unix::fs::PermissionsExt as _},
    path::PathBuf,
};

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::{as_user::as_user, letter::Directory};
use crate::process::launch::package_files;

/// The Python package `pyprof_trampoline`, in a folder of the process's own `/tmp` that only its user can enter. Removed
/// when this is dropped, unless it is to stay.
#[derive(Debug)]
pub(super) struct Package {
    directory: Directory,
    name: String,
    stays: bool,
}

impl Package {
    /// Writes it there.
    pub(super) fn write(directory: Directory) -> io::Result<Self> {
        let package = Self {
            directory,
            name: Directory::new_name(),
            stays: false,
        };
        as_user(package.directory.ids, || package.fill())?;
        Ok(package)
    }

    fn fill(&self) -> io::Result<()> {
        let private = Mode::RUSR | Mode::WUSR | Mode::XUSR;
        mkdirat(&self.directory.fd, &*self.name, private)?;
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let folder = openat(&self.directory.fd, &*self.name, flags, Mode::empty())?;
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        for (name, content) in package_files() {
            let mut file = File::from(openat(&folder, name, flags, Mode::RUSR | Mode::WUSR)?);
            // Whatever the umask.
            file.set_permissions(Permissions::from_mode(0o600))?;
            file.write_all(content)?;
        }
        Ok(())
    }

    /// Its path, as the process calls it.
    pub(super) fn path(&self) -> String {
        format!("/tmp/{}", self.name)
    }

    /// The process has loaded it: it is part of that program now, and profilers look into its files.
    pub(super) fn stay(mut self) {
        self.stays = true;
    }
}

impl Drop for Package {
    fn drop(&mut self) {
        if !self.stays {
            let here = format!("/proc/self/fd/{}", self.directory.fd.as_raw_fd());
            let folder = PathBuf::from(here).join(&self.name);
            // With no right that the process does not have: it may have put something else there.
            let _ = as_user(self.directory.ids, || fs::remove_dir_all(folder));
        }
    }
}
