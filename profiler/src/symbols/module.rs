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
            ModuleKind::Library | ModuleKind::Vdso => FrameKind::Native,
        }
    }
}
