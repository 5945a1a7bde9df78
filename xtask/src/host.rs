//! Facts about this machine and this work tree.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};

/// The root folder of the workspace.
pub(crate) fn workspace() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// The folder that cargo builds into.
pub(crate) fn target_dir() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        Some(folder) if !folder.is_empty() => workspace().join(folder),
        _ => workspace().join("target"),
    }
}

/// The one file with this extension in a folder.
pub(crate) fn only_file(folder: &Path, extension: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut files = entries.flatten().map(|entry| entry.path()).filter(|path| {
        path.extension()
            .is_some_and(|found| found.to_str() == Some(extension))
    });
    match (files.next(), files.next()) {
        (Some(file), None) => Ok(file),
        (None, _) => bail!("there is no .{extension} file in {}", folder.display()),
        (Some(_), Some(_)) => bail!(
            "there are several .{extension} files in {}",
            folder.display()
        ),
    }
}

/// Does this process run as root?
pub(crate) fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|own| own.uid() == 0)
}

/// The first file of this name on `PATH`.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}

/// Does this machine install packages with apt?
pub(crate) fn has_apt() -> bool {
    which("apt-get").is_some() && which("apt-cache").is_some()
}
