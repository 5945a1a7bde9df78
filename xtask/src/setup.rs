//! `cargo xtask setup`: makes this machine able to compile the BPF object.
//!
//! Two things are needed: a Rust toolchain that may use unstable flags and has the
//! standard library's sources, and `bpf-linker`, which is built on LLVM of at least
//! that toolchain's version. They come from rustup when its servers answer, else from
//! the packages of Debian or Ubuntu.

use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, anyhow, bail};

use crate::{
    bpf_toolchain::{
        self, BpfToolchain, LINKED_TOOLCHAIN, Missing, PINNED_TOOLCHAIN, TOOLCHAIN_VARIABLE,
    },
    command::{self, Patience},
    host, llvm,
};

/// The version that this workspace is tested with.
const LINKER_VERSION: &str = "0.13.0";
/// Distribution packages of a compiler with its standard library's sources.
const COMPILER_PACKAGES: [&str; 3] = ["rustc-web", "cargo-web", "rust-web-src"];
/// The LLVM that `bpf-linker` is linked with here, and what its static parts need.
const LLVM_MAJOR: u32 = 22;
const LLVM_PACKAGES: [&str; 5] = [
    "llvm-22-dev",
    "libpolly-22-dev",
    "zlib1g-dev",
    "libzstd-dev",
    "libxml2-dev",
];
const LLVM_ROOT: &str = "/usr/lib/llvm-22";

/// rustup answers at once or not at all; a download that has begun may take long.
const RUSTUP_PATIENCE: Patience = Patience {
    first: Duration::from_secs(20),
    signs: &["downloading", "latest update"],
    whole: Duration::from_mins(15),
};

/// Installs what is missing and says what is there.
pub(crate) fn run() -> Result<()> {
    let found = ensure()?;
    println!(
        "The BPF toolchain is there: rustup toolchain `{}`, {}.",
        found.name,
        found.linker.display()
    );
    Ok(())
}

/// The BPF toolchain, installed first where it is missing.
pub(crate) fn ensure() -> Result<BpfToolchain> {
    match BpfToolchain::find() {
        Err(Missing::Toolchain(Some(name))) => bail!(
            "the toolchain `{name}` that {TOOLCHAIN_VARIABLE} names has no rust-src.\nAdd it with `rustup component add rust-src --toolchain {name}`, or unset the variable."
        ),
        Err(Missing::Toolchain(None)) => install_toolchain()?,
        _ => {}
    }
    if bpf_toolchain::find_linker().is_none() {
        install_linker().context("cannot install bpf-linker")?;
    }
    let found = find_again()?;
    if llvm::fits(&found) {
        return Ok(found);
    }
    if env::var_os(TOOLCHAIN_VARIABLE).is_some_and(|name| !name.is_empty()) {
        bail!(
            "the toolchain `{}` that {TOOLCHAIN_VARIABLE} names has a newer LLVM than {}, which cannot read what it compiles.\nUnset the variable, or install a newer bpf-linker.",
            found.name,
            found.linker.display()
        );
    }
    eprintln!("The LLVM of `{}` is newer than bpf-linker's.", found.name);
    install_toolchain()?;
    find_again()
}

/// What is there after an installation.
fn find_again() -> Result<BpfToolchain> {
    BpfToolchain::find().map_err(|missing| {
        anyhow!(
            "after the installation there still is {missing}.\nSee what the commands above printed."
        )
    })
}

/// A nightly from rustup, else the distribution's compiler linked into rustup.
fn install_toolchain() -> Result<()> {
    if host::which("rustup").is_none() {
        bail!(
            "compiling BPF goes through rustup, which is not installed.\nInstall rustup, or build with the bundled BPF object (plain `cargo build`)."
        );
    }
    let Err(refused) = rustup_nightly() else {
        return Ok(());
    };
    eprintln!("rustup cannot bring it ({refused:#}).");
    linked_compiler().with_context(|| {
        format!(
            "neither rustup nor this distribution gives a compiler for BPF.\nBy hand: rustup toolchain install {PINNED_TOOLCHAIN} --component rust-src\nor, on Debian: apt-get install {} && rustup toolchain link {LINKED_TOOLCHAIN} /usr",
            COMPILER_PACKAGES.join(" ")
        )
    })
}

/// Installs the nightly that fits `bpf-linker`, with `rust-src`.
fn rustup_nightly() -> Result<()> {
    let mut rustup = Command::new("rustup");
    rustup
        .args(["toolchain", "install", PINNED_TOOLCHAIN])
        .args(["--profile", "minimal", "--component", "rust-src"])
        .arg("--no-self-update")
        .env("RUSTUP_MAX_RETRIES", "1");
    eprintln!("Asking rustup: {}", command::shown(&rustup));
    command::run_patiently(&mut rustup, RUSTUP_PATIENCE)
}

/// Installs the distribution's compiler and gives it a name in rustup.
fn linked_compiler() -> Result<()> {
    if !bpf_toolchain::has_core_sources(Path::new("/usr")) {
        command::apt_install(&COMPILER_PACKAGES)?;
    }
    command::run(Command::new("rustup").args(["toolchain", "link", LINKED_TOOLCHAIN, "/usr"]))
}

/// Builds `bpf-linker`, or takes a finished one through cargo-binstall.
fn install_linker() -> Result<()> {
    if host::which("cargo-binstall").is_some() {
        let mut binstall = Command::new("cargo");
        binstall.args(["binstall", "--no-confirm"]);
        binstall.arg(format!("bpf-linker@{LINKER_VERSION}"));
        match command::run_patiently(&mut binstall, Patience::seconds(120)) {
            Ok(()) => return Ok(()),
            Err(err) => eprintln!("{err:#}; building it instead."),
        }
    }
    if !Path::new(LLVM_ROOT).join("bin/llvm-config").is_file() {
        command::apt_install(&LLVM_PACKAGES).with_context(|| {
            format!(
                "bpf-linker is built on LLVM {LLVM_MAJOR}, whose development files are not in {LLVM_ROOT}.\nInstall a finished one: `cargo install cargo-binstall && cargo binstall bpf-linker@{LINKER_VERSION}`"
            )
        })?;
    }
    let mut path = vec![PathBuf::from(LLVM_ROOT).join("bin")];
    path.extend(env::split_paths(&env::var_os("PATH").unwrap_or_default()));
    let mut install = Command::new("cargo");
    install
        .args(["install", "bpf-linker", "--version", LINKER_VERSION])
        .args(["--no-default-features", "--features"])
        .arg(format!("llvm-{LLVM_MAJOR}"))
        .env("PATH", env::join_paths(path)?)
        .env(llvm_sys_variable(), LLVM_ROOT)
        .current_dir("/"); // away from this workspace's own settings
    eprintln!(
        "Building bpf-linker, which takes some minutes: {}",
        command::shown(&install)
    );
    command::run(&mut install)
}

/// Where the crate `llvm-sys` looks for LLVM: it names the variable after its own
/// version, 22.1.
fn llvm_sys_variable() -> String {
    format!("LLVM_SYS_{LLVM_MAJOR}1_PREFIX")
}
