//! `cargo xtask bpf`: compiles the BPF object that the repository carries.
//!
//! The flags are those that aya-build passes in the build script, plus three that a
//! file for everyone needs: no path of the machine that built it in its line tables
//! (the kernel reads those too, in `.BTF.ext`), and no DWARF.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    bpf_sources::{self, BUNDLED_OBJECT, BUNDLED_SOURCES},
    bpf_toolchain::BpfToolchain,
    command, host, setup,
};

/// The target, little endian as every machine that the bundled object is for.
const TARGET: &str = "bpfel-unknown-none";
/// The `[[bin]]` of the BPF crate.
const ARTIFACT: &str = "pyprof-bpf-ebpf";

/// Compiles the object, puts it into place and notes its sources beside it.
pub(crate) fn refresh() -> Result<()> {
    let toolchain = setup::ensure()?;
    // Before the build: a file that changes meanwhile makes the object stale.
    let sources = sources_now()?;
    let compiled = compile(&toolchain)?;
    let object = bundled(BUNDLED_OBJECT);
    if let Some(folder) = object.parent() {
        fs::create_dir_all(folder)?;
    }
    fs::copy(&compiled, &object).with_context(|| format!("cannot write {}", object.display()))?;
    strip_dwarf(&object)?;
    fs::write(bundled(BUNDLED_SOURCES), sources)
        .with_context(|| format!("cannot write {}", bundled(BUNDLED_SOURCES).display()))?;
    println!(
        "{}: {} bytes",
        object.display(),
        fs::metadata(&object)?.len()
    );
    Ok(())
}

/// Fails when the bundled object is not the one that the sources give.
pub(crate) fn check() -> Result<()> {
    let recorded = fs::read_to_string(bundled(BUNDLED_SOURCES)).unwrap_or_default();
    if let Some(changed) = bpf_sources::first_change(&recorded, &sources_now()?) {
        bail!(
            "the bundled BPF object is stale: {changed} has changed since it was built.\nRefresh it with `cargo xtask bpf` and commit {BUNDLED_OBJECT} and {BUNDLED_SOURCES}."
        );
    }
    if !bundled(BUNDLED_OBJECT).is_file() {
        bail!("there is no bundled BPF object: `cargo xtask bpf` builds it.");
    }
    println!("The bundled BPF object fits its sources.");
    Ok(())
}

/// The sources as they are now.
fn sources_now() -> Result<String> {
    bpf_sources::listing(host::workspace())
        .context("cannot read the BPF sources")?
        .context("this work tree has no profiler-ebpf folder")
}

/// A file of the `profiler` folder.
fn bundled(name: &str) -> PathBuf {
    host::workspace().join("profiler").join(name)
}

/// Compiles the BPF crate; gives the path of the result.
fn compile(toolchain: &BpfToolchain) -> Result<PathBuf> {
    let target_dir = host::target_dir().join("bpf");
    let mut cargo = Command::new("rustup");
    cargo
        .args(["run", &toolchain.name, "cargo", "build", "--locked"])
        .args(["--package", "profiler-ebpf", "--bins", "--release"])
        .args(["--target", TARGET, "-Z", "build-std=core"])
        .arg("--target-dir")
        .arg(&target_dir)
        .current_dir(host::workspace().join("profiler-ebpf"))
        .env("CARGO_ENCODED_RUSTFLAGS", flags(toolchain)?)
        .env_remove("RUSTC")
        .env_remove("RUSTC_WORKSPACE_WRAPPER");
    if toolchain.needs_bootstrap() {
        cargo.env("RUSTC_BOOTSTRAP", "1");
    }
    command::run(&mut cargo).context("cannot compile the BPF object")?;
    Ok(target_dir.join(TARGET).join("release").join(ARTIFACT))
}

/// Compiler flags, in the form of `CARGO_ENCODED_RUSTFLAGS`.
fn flags(toolchain: &BpfToolchain) -> Result<OsString> {
    let sysroot = command::output(Command::new("rustup").args([
        "run",
        &toolchain.name,
        "rustc",
        "--print",
        "sysroot",
    ]))?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    let mut flags = OsString::from("--cfg=bpf_target_arch=\"x86_64\"");
    for flag in ["-Cdebuginfo=2", "-Clink-arg=--btf"] {
        flags.push("\x1f");
        flags.push(flag);
    }
    // The last flag that fits wins, so the narrower folders come last.
    let mut remap = |from: &Path, to: &str| {
        flags.push("\x1f--remap-path-prefix=");
        flags.push(from);
        flags.push("=");
        flags.push(to);
    };
    let cargo_home = env::var_os("CARGO_HOME").map_or_else(
        || Path::new(&env::var_os("HOME").unwrap_or_default()).join(".cargo"),
        PathBuf::from,
    );
    if let Ok(registries) = fs::read_dir(cargo_home.join("registry/src")) {
        for registry in registries.flatten() {
            remap(&registry.path(), "/crates");
        }
    }
    remap(host::workspace(), ".");
    remap(&sources, "/rust");
    if let Ok(sources) = fs::canonicalize(&sources) {
        remap(&sources, "/rust");
    }
    Ok(flags)
}

/// Drops DWARF and keeps BTF, where LLVM's tool for it is installed: the object works
/// without, only larger.
fn strip_dwarf(object: &Path) -> Result<()> {
    let tool = ["llvm-strip", "llvm-strip-22"]
        .into_iter()
        .find_map(host::which)
        .or_else(|| {
            Some(PathBuf::from("/usr/lib/llvm-22/bin/llvm-strip")).filter(|tool| tool.is_file())
        });
    if let Some(tool) = tool {
        return command::run(Command::new(tool).arg("--strip-debug").arg(object));
    }
    eprintln!("There is no llvm-strip, so the object keeps its DWARF.");
    Ok(())
}
