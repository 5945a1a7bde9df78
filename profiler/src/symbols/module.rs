//! A file with code, kept open so that it can be symbolized whatever becomes of its path or process.

use std::{fs::File, io, path::PathBuf, sync::Arc};

use crate::{
    model::FrameKind,
    process::{FileIdentity, MappedFile, file_name, vdso_file},
};

/// What the code in a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ModuleKind {
    /// CPython itself.
    Interpreter,
    /// The C library with its parts, the dynamic loader, or a replacement of `malloc`.
    CLibrary,
    /// Any other program or library.
    Library,
    /// The kernel's code in user space.
    Vdso,
}

/// An ELF file that is mapped in some process. The same for all processes that map the same file.
#[derive(Clone, Debug)]
pub struct Module {
    /// Which file it is.
    pub identity: FileIdentity,
    /// Name to show: the last part of the path, `[vdso]`. Raw: may hold any character.
    pub name: Box<str>,
    /// Path as mapped; another file may be there now.
    pub path: PathBuf,
    /// What its code is for.
    pub kind: ModuleKind,
    /// The file.
    pub file: Arc<File>,
}

impl Module {
    /// From a file opened by [`crate::process::open_mapped`].
    pub fn new(mapped: MappedFile, kind: ModuleKind) -> Self {
        let MappedFile {
            file,
            identity,
            display_path,
            is_from_memory: _,
        } = mapped;
        Self {
            identity,
            name: file_name(&display_path).into(),
            path: display_path,
            kind,
            file: Arc::new(file),
        }
    }

    /// The vDSO, from our own memory.
    pub fn vdso() -> io::Result<Self> {
        Ok(Self::new(vdso_file()?, ModuleKind::Vdso))
    }

    /// Kind of the frames in it.
    pub fn frame_kind(&self) -> FrameKind {
        match self.kind {
            ModuleKind::Interpreter => FrameKind::Interpreter,
            ModuleKind::CLibrary | ModuleKind::Vdso => FrameKind::CLibrary,
            ModuleKind::Library => FrameKind::Native,
        }
    }
}

impl ModuleKind {
    /// Of a file that is not the interpreter, by the name that it has where it is installed.
    pub(super) fn of_file(name: &str) -> Self {
        if is_c_library(name) {
            Self::CLibrary
        } else {
            Self::Library
        }
    }
}

/// The file is a part of glibc or musl, or stands in for one. `libm.so.6` is, and `libm-2.31.so`, as older versions are
/// called; `libm.so` is not: any library may be called so.
fn is_c_library(name: &str) -> bool {
    const PARTS: [&str; 14] = [
        "libc",
        "libm",
        "libmvec",
        "libpthread",
        "libdl",
        "librt",
        "libutil",
        "libanl",
        "libresolv",
        "libnsl",
        "libthread_db",
        "libc_malloc_debug",
        "libBrokenLocale",
        "ld",
    ];
    const ALLOCATORS: [&str; 4] = ["libjemalloc", "libtcmalloc", "libmimalloc", "libsnmalloc"];
    let digits_and_dots = |text: &str| {
        text.starts_with(|c: char| c.is_ascii_digit())
            && text.chars().all(|c| c.is_ascii_digit() || c == '.')
    };
    // `libm.so.6`
    if let Some((stem, version)) = name.split_once(".so.")
        && digits_and_dots(version)
        && (PARTS.contains(&stem)
            || stem.starts_with("libnss_")
            || is_loader(stem)
            || stem.starts_with("libc.musl-"))
    {
        return true;
    }
    // `libm-2.31.so`
    if let Some((stem, version)) = name
        .strip_suffix(".so")
        .and_then(|stem| stem.rsplit_once('-'))
        && digits_and_dots(version)
        && (PARTS.contains(&stem) || stem.starts_with("libnss_"))
    {
        return true;
    }
    // musl is one file; glibc has a linker script of that name.
    let is_whole = matches!(name, "libc.so" | "ld.so");
    let is_allocator = ALLOCATORS.iter().any(|allocator| {
        let rest = name.strip_prefix(allocator);
        rest.is_some_and(|rest| rest.starts_with(['.', '-', '_']) && rest.contains(".so"))
    });
    is_whole || is_allocator
}

/// `ld-linux-x86-64.so.2`, `ld-musl-x86_64.so.1`, `ld64.so.2`.
fn is_loader(stem: &str) -> bool {
    stem.starts_with("ld-linux") || stem.starts_with("ld-musl-") || stem == "ld64"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_c_library_is_known_by_the_names_of_its_files() {
        for name in [
            "libc.so.6",
            "libc-2.31.so",
            "libm.so.6",
            "libpthread-2.17.so",
            "libpthread.so.0",
            "ld-linux-x86-64.so.2",
            "ld-2.31.so",
            "ld-musl-x86_64.so.1",
            "libc.musl-x86_64.so.1",
            "libc.so",
            "libnss_files.so.2",
            "libjemalloc.so.2",
            "libtcmalloc_minimal.so.4",
            "libmimalloc-secure.so.2.1",
        ] {
            assert_eq!(ModuleKind::of_file(name), ModuleKind::CLibrary, "{name}");
        }
        for name in [
            "libm.so",
            "libcrypto.so.3",
            "libcurl.so.4",
            "libc10.so",
            "libstdc++.so.6",
            "libgcc_s.so.1",
            "libmine-2.so",
            "librt_tools.so.1",
            "math.cpython-312-x86_64-linux-gnu.so",
            "libc.cpython-312-x86_64-linux-gnu.so",
            "ld",
            "c.so.6",
            "",
        ] {
            assert_eq!(ModuleKind::of_file(name), ModuleKind::Library, "{name}");
        }
    }
}
