//! The vDSO: code that the kernel maps into every process, and that lies in no file.

use std::{
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::FileExt,
    path::PathBuf,
};

use rustix::fs::MemfdFlags;

use super::{
    file::{FileIdentity, MappedFile},
    mappings::{MappingKind, parse_mappings},
};

/// The vDSO has two to four pages (arch/x86/entry/vdso, Linux 6.12).
const VDSO_BYTES_MAX: u64 = 1 << 20;

/// The bytes of the vDSO, an ELF file that the kernel maps into every process.
///
/// Read from our own memory: all 64-bit processes have the same one (`map_vdso` in arch/x86/entry/vdso/vma.c, Linux
/// 6.12). Fails with `NotFound` when we run without one (`vdso=0`).
pub fn vdso_image() -> io::Result<Vec<u8>> {
    let maps = fs::read("/proc/self/maps")?;
    let mappings = parse_mappings(&maps[..], |mapping| mapping.kind == MappingKind::Vdso)?.mappings;
    let vdso = mappings
        .first()
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "this process has no vDSO"))?;
    let length = vdso.end.0 - vdso.begin.0;
    if length > VDSO_BYTES_MAX {
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            "the vDSO is implausibly large",
        ));
    }
    let mut image = vec![0; length as usize];
    File::open("/proc/self/mem")?.read_exact_at(&mut image, vdso.begin.0)?;
    Ok(image)
}

/// The vDSO as a file (in memory), for what only reads files.
pub fn vdso_file() -> io::Result<MappedFile> {
    let image = vdso_image()?;
    let mut file = File::from(rustix::fs::memfd_create("vdso", MemfdFlags::CLOEXEC)?);
    file.write_all(&image)?;
    let identity = FileIdentity::of(&file)?;
    Ok(MappedFile {
        file,
        identity,
        display_path: PathBuf::from("[vdso]"),
        is_from_memory: false,
    })
}

/// A file that was one: bytes of the vDSO are others, and it may be cut.
#[cfg(test)]
pub(super) fn damaged_vdso(damage: impl IntoIterator<Item = (usize, u8)>, cut: usize) -> File {
    let mut bytes = vdso_image().unwrap_or_default();
    for (at, byte) in damage {
        if let Some(place) = bytes.get_mut(at) {
            *place = byte;
        }
    }
    bytes.truncate(cut);
    let mut file = tempfile::tempfile().expect("temporary file");
    file.write_all(&bytes).expect("write");
    file
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vdso_is_an_elf_file() {
        let vdso = vdso_file().expect("a vDSO");
        let mut magic = [0; 4];
        vdso.file.read_exact_at(&mut magic, 0).expect("read");
        assert_eq!(&magic, b"\x7fELF");
    }
}
