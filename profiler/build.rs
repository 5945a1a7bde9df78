//! Puts what the program carries into `OUT_DIR`: the BPF object, which the kernel loads, and the shared object of
//! `profiler-trampoline`, which is loaded into old Pythons. One file is all that a user has to install.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};

#[path = "build_support/bpf_object.rs"]
mod bpf_object;
#[path = "build_support/bpf_sources.rs"]
mod bpf_sources;
#[path = "build_support/bpf_toolchain.rs"]
mod bpf_toolchain;
#[path = "build_support/trampoline_object.rs"]
mod trampoline_object;

fn main() {
    if let Err(err) = run() {
        // cargo shows these lines and fails; an exit code would add all other output.
        for line in format!("{err:#}").lines() {
            println!("cargo::error={line}");
        }
    }
}

fn run() -> Result<()> {
    let folders = Folders::from_cargo()?;
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=build_support");
    bpf_object::embed(&folders)?;
    trampoline_object::embed(&folders)
}

/// Where things are.
struct Folders {
    /// This package.
    package: PathBuf,
    /// The folder with all packages; a published package lies in one that has no others of ours.
    workspace: PathBuf,
    /// Where the results go.
    out: PathBuf,
}

impl Folders {
    fn from_cargo() -> Result<Self> {
        let package = PathBuf::from(variable("CARGO_MANIFEST_DIR")?);
        let workspace = package
            .parent()
            .context("the package lies in the root folder")?
            .to_owned();
        let out = PathBuf::from(variable("OUT_DIR")?);
        Ok(Self {
            package,
            workspace,
            out,
        })
    }
}

/// The file that a variable names, relative to the package; cargo is told that the result depends on both.
fn named_file(name: &str, package: &Path) -> Option<PathBuf> {
    println!("cargo::rerun-if-env-changed={name}");
    let path = env::var_os(name).filter(|path| !path.is_empty())?;
    let path = package.join(path);
    println!("cargo::rerun-if-changed={}", path.display());
    Some(path)
}

/// Tells cargo of inputs. One that does not exist would make cargo run the script at every build, so it is left out.
fn announce_inputs(inputs: impl IntoIterator<Item = PathBuf>) {
    for input in inputs.into_iter().filter(|input| input.exists()) {
        println!("cargo::rerun-if-changed={}", input.display());
    }
}

/// Copies a file, naming both sides when that fails.
fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::copy(from, to)
        .map(drop)
        .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))
}

/// A variable that cargo sets for build scripts.
fn variable(name: &str) -> Result<String> {
    env::var(name).with_context(|| format!("cargo did not set {name}"))
}
