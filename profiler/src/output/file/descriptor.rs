//! Descriptors that the program was started with: standard output and error, and what a shell opens for `3>file`.

use std::{fs::File, io, os::fd::AsFd};

use rustix::{
    fs::{FileType, OFlags},
    process::{PidfdFlags, PidfdGetfdFlags},
};

use super::super::OutputError;

/// A second descriptor for what descriptor `number` is open for, with the same place in the file, and the same flags: what
/// opening `/dev/fd/NUMBER` gives has neither, and sockets cannot be opened at all.
pub fn descriptor(number: u32) -> io::Result<File> {
    let number = i32::try_from(number).map_err(|_| rustix::io::Errno::BADF)?;
    let ourselves = rustix::process::pidfd_open(rustix::process::getpid(), PidfdFlags::empty())?;
    let flags = PidfdGetfdFlags::empty();
    Ok(rustix::process::pidfd_getfd(ourselves, number, flags)?.into())
}

/// It can be written to, and was not closed when the program started.
///
/// In the place of one of the first three that is closed, Rust's runtime opens `/dev/null`, for reading and writing
/// (`sanitize_standard_fds`, library/std/src/sys/pal/unix/mod.rs): writing to it would seem to succeed.
pub(super) fn check(open: &impl AsFd, number: u32) -> Result<(), OutputError> {
    let failed = |errno: rustix::io::Errno| OutputError::Open {
        path: format!("/dev/fd/{number}").into(),
        source: errno.into(),
    };
    let mode = rustix::fs::fcntl_getfl(open).map_err(failed)? & OFlags::ACCMODE;
    if mode == OFlags::RDONLY {
        return Err(failed(rustix::io::Errno::BADF));
    }
    let stat = rustix::fs::fstat(open).map_err(failed)?;
    let is_null = FileType::from_raw_mode(stat.st_mode) == FileType::CharacterDevice
        && stat.st_rdev == rustix::fs::makedev(1, 3);
    if number < 3 && is_null && mode == OFlags::RDWR {
        return Err(OutputError::Closed { number });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::{
        fs,
        io::{Read as _, Seek as _, Write as _},
        os::fd::AsRawFd as _,
    };

    use super::*;

    #[test]
    fn a_descriptor_is_written_to_where_it_stands() {
        let mut open = tempfile::tempfile().expect("a file");
        open.write_all(b"before ").expect("written");
        let number = u32::try_from(open.as_raw_fd()).expect("a number");
        let mut second = descriptor(number).expect("it is open");
        check(&second, number).expect("it can be written to");
        second.write_all(b"after").expect("written");
        let mut text = String::new();
        open.rewind().expect("a file");
        open.read_to_string(&mut text).expect("text");
        assert_eq!(text, "before after");
    }

    #[test]
    fn what_cannot_be_written_to_is_refused() {
        let refused = descriptor(1_000_000).expect_err("not open");
        assert_eq!(refused.raw_os_error(), Some(9));
        let open = File::open("/dev/zero").expect("open");
        assert!(matches!(check(&open, 3), Err(OutputError::Open { .. })));
    }

    #[test]
    fn standard_output_that_was_closed_is_not_dev_null() {
        let null = |options: &mut fs::OpenOptions| options.open("/dev/null").expect("open");
        let both = null(fs::OpenOptions::new().read(true).write(true));
        assert!(matches!(
            check(&both, 1),
            Err(OutputError::Closed { number: 1 })
        ));
        check(&null(fs::OpenOptions::new().write(true)), 1).expect("as a shell opens it");
        check(&both, 3).expect("not one of the first three");
    }
}
