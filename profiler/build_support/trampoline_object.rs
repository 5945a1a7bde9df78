//! The shared object of `profiler-trampoline`, which the launcher embeds: trampolines for CPython 3.9 to 3.11.
//!
//! It is the file that `PYPROF_TRAMPOLINE_OBJECT` names, or is compiled here, by a cargo of its own: as a dependency
//! the crate would be a part of this program, and what is wanted is a file beside it.

use std::{env, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{Folders, announce_inputs, copy, named_file, variable};

/// Names a finished object to embed.
const OBJECT_VARIABLE: &str = "PYPROF_TRAMPOLINE_OBJECT";
/// What cargo makes of the crate.
const LIBRARY: &str = "libpyprof_trampoline.so";
/// The profile in the workspace's `Cargo.toml`.
const PROFILE: &str = "trampoline";

/// What cargo tells this script about the compiler of *this* build, and must not reach the other one. clippy, for one,
/// is such a wrapper: it would only look at the library, and compile nothing.
const OF_THIS_BUILD: [&str; 3] = ["RUSTC_WRAPPER", "RUSTC_WORKSPACE_WRAPPER", "RUSTFLAGS"];
/// The compiler's options for the target, separated by [`SEPARATOR`].
const FLAGS_VARIABLE: &str = "CARGO_ENCODED_RUSTFLAGS";
const SEPARATOR: &str = "\x1f";
/// Options that put a measuring device into the code. It has no business in other people's processes.
const INSTRUMENTS: [&str; 4] = [
    "instrument-coverage",
    "profile-generate",
    "sanitizer",
    "instrument-mcount",
];

/// Puts the object into place and tells cargo what it depends on.
pub(crate) fn embed(folders: &Folders) -> Result<()> {
    let object = folders.out.join(LIBRARY);
    match named_file(OBJECT_VARIABLE, &folders.package) {
        Some(path) => copy(&path, &object),
        None => compile(folders).with_context(|| {
            format!("cannot build the trampolines for CPython 3.9 to 3.11 ({OBJECT_VARIABLE} can name a finished {LIBRARY})")
        }),
    }
}

fn compile(folders: &Folders) -> Result<()> {
    let sources = folders.workspace.join("profiler-trampoline");
    if !sources.is_dir() {
        bail!("{} is not there", sources.display());
    }
    announce_inputs(["Cargo.toml", "src"].map(|name| sources.join(name)));
    announce_inputs(["Cargo.toml", "Cargo.lock"].map(|name| folders.workspace.join(name)));

    // A target of its own: this build's cargo holds the lock of the other one. A target that is named, even if it is
    // this machine, lets the options and the linker for it apply, as they do for the program itself.
    let target = variable("TARGET")?;
    let results = folders.out.join("trampoline");
    let mut cargo = Command::new(variable("CARGO")?);
    cargo
        .args(["rustc", "--package", "profiler-trampoline", "--lib"])
        .args(["--crate-type", "cdylib", "--profile", PROFILE, "--locked"])
        .args(["--target", &target])
        .arg("--target-dir")
        .arg(&results)
        .current_dir(&folders.workspace)
        .env("CARGO_BUILD_BUILD_DIR", &results)
        .env(FLAGS_VARIABLE, without_instruments());
    for name in OF_THIS_BUILD {
        cargo.env_remove(name);
    }
    let output = cargo.output().context("cannot start cargo")?;
    if !output.status.success() {
        bail!("{}", String::from_utf8_lossy(&output.stderr).trim_end());
    }
    let library = results.join(target).join(PROFILE).join(LIBRARY);
    copy(&library, &folders.out.join(LIBRARY))
}

/// The options of this build for its target, as far as they are for any program. They come from `RUSTFLAGS` or cargo's
/// configuration, and decide about the linker, say.
fn without_instruments() -> String {
    let all = env::var(FLAGS_VARIABLE).unwrap_or_default();
    let mut kept: Vec<&str> = Vec::new();
    for flag in all.split(SEPARATOR).filter(|flag| !flag.is_empty()) {
        let bare = flag.trim_start_matches("-C").trim_start_matches("-Z");
        if !INSTRUMENTS
            .iter()
            .any(|instrument| bare.starts_with(instrument))
        {
            kept.push(flag);
        } else if bare == flag {
            // Its `-C` or `-Z` stands before it.
            kept.pop();
        }
    }
    kept.join(SEPARATOR)
}
