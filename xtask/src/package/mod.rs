//! `cargo xtask package`: the wheel with the program and the Python package, for every Linux from glibc 2.31 on.
//!
//! ```text
//! tools    target/package-tools           maturin, zig as the linker for an old glibc
//! native   profiler-trampoline            ─► _native.so
//! stage    pyproject.toml, package, texts ─► target/package/stage
//! maturin  stage, profiler                ─► target/package/*.whl
//! check    what is in it, what it needs of the system that it is installed on
//! ```

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use self::tools::Tools;
use crate::{command, host};

mod elf;
mod licences;
mod stage;
pub(crate) mod tools;
mod wheel;

/// What is built for, and the oldest glibc that it is to start on: Debian 11's.
const TARGET: &str = "x86_64-unknown-linux-gnu";
const GLIBC: (u32, u32) = (2, 31);

/// How well the wheel is compiled.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Grade {
    /// As it is given to people.
    Release,
    /// As fast as possible: the same files, for a test of how it installs.
    Check,
}

impl Grade {
    /// The cargo profiles of the program and of the shared object.
    fn profiles(self) -> (&'static str, &'static str) {
        match self {
            Self::Release => ("release", "trampoline"),
            Self::Check => ("package-check", "trampoline"),
        }
    }

    /// The folder below the target folder, and below it.
    fn folder(self) -> PathBuf {
        host::target_dir().join(match self {
            Self::Release => "package",
            Self::Check => "package-check",
        })
    }
}

/// Builds and checks the wheel; `--test` installs it in every Python that is there.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let install = match words {
        [] => false,
        ["--test"] => true,
        _ => bail!(
            "no option `{}`; there is `cargo xtask package [--test]`",
            words.join(" ")
        ),
    };
    let wheel = build(&tools::ensure()?, Grade::Release)?;
    if install {
        let mut test = Command::new("cargo");
        test.args(["test", "-p", "profiler-trampoline", "--test", "packaging"])
            .env("PYPROF_TEST_WHEEL", &wheel)
            .current_dir(host::workspace());
        command::run(&mut test).context("the wheel does not pass its test")?;
    }
    println!("{}", wheel.display());
    Ok(())
}

/// Builds the wheel and checks it; gives its path.
pub(crate) fn build(tools: &Tools, grade: Grade) -> Result<PathBuf> {
    let folder = grade.folder();
    let native = build_native(tools, grade)?;
    let stage = stage::make(&folder.join("stage"), &native)?;

    // Wheels of other versions would be taken for this one.
    let wheels = folder.join("wheels");
    if wheels.exists() {
        fs::remove_dir_all(&wheels)
            .with_context(|| format!("cannot empty {}", wheels.display()))?;
    }
    let mut maturin = Command::new(tools.program("maturin"));
    maturin
        .args(["build", "--zig", "--profile", grade.profiles().0])
        .arg("--out")
        .arg(&wheels)
        .current_dir(&stage)
        // Where the program embeds the shared object, it is to be this one.
        .env("PYPROF_TRAMPOLINE_OBJECT", &native);
    prepare(&mut maturin, tools)?;
    eprintln!("Building the program, which takes some minutes the first time");
    command::run(&mut maturin).context("maturin cannot build the wheel")?;

    let built = host::only_file(&wheels, "whl")?;
    wheel::check(&built, tools, &folder.join("unpacked"))?;
    Ok(built)
}

/// The shared object, linked for the old glibc.
fn build_native(tools: &Tools, grade: Grade) -> Result<PathBuf> {
    let profile = grade.profiles().1;
    let mut cargo = Command::new("cargo");
    cargo
        .args(["zigbuild", "--locked", "-p", "profiler-trampoline", "--lib"])
        .args(["--profile", profile, "--target"])
        .arg(format!("{TARGET}.{}.{}", GLIBC.0, GLIBC.1))
        .current_dir(host::workspace());
    prepare(&mut cargo, tools)?;
    command::run(&mut cargo).context("cannot build _native.so")?;
    Ok(cargo_folder()
        .join(TARGET)
        .join(profile)
        .join("libpyprof_trampoline.so"))
}

/// Where cargo builds for the wheel: its flags are other ones than those of a plain build.
fn cargo_folder() -> PathBuf {
    host::target_dir().join("package").join("cargo")
}

/// Sets what both builds have in common.
fn prepare(build: &mut Command, tools: &Tools) -> Result<()> {
    build
        .env("PATH", tools.path()?)
        .env("CARGO_TARGET_DIR", cargo_folder())
        .env("CARGO_ENCODED_RUSTFLAGS", flags()?)
        // The object in the repository: what is given to people is what was tested, and needs no BPF toolchain.
        .env("PYPROF_BPF_BUILD", "0")
        .env_remove("PYPROF_BPF_OBJECT")
        .env_remove("RUSTFLAGS");
    Ok(())
}

/// Flags that keep the folders of this machine out of the messages of panics.
fn flags() -> Result<OsString> {
    let mut flags = OsString::new();
    for (folder, name) in own_folders()? {
        if !flags.is_empty() {
            flags.push("\x1f"); // cargo's separator
        }
        flags.push("--remap-path-prefix=");
        flags.push(folder);
        flags.push("=");
        flags.push(name);
    }
    Ok(flags)
}

/// Folders of this machine that hold sources, and what is written in their place.
fn own_folders() -> Result<Vec<(PathBuf, &'static str)>> {
    let mut folders = vec![(host::workspace().to_owned(), "pyprof-bpf")];
    let registries = cargo_home()?.join("registry/src");
    let entries = fs::read_dir(&registries);
    folders.extend(
        entries
            .into_iter()
            .flatten()
            .flatten()
            .map(|entry| (entry.path(), "crates")),
    );
    Ok(folders)
}

/// Where cargo keeps the sources of crates.
fn cargo_home() -> Result<PathBuf> {
    let home = || Some(Path::new(&env::var_os("HOME")?).join(".cargo"));
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(home)
        .context("neither CARGO_HOME nor HOME is set")
}

/// The version of the program, which is that of the wheel.
fn version() -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["pkgid", "--package", "pyprof-bpf"])
        .current_dir(host::workspace());
    let id = command::output(&mut cargo)?;
    let (_, version) = id
        .trim()
        .rsplit_once(['@', '#'])
        .context("cargo tells no version")?;
    Ok(version.to_owned())
}
