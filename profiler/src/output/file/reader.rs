//! Waiting for whoever reads what is written: without end where nobody does, so whoever asked for it is told.

use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    fs::FileType,
    io::Errno,
};

/// Time between two looks at whether there is still nobody.
pub(super) const LOOK: Duration = Duration::from_millis(100);

/// Bytes that a pipe takes at once where it takes any: `PIPE_BUF` (pipe(7)).
const PIECE: usize = 4096;

/// What writing waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// Nobody has opened the FIFO for reading yet.
    NoReader,
    /// The reader has taken nothing for so long.
    Full(Duration),
}

/// Called again and again while writing waits. An error ends the writing.
pub type WhileWaiting<'w> = dyn FnMut(Waiting) -> io::Result<()> + 'w;

/// Writes to a file, or to a pipe, terminal or socket with a look at whether somebody reads there.
pub(super) struct Watched<'w> {
    file: File,
    is_file: bool,
    waiting: &'w mut WhileWaiting<'w>,
}

impl<'w> Watched<'w> {
    pub(super) fn new(file: File, waiting: &'w mut WhileWaiting<'w>) -> Self {
        let kind = rustix::fs::fstat(&file).map(|stat| FileType::from_raw_mode(stat.st_mode));
        Self {
            is_file: matches!(kind, Ok(FileType::RegularFile)),
            file,
            waiting,
        }
    }
}

impl Write for Watched<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.is_file {
            return self.file.write(bytes);
        }
        let since = Instant::now();
        while !takes_bytes(&self.file)? {
            (self.waiting)(Waiting::Full(since.elapsed()))?;
        }
        self.file.write(&bytes[..bytes.len().min(PIECE)])
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writing does not wait, or fails. Gives that up to [`LOOK`] to become true.
fn takes_bytes(file: &impl AsFd) -> io::Result<bool> {
    let look = Timespec::try_from(LOOK).map_err(io::Error::other)?;
    match poll(&mut [PollFd::new(file, PollFlags::OUT)], Some(&look)) {
        Ok(ready) => Ok(ready > 0),
        Err(Errno::INTR) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    #[test]
    fn a_full_pipe_is_reported_until_it_is_read_or_given_up() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let bytes = vec![7; 1 << 20];
        let mut waits = 0;
        let mut give_up = |waiting| {
            assert!(matches!(waiting, Waiting::Full(_)));
            waits += 1;
            match waits {
                2 => Err(io::Error::other("enough")),
                _ => Ok(()),
            }
        };
        let mut to = Watched::new(std::os::fd::OwnedFd::from(writer).into(), &mut give_up);
        let error = to.write_all(&bytes).expect_err("nobody reads");
        assert_eq!(error.to_string(), "enough");
        drop(to);
        assert_eq!(waits, 2);
        let mut read = Vec::new();
        reader.read_to_end(&mut read).expect("a pipe");
        assert!(!read.is_empty() && bytes.starts_with(&read));
    }

    #[test]
    fn a_pipe_that_is_read_gets_everything() {
        let (mut reader, writer) = io::pipe().expect("a pipe");
        let reading = std::thread::spawn(move || {
            let mut read = Vec::new();
            reader.read_to_end(&mut read).map(|_| read)
        });
        let bytes: Vec<u8> = (0..1_000_000_u32).map(|n| n as u8).collect();
        let mut ignore = |_| Ok(());
        let mut to = Watched::new(std::os::fd::OwnedFd::from(writer).into(), &mut ignore);
        to.write_all(&bytes).expect("somebody reads");
        drop(to);
        assert_eq!(reading.join().expect("it ran").expect("read"), bytes);
    }

    #[test]
    fn a_file_is_never_waited_for() {
        let file = tempfile::tempfile().expect("a file");
        let mut fail = |_| Err(io::Error::other("waited"));
        let mut to = Watched::new(file, &mut fail);
        to.write_all(&vec![0; 100_000]).expect("written");
    }
}
