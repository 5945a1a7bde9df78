//! Finds what compiles BPF: a Rust toolchain with the standard library's sources, and
//! `bpf-linker`.
//!
//! Shared by the build script and `cargo xtask`. It only looks at files: no command
//! is run, so it can neither hang nor start a download.

use std::{
    env, fmt,
    path::{Path, PathBuf},
};

/// The variable that names the rustup toolchain to compile BPF with.
pub(crate) const TOOLCHAIN_VARIABLE: &str = "PYPROF_BPF_TOOLCHAIN";

/// Toolchains that are tried when the variable is not set, the preferred one first. A
/// plain nightly comes last: it may be newer than the LLVM inside `bpf-linker`, which
/// then cannot read what it compiles.
pub(crate) const DEFAULT_TOOLCHAINS: [&str; 3] = [PINNED_TOOLCHAIN, LINKED_TOOLCHAIN, "nightly"];

/// The nightly that `cargo xtask setup` installs: its LLVM is 22, as the linker's.
pub(crate) const PINNED_TOOLCHAIN: &str = "nightly-2026-05-20";

/// The name under which `cargo xtask setup` links a distribution's compiler.
pub(crate) const LINKED_TOOLCHAIN: &str = "debian-web";

/// Where a toolchain keeps the sources of `core`, below its root.
const CORE_SOURCES: &str = "lib/rustlib/src/rust/library/core/src/lib.rs";

/// All that is needed to compile BPF.
#[derive(Debug)]
pub(crate) struct BpfToolchain {
    /// The rustup toolchain, as `rustup run` takes it.
    pub(crate) name: String,
    /// The `bpf-linker` executable.
    pub(crate) linker: PathBuf,
}

/// Why BPF cannot be compiled here.
#[derive(Debug)]
pub(crate) enum Missing {
    /// No rustup toolchain of this name (or of the default ones) has `rust-src`.
    Toolchain(Option<String>),
    /// `bpf-linker` is neither on `PATH` nor in cargo's `bin` folder.
    Linker,
}

impl BpfToolchain {
    /// Looks for a toolchain, then for the linker.
    pub(crate) fn find() -> Result<Self, Missing> {
        let name = find_toolchain()?;
        let linker = find_linker().ok_or(Missing::Linker)?;
        Ok(Self { name, linker })
    }

    /// Must `RUSTC_BOOTSTRAP` unlock the unstable flags that BPF needs?
    pub(crate) fn needs_bootstrap(&self) -> bool {
        !self.name.starts_with("nightly")
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Toolchain(Some(name)) => {
                write!(
                    f,
                    "no rustup toolchain `{name}` with the component rust-src ({TOOLCHAIN_VARIABLE} names it)"
                )
            }
            Self::Toolchain(None) => {
                let tried = DEFAULT_TOOLCHAINS.join("`, `");
                write!(
                    f,
                    "no rustup toolchain with the component rust-src (`{tried}`)"
                )
            }
            Self::Linker => write!(f, "no bpf-linker on PATH or in cargo's bin folder"),
        }
    }
}

/// The name of the toolchain to compile BPF with.
pub(crate) fn find_toolchain() -> Result<String, Missing> {
    let toolchains = home("RUSTUP_HOME", ".rustup").map(|home| home.join("toolchains"));
    let usable = |name: &str| {
        let host = format!("{name}-{}-unknown-linux-gnu", env::consts::ARCH);
        toolchains.as_deref().is_some_and(|dir| {
            has_core_sources(&dir.join(name)) || has_core_sources(&dir.join(host))
        })
    };
    match env::var(TOOLCHAIN_VARIABLE) {
        Ok(name) if !name.is_empty() => {
            if usable(&name) {
                Ok(name)
            } else {
                Err(Missing::Toolchain(Some(name)))
            }
        }
        _ => DEFAULT_TOOLCHAINS
            .into_iter()
            .find(|name| usable(name))
            .map(str::to_owned)
            .ok_or(Missing::Toolchain(None)),
    }
}

/// Are the standard library's sources installed under the toolchain at `root`?
pub(crate) fn has_core_sources(root: &Path) -> bool {
    root.join(CORE_SOURCES).is_file()
}

/// `bpf-linker` on `PATH`, else in cargo's `bin` folder.
pub(crate) fn find_linker() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let cargo_bin = home("CARGO_HOME", ".cargo").map(|home| home.join("bin"));
    env::split_paths(&path)
        .chain(cargo_bin)
        .map(|folder| folder.join("bpf-linker"))
        .find(|file| file.is_file())
}

/// The folder that `variable` names, else `fallback` in the user's home.
fn home(variable: &str, fallback: &str) -> Option<PathBuf> {
    match env::var_os(variable) {
        Some(folder) if !folder.is_empty() => Some(folder.into()),
        _ => Some(PathBuf::from(env::var_os("HOME")?).join(fallback)),
    }
}
