//! Opening the directory that a file is to be made in, as those mean it whose word counts.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path},
};

use rustix::{
    fs::{CWD, FileType, Mode, OFlags},
    io::Errno,
};

/// Links followed in all, as many as the kernel does (`MAXSYMLINKS`, include/linux/namei.h).
const LINKS_MAX: u32 = 40;

/// Why a directory was not opened.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Refusal {
    /// What the kernel says.
    Errno(Errno),
    /// The way leads over a link of this user, who is none of those.
    LinkOf(u32),
}

impl From<Errno> for Refusal {
    fn from(errno: Errno) -> Self {
        Self::Errno(errno)
    }
}

/// Opens a directory (`O_PATH`), part by part. Links are followed only if they belong to one of the `trusted` users:
/// whoever may write to a directory on the way, as everybody may to `/tmp`, could else choose where a file of ours is
/// made. (`fs.protected_symlinks` does less, and is not on everywhere.)
pub(super) fn open(path: &Path, trusted: &[u32]) -> Result<OwnedFd, Refusal> {
    let mut directory = step(None, OsStr::new("."))?;
    let mut parts = parts(path);
    let mut links = 0;
    while let Some(part) = parts.pop_front() {
        if matches!(part.as_encoded_bytes(), b"/" | b"..") {
            directory = step(Some(&directory), &part)?;
            continue;
        }
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let found = rustix::fs::openat(&directory, &part, flags, Mode::empty())?;
        let stat = rustix::fs::fstat(&found)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Symlink {
            directory = found;
            continue;
        }
        if !trusted.contains(&stat.st_uid) {
            return Err(Refusal::LinkOf(stat.st_uid));
        }
        links += 1;
        if links > LINKS_MAX {
            return Err(Errno::LOOP.into());
        }
        let target = rustix::fs::readlinkat(&found, "", Vec::new())?;
        let target = OsString::from_vec(target.into_bytes());
        for part in self::parts(Path::new(&target)).into_iter().rev() {
            parts.push_front(part);
        }
    }
    // It may be a file.
    step(Some(&directory), OsStr::new("."))
}

/// A directory that no link can stand in the place of.
fn step(from: Option<&OwnedFd>, to: &OsStr) -> Result<OwnedFd, Refusal> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match from {
        Some(from) => rustix::fs::openat(from, to, flags, Mode::empty()),
        None => rustix::fs::openat(CWD, to, flags, Mode::empty()),
    };
    Ok(opened?)
}

fn parts(path: &Path) -> VecDeque<OsString> {
    let parts = path.components();
    parts
        .filter(|part| !matches!(part, Component::CurDir))
        .map(|part| part.as_os_str().to_owned())
        .collect()
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        os::unix::fs::{MetadataExt as _, lchown, symlink},
    };

    use super::*;

    fn identity(directory: &OwnedFd) -> (u64, u64) {
        let stat = rustix::fs::fstat(directory).expect("open");
        (stat.st_dev, stat.st_ino)
    }

    #[test]
    fn a_path_leads_where_the_kernel_has_it_lead() {
        let place = tempfile::tempdir().expect("a directory");
        let own = place.path().metadata().expect("it is there").uid();
        fs::create_dir_all(place.path().join("a/b")).expect("made");
        symlink("a/../a/./b", place.path().join("relative")).expect("a link");
        symlink(place.path().join("relative"), place.path().join("absolute")).expect("a link");
        symlink("itself", place.path().join("itself")).expect("a link");
        fs::write(place.path().join("file"), "").expect("written");
        let mut paths: Vec<_> = ["", "a", "a/b/..", "a//b/.", "relative", "absolute/.."]
            .map(|path| place.path().join(path))
            .to_vec();
        paths.extend([".", "/", "..", "/proc/self/cwd", "/dev/fd"].map(Into::into));
        for path in paths {
            let opened = open(&path, &[0, own]).unwrap_or_else(|err| panic!("{path:?}: {err:?}"));
            let about = path.metadata().expect("it is there");
            // The link /proc/self is another directory for each who asks, but not for one process.
            assert_eq!(identity(&opened), (about.dev(), about.ino()), "{path:?}");
        }
        for (path, errno) in [
            ("no", Errno::NOENT),
            ("file", Errno::NOTDIR),
            ("file/x", Errno::NOTDIR),
            ("itself", Errno::LOOP),
        ] {
            let refusal = open(&place.path().join(path), &[0, own]).expect_err("no directory");
            assert_eq!(refusal, Refusal::Errno(errno), "{path}");
        }
    }

    #[test]
    fn a_link_of_somebody_else_is_not_followed() {
        let place = tempfile::tempdir().expect("a directory");
        let own = place.path().metadata().expect("it is there").uid();
        let link = place.path().join("link");
        symlink("/etc", &link).expect("a link");
        assert_eq!(
            open(&link, &[own + 1]).expect_err("not ours to trust"),
            Refusal::LinkOf(own)
        );
        if lchown(&link, Some(65533), None).is_ok() {
            assert_eq!(
                open(&link.join("."), &[0, own]).expect_err("another user's"),
                Refusal::LinkOf(65533)
            );
            open(&link, &[65533]).expect("trusted");
        }
    }
}
