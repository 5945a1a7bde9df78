//! A file with code, kept open so that it can be symbolized whatever becomes of its path or process.

use std::{
    fs::File,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

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

    /// Kind of a function in it. A program that embeds CPython may have compiled extensions linked into the same file:
    /// those that Cython, mypyc, C++ and Rust compilers made are known by the names of their functions.
    pub(super) fn frame_kind_of(&self, function: &str) -> FrameKind {
        match self.frame_kind() {
            FrameKind::Interpreter if is_of_extension(function) => FrameKind::Native,
            kind => kind,
        }
    }
}

/// No function of CPython is called so: that is C, which has no `::`, and keeps to its own prefixes.
fn is_of_extension(function: &str) -> bool {
    const PREFIXES: [&str; 4] = ["__pyx_", "__Pyx_", "CPyDef_", "CPyPy_"];
    PREFIXES.iter().any(|prefix| function.starts_with(prefix)) || function.contains("::")
}

impl ModuleKind {
    /// Of a file that is not the interpreter, by the path that it has where it is installed. `c_library` is the directory
    /// of the C library that is mapped beside it.
    pub(super) fn of_file(path: &Path, c_library: Option<&Path>) -> Self {
        let name = file_name(path);
        let is_theirs = is_whole_c_library(&name)
            || is_allocator(&name)
            || (is_part_of_c_library(&name)
                && path.parent().is_some_and(|directory| {
                    c_library == Some(directory) || is_system_directory(directory)
                }));
        if is_theirs {
            Self::CLibrary
        } else {
            Self::Library
        }
    }
}

/// The directory that a C library is mapped from, of all files that are mapped.
pub(super) fn c_library_directory<'p>(
    mut mapped: impl Iterator<Item = &'p Path>,
) -> Option<&'p Path> {
    mapped
        .find(|path| is_whole_c_library(&file_name(path)))
        .and_then(Path::parent)
}

/// The file is the C library itself, or its dynamic loader.
fn is_whole_c_library(name: &str) -> bool {
    // musl is one file; glibc has a linker script of that name.
    matches!(name, "libc.so" | "ld.so" | "libc.so.6")
        || glibc_version_removed(name).is_some_and(|stem| matches!(stem, "libc" | "ld"))
        || name.split_once(".so.").is_some_and(|(stem, version)| {
            digits_and_dots(version) && (is_loader(stem) || stem.starts_with("libc.musl-"))
        })
}

/// The file is called as a part of glibc is: with the very number that glibc's has. A library of somebody else may be
/// called so, too, and any is called `libutil.so.3` or `libm.so`.
fn is_part_of_c_library(name: &str) -> bool {
    const SONAMES: [&str; 12] = [
        "libm.so.6",
        "libmvec.so.1",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "libutil.so.1",
        "libanl.so.1",
        "libresolv.so.2",
        "libnsl.so.1",
        "libthread_db.so.1",
        "libc_malloc_debug.so.0",
        "libBrokenLocale.so.1",
    ];
    let is_name_service = |stem: &str| stem.starts_with("libnss_");
    SONAMES.contains(&name)
        || name.strip_suffix(".so.2").is_some_and(is_name_service)
        || glibc_version_removed(name).is_some_and(|stem| {
            let mut stems = SONAMES.iter().filter_map(|name| name.split_once(".so."));
            is_name_service(stem) || stems.any(|(of_part, _)| of_part == stem)
        })
}

/// `libm-2.31.so`, as older versions of glibc call their files, without its end.
fn glibc_version_removed(name: &str) -> Option<&str> {
    let (stem, version) = name.strip_suffix(".so")?.rsplit_once('-')?;
    (version.starts_with("2.") && digits_and_dots(version)).then_some(stem)
}

/// A replacement of `malloc`.
fn is_allocator(name: &str) -> bool {
    const ALLOCATORS: [&str; 4] = ["libjemalloc", "libtcmalloc", "libmimalloc", "libsnmalloc"];
    ALLOCATORS.iter().any(|allocator| {
        let rest = name.strip_prefix(allocator);
        rest.is_some_and(|rest| rest.starts_with(['.', '-', '_']) && rest.contains(".so"))
    })
}

