//! The tools that make the wheel, in a virtual environment of their own.

use std::{env, ffi::OsString, fs, path::PathBuf};

use anyhow::{Context as _, Result, bail};

use crate::{command::Patience, host, pythons};

/// maturin makes the wheel. zig is a linker that knows every glibc, and a C compiler to go with it; cargo-zigbuild puts
/// it before cargo.
const PACKAGES: [&str; 3] = [
    "maturin==1.16.0",
    "cargo-zigbuild==0.24.1",
    "ziglang==0.17.1",
];

/// The virtual environment.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// One of its programs.
    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.folder.join("bin").join(name)
    }

    /// `PATH` with its programs first.
    pub(super) fn path(&self) -> Result<OsString> {
        let rest = env::var_os("PATH").unwrap_or_default();
        let folders = [self.folder.join("bin")];
        let folders = folders.into_iter().chain(env::split_paths(&rest));
        env::join_paths(folders).context("PATH cannot be added to")
    }
}

/// The tools, installed first where they are missing.
pub(crate) fn ensure() -> Result<Tools> {
    if !cfg!(all(target_arch = "x86_64", target_os = "linux")) {
        bail!("the wheel is for Linux on x86-64, and is built there only");
    }
    let tools = Tools {
        folder: host::target_dir().join("package-tools"),
    };
    // Written last: an installation that was interrupted is made anew.
    let done = tools.folder.join("installed");
    let wanted = PACKAGES.join("\n");
    if fs::read_to_string(&done).is_ok_and(|installed| installed == wanted) {
        return Ok(tools);
    }
    let python = pythons::any()
        .context("maturin, which makes the wheel, needs a CPython 3.9 or later, and there is none on PATH or under pyenv.\nInstall one: `apt-get install python3 python3-venv`, or `pyenv install 3.13`.")?;
    eprintln!("Installing {} from PyPI", PACKAGES.join(", "));
    pythons::make_environment(&python, &tools.folder).with_context(|| {
        format!(
            "CPython {} makes no virtual environment; on Debian its package python3-venv is needed for that",
            python.version_text()
        )
    })?;
    pythons::pip_install(&tools.program("python"), &PACKAGES, Patience::seconds(600))
        .context("the tools for the wheel cannot be installed; pip needs PyPI for them")?;
    fs::write(&done, wanted).with_context(|| format!("cannot write {}", done.display()))?;
    Ok(tools)
}
