//! The file through which a process is asked and answers.
//!
//! It lies in the process's own `/tmp`, under a name that nobody can know beforehand, made by the process's own user and
//! for that user's eyes only. The process removes it before it does what the file says; whoever asked removes it when
//! there was no answer for too long. Only one of the two succeeds (unlinkat(2)), so both know at any time whether the
//! request is done or never will be, however slow the process is.

use std::{
    collections::hash_map::RandomState,
    fs::{File, Permissions},
    hash::{BuildHasher as _, Hasher as _},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{FileExt as _, PermissionsExt as _},
    },
    time::{Duration, Instant},
};

use rustix::{
    fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, fstat, openat, openat2, statat, unlinkat},
    io::Errno,
};

use super::{
    ActivateError,
    as_user::as_user,
    script::{self, ANSWER_BYTES_MAX, Answer, Request},
};
use crate::process::Target;

/// What the names of our files in others' `/tmp` begin with.
pub(super) const NAME: &str = "pyprof-activate-";

/// How long a process that has taken the file may take to answer.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two looks at the file.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// A file that waits for a process. Removed when this is dropped, unless the process did.
#[derive(Debug)]
pub(super) struct RequestFile {
    directory: Directory,
    name: String,
    file: File,
}

/// Who has the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Holder {
    /// It lies there.
    Nobody,
    /// The process took it, and does what it says.
    Process,
}

/// The `/tmp` of a process.
#[derive(Debug)]
pub(super) struct Directory {
    pub(super) fd: OwnedFd,
    pub(super) ids: (u32, u32),
}

impl Directory {
    /// Opens the `/tmp` of a process as the process sees it, if nobody else can put something in the place of its files
    /// there.
    pub(super) fn of(target: &Target) -> Result<Self, ActivateError> {
        let place = || target.perf_map_directory();
        let failed = |source: io::Error| ActivateError::NoPlace {
            path: place(),
            source,
        };
        let directory = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = format!("/proc/{}/root", target.pid);
        let root =
            openat(CWD, root, directory, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let how = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
        let opened = as_user(target.file_ids, || {
            Ok(openat2(&root, "tmp", directory, Mode::empty(), how)?)
        });
        let fd = opened.map_err(failed)?;
        let owner_of = |fd: &OwnedFd| fstat(fd).map_err(|errno| failed(errno.into()));
        let (root, about) = (owner_of(&root)?, owner_of(&fd)?);
        let others_write = about.st_mode & 0o022 != 0 && about.st_mode & 0o1000 == 0;
        let owners = [0, target.file_ids.0, root.st_uid];
        if others_write || !owners.contains(&about.st_uid) {
            return Err(ActivateError::UnfitPlace { path: place() });
        }
        if !target.is_alive() {
            return Err(ActivateError::Gone { pid: target.pid });
        }
        let ids = target.file_ids;
        Ok(Self { fd, ids })
    }

    /// A name in it that is not taken, and that nobody can foresee.
    pub(super) fn new_name() -> String {
        let random = RandomState::new().build_hasher().finish();
        format!("{NAME}{random:016x}")
    }
}

impl RequestFile {
    /// Writes what the process is to do.
    pub(super) fn write(directory: Directory, request: Request) -> io::Result<Self> {
        let name = Directory::new_name();
        let flags =
            OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let own = Mode::RUSR | Mode::WUSR;
        let file = as_user(directory.ids, || {
            Ok(openat(&directory.fd, &*name, flags, own)?)
        })?;
        let written = Self {
            directory,
            name,
            file: File::from(file),
        };
        let text = request.text(&written.path());
        as_user(written.directory.ids, || {
            // Whatever the umask.
            written
                .file
                .set_permissions(Permissions::from_mode(own.bits()))?;
            written.file.write_all_at(text.as_bytes(), 0)
        })?;
        Ok(written)
    }

    /// Its path, as the process calls it.
    pub(super) fn path(&self) -> String {
        format!("/tmp/{}", self.name)
    }

    /// Who has it now.
    pub(super) fn holder(&self) -> Holder {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        match statat(&self.directory.fd, &*self.name, flags) {
            Err(Errno::NOENT) => Holder::Process,
            _ => Holder::Nobody,
        }
    }

    /// Takes it back. `Nobody`: it is gone, and the process will never do what it says. `Process`: it was too late.
    pub(super) fn take_back(&self) -> io::Result<Holder> {
        let remove = || match unlinkat(&self.directory.fd, &*self.name, AtFlags::empty()) {
            Ok(()) => Ok(Holder::Nobody),
            Err(Errno::NOENT) => Ok(Holder::Process),
            Err(errno) => Err(io::Error::from(errno)),
        };
        as_user(self.directory.ids, remove).or_else(|_| remove())
    }

    /// Waits for the answer of a process that has taken it; `None`: there was none in good time.
    pub(super) fn wait_for_answer(&self, is_alive: impl Fn() -> bool) -> Option<Answer> {
        let begun = Instant::now();
        loop {
            let lives = is_alive();
            if let Some(answer) = self.answer() {
                return Some(answer);
            }
            if !lives || begun.elapsed() > ANSWER_PATIENCE {
                return None;
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    fn answer(&self) -> Option<Answer> {
        let mut bytes = vec![0; ANSWER_BYTES_MAX];
        let read = self.file.read_at(&mut bytes, 0).ok()?;
        script::answer(&bytes[..read])
    }
}

impl Drop for RequestFile {
    fn drop(&mut self) {
        // What cannot be removed is a file for its user's eyes only, and there is nobody to tell.
        let _ = self.take_back();
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::MetadataExt as _};

    use super::*;
    use crate::activate::Switch;

    fn request_file(folder: &tempfile::TempDir) -> RequestFile {
        let fd = openat(
            CWD,
            folder.path(),
            OFlags::PATH | OFlags::DIRECTORY,
            Mode::empty(),
        );
        let ids = fs::metadata(folder.path()).map(|about| (about.uid(), about.gid()));
        let directory = Directory {
            fd: fd.expect("it opens"),
            ids: ids.expect("it is there"),
        };
        let request = Request {
            switch: Switch::On,
            would_crash: false,
        };
        RequestFile::write(directory, request).expect("it is written")
    }

    #[test]
    fn only_its_user_may_read_it_and_it_is_gone_afterwards() {
        let folder = tempfile::tempdir().expect("a folder");
        let written = request_file(&folder);
        let about = fs::metadata(folder.path().join(&written.name)).expect("it lies there");
        assert_eq!(about.mode() & 0o7777, 0o600);
        assert_eq!(written.holder(), Holder::Nobody);
        drop(written);
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn only_one_side_gets_it() {
        let folder = tempfile::tempdir().expect("a folder");
        let back = request_file(&folder);
        assert_eq!(back.take_back().expect("it lies there"), Holder::Nobody);
        assert_eq!(back.take_back().expect("it does not"), Holder::Process);

        let taken = request_file(&folder);
        fs::remove_file(folder.path().join(&taken.name)).expect("it lies there");
        assert_eq!(taken.holder(), Holder::Process);
        assert_eq!(taken.take_back().expect("it does not"), Holder::Process);
        assert_eq!(taken.wait_for_answer(|| false), None);
        taken
            .file
            .write_all_at(b"answer on\0", 0)
            .expect("still open");
        assert_eq!(taken.wait_for_answer(|| true), Some(Answer::Done));
    }
}
