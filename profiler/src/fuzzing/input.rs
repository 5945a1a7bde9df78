//! Takes made-up bytes apart. There is always an answer, so that no input is wasted on being refused.

/// Bytes that are used up from the front.
pub(super) struct Input<'d> {
    rest: &'d [u8],
}

impl<'d> Input<'d> {
    pub(super) const fn new(data: &'d [u8]) -> Self {
        Self { rest: data }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// The next byte; 0 when there are none left.
    pub(super) fn byte(&mut self) -> u8 {
        self.bytes(1).first().copied().unwrap_or(0)
    }

    /// The next two bytes as a number, the low one first.
    pub(super) fn number(&mut self) -> usize {
        usize::from(u16::from_le_bytes([self.byte(), self.byte()]))
    }

    /// So many bytes, or as many as there are.
    pub(super) fn bytes(&mut self, most: usize) -> &'d [u8] {
        let (taken, rest) = self.rest.split_at(most.min(self.rest.len()));
        self.rest = rest;
        taken
    }

    /// A piece behind its length, which is two bytes long.
    pub(super) fn piece(&mut self) -> &'d [u8] {
        let length = self.number();
        self.bytes(length)
    }
}

/// A file in memory that holds these bytes.
pub(super) fn file_of(bytes: &[u8]) -> std::fs::File {
    use std::os::unix::fs::FileExt as _;
    let file = empty_file();
    file.write_all_at(bytes, 0).expect("memory takes it");
    file
}

/// A file in memory. Each has an inode number of its own.
pub(super) fn empty_file() -> std::fs::File {
    let flags = rustix::fs::MemfdFlags::CLOEXEC;
    rustix::fs::memfd_create("fuzz", flags)
        .expect("the kernel has memfd_create")
        .into()
}
