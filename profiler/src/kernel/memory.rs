//! BPF arrays mapped into this process, so that thousands of rows are written by plain stores instead of system calls.

use std::{io, marker::PhantomData, os::fd::AsRawFd as _};

use aya::{Pod, maps::Map};
use memmap2::{MmapOptions, MmapRaw};

use super::error::KernelError;

/// A BPF array with `BPF_F_MMAPABLE` (Linux 5.5+), seen as one long array of `T`: a map's value may be many of them.
/// The map's values must be a multiple of 8 bytes long, to which the kernel rounds them up.
///
/// The kernel program reads the same memory: what must be seen as one step is published through another map.
#[derive(Debug)]
pub(crate) struct MappedArray<T: Pod> {
    memory: MmapRaw,
    length: usize,
    _values: PhantomData<T>,
    _map: Map,
}

impl<T: Pod> MappedArray<T> {
    /// Maps the array `map`, which holds `length` of `T` in all.
    pub(crate) fn new(map: Map, length: usize) -> Result<Self, KernelError> {
        let Map::Array(data) = &map else {
            return Err(KernelError::Object(
                "a map to be written by user space is not an array".into(),
            ));
        };
        let bytes = length * size_of::<T>();
        let memory = MmapOptions::new()
            .len(bytes)
            .map_raw(data.fd().as_fd_raw())
            .map_err(|source| KernelError::System {
                call: "mmap of a BPF array",
                source,
            })?;
        Ok(Self {
            memory,
            length,
            _values: PhantomData,
            _map: map,
        })
    }

    /// Number of values.
    pub(crate) const fn len(&self) -> usize {
        self.length
    }

    /// The value at `index`.
    pub(crate) fn read(&self, index: usize) -> Option<T> {
        if index >= self.length {
            return None;
        }
        // SAFETY: `index` was checked, so the pointer stays inside the mapping.
        let place = unsafe { self.memory.as_ptr().cast::<T>().add(index) };
        // SAFETY: mapped memory of a plain type, which only this process writes.
        Some(unsafe { place.read() })
    }

    /// Writes `values` from `index` on. Refuses what would not fit.
    pub(crate) fn write(&mut self, index: usize, values: &[T]) -> io::Result<()> {
        let fits = index
            .checked_add(values.len())
            .is_some_and(|end| end <= self.length);
        if !fits {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                "a BPF array is full",
            ));
        }
        // SAFETY: `index` was checked, so the pointer stays inside the mapping.
        let place = unsafe { self.memory.as_mut_ptr().cast::<T>().add(index) };
        // SAFETY: source and place do not overlap, both hold `values.len()` values of a plain type; the kernel program
        // may read them meanwhile, and gets old or new words.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), place, values.len()) };
        Ok(())
    }
}

/// `aya`'s descriptor as the raw number that `memmap2` wants.
trait AsRaw {
    fn as_fd_raw(&self) -> i32;
}

impl AsRaw for aya::maps::MapFd {
    fn as_fd_raw(&self) -> i32 {
        use std::os::fd::AsFd as _;
        self.as_fd().as_raw_fd()
    }
}