/// Where distributions install the C library: `/lib64`, `/usr/lib/x86_64-linux-gnu`.
fn is_system_directory(directory: &Path) -> bool {
    let is_root = |directory: &Path| {
        let below = directory
            .strip_prefix("/usr")
            .or_else(|_| directory.strip_prefix("/"));
        below
            .is_ok_and(|below| matches!(below.to_str(), Some("lib" | "lib64" | "lib32" | "libx32")))
    };
    let is_of_machine = |name: &str| name.contains("-linux-");
    is_root(directory)
        || (directory.parent().is_some_and(is_root) && is_of_machine(&file_name(directory)))
}

fn digits_and_dots(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_digit() || c == '.')
}

/// `ld-linux-x86-64.so.2`, `ld-musl-x86_64.so.1`, `ld64.so.2`.
fn is_loader(stem: &str) -> bool {
    stem.starts_with("ld-linux") || stem.starts_with("ld-musl-") || stem == "ld64"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn installed(name: &str) -> ModuleKind {
        ModuleKind::of_file(&Path::new("/usr/lib/x86_64-linux-gnu").join(name), None)
    }

    #[test]
    fn the_c_library_is_known_by_the_names_of_its_files() {
        for name in [
            "libc.so.6",
            "libc-2.31.so",
            "libm.so.6",
            "libpthread-2.17.so",
            "libpthread.so.0",
            "libutil.so.1",
            "libanl.so.1",
            "librt.so.1",
            "libdl.so.2",
            "libresolv.so.2",
            "libthread_db.so.1",
            "libBrokenLocale.so.1",
            "ld-linux-x86-64.so.2",
            "ld-2.31.so",
            "ld-musl-x86_64.so.1",
            "libc.musl-x86_64.so.1",
            "libc.so",
            "libnss_files.so.2",
            "libnss_files-2.31.so",
            "libjemalloc.so.2",
            "libtcmalloc_minimal.so.4",
            "libmimalloc-secure.so.2.1",
        ] {
            assert_eq!(installed(name), ModuleKind::CLibrary, "{name}");
        }
        for name in [
            "libm.so",
            "libm.so.7",
            "libutil.so.2",
            "libutil.so.1.0",
            "libdl.so.1",
            "librt.so.2",
            "libanl.so.3",
            "libnsl.so.2",
            "libutil-1.4.so",
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
            assert_eq!(installed(name), ModuleKind::Library, "{name}");
        }
    }

    #[test]
    fn extensions_that_are_linked_with_the_interpreter_are_known_by_their_functions() {
        for name in [
            "__pyx_pw_3app_1hot",
            "__pyx_f_3app_hot",
            "__Pyx_PyObject_Call",
            "CPyDef_hot",
            "CPyPy_hot",
            "app::Hot::run(int)",
            "pyo3::impl_::trampoline::trampoline",
        ] {
            assert!(is_of_extension(name), "{name}");
        }
        for name in [
            "_PyEval_EvalFrameDefault",
            "Py_RunMain",
            "long_add",
            "list_sort_impl.constprop.0",
            "mpd_qmul",
            "main",
            "",
        ] {
            assert!(!is_of_extension(name), "{name}");
        }
    }

    #[test]
    fn a_library_of_the_program_that_is_called_as_a_part_of_glibc_is_the_programs() {
        let kind = |path: &str, c_library: Option<&str>| {
            ModuleKind::of_file(Path::new(path), c_library.map(Path::new))
        };
        let usual = Some("/usr/lib/x86_64-linux-gnu");
        for path in [
            "/srv/app/libutil.so.1",
            "/srv/app/lib/libm.so.6",
            "/usr/lib/python3/libdl.so.2",
            "/usr/local/lib/librt.so.1",
            "/srv/app/libutil-2.31.so",
        ] {
            assert_eq!(kind(path, usual), ModuleKind::Library, "{path}");
        }
        for (path, c_library) in [
            ("/lib64/libm.so.6", None),
            ("/lib/x86_64-linux-gnu/libm-2.31.so", usual),
            (
                "/nix/store/x-glibc-2.40/lib/libm.so.6",
                Some("/nix/store/x-glibc-2.40/lib"),
            ),
            ("/srv/root/usr/lib/libutil.so.1", Some("/srv/root/usr/lib")),
        ] {
            assert_eq!(kind(path, c_library), ModuleKind::CLibrary, "{path}");
        }
        let mapped = ["/srv/app/x", "/opt/glibc/libc.so.6", "/opt/glibc/libm.so.6"];
        assert_eq!(
            c_library_directory(mapped.iter().map(Path::new)),
            Some(Path::new("/opt/glibc"))
        );
    }
}
