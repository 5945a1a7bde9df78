//! The BPF object, which the loader embeds.
//!
//! Three origins, in this order; `PYPROF_BPF_ORIGIN` tells the program which it was:
//!
//! 1. `path`: the file that `PYPROF_BPF_OBJECT` names.
//! 2. `source`: compiled here, when the BPF toolchain is installed and either
//!    `PYPROF_BPF_BUILD=1` asks for it or the bundled object does not fit its sources.
//! 3. `bundled`: the object in `bpf/`, once its sources are known to be unchanged.
//!
//! So a plain stable `cargo build` works on a machine that has never seen BPF, and an
//! object that does not match the program around it is never embedded.
//! `PYPROF_BPF_BUILD=0` rules out the second origin.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, anyhow, bail};
use aya_build::{Package, Toolchain};

use crate::{
    Folders, announce_inputs, bpf_sources,
    bpf_toolchain::{BpfToolchain, TOOLCHAIN_VARIABLE},
    copy, named_file, variable,
};

/// Names a finished object to embed.
const OBJECT_VARIABLE: &str = "PYPROF_BPF_OBJECT";
/// `1`: compile the object from its sources; `0`: never do.
const BUILD_VARIABLE: &str = "PYPROF_BPF_BUILD";
/// The one architecture that the bundled object is compiled for: it reads registers
/// by their place in that architecture's `pt_regs`.
const BUNDLED_ARCHITECTURE: &str = "x86_64";
/// The command that makes the bundled object fit its sources.
const REFRESH: &str = "cargo xtask bpf";

/// Puts the object into place and tells cargo what it depends on.
pub(crate) fn embed(folders: &Folders) -> Result<()> {
    let Folders {
        package,
        workspace,
        out,
    } = folders;
    for name in [BUILD_VARIABLE, TOOLCHAIN_VARIABLE] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    announce_inputs([package.join("bpf")]);
    if workspace.join("profiler-ebpf").is_dir() {
        announce_inputs([workspace.join("Cargo.lock")]);
        announce_inputs(bpf_sources::SOURCE_ROOTS.map(|root| workspace.join(root)));
    }

    let object = out.join("pyprof-bpf.bpf.o");
    let origin = match named_file(OBJECT_VARIABLE, package) {
        Some(path) => {
            copy(&path, &object)?;
            "path"
        }
        None => embed_own(package, workspace, &object)?,
    };
    println!("cargo::rustc-env=PYPROF_BPF_ORIGIN={origin}");
    Ok(())
}

/// Chooses between compiling and the bundled object.
fn embed_own(package: &Path, workspace: &Path, object: &Path) -> Result<&'static str> {
    let bundled = bundled_object(package, workspace);
    match (env::var(BUILD_VARIABLE).as_deref(), bundled) {
        (Ok("1"), _) => {
            let toolchain = BpfToolchain::find().map_err(|missing| {
                anyhow!("{BUILD_VARIABLE}=1 asks for a BPF object compiled here, but there is {missing}.\n`cargo xtask setup` installs it.")
            })?;
            compile(&toolchain, workspace, object)?;
            Ok("source")
        }
        (_, Ok(bundled)) => {
            copy(&bundled, object)?;
            Ok("bundled")
        }
        (Ok("0"), Err(unfit)) => Err(unfit),
        (_, Err(unfit)) => {
            let toolchain = BpfToolchain::find().map_err(|missing| {
                anyhow!("{unfit}\nBefore that, `cargo xtask setup`: there is {missing}.")
            })?;
            compile(&toolchain, workspace, object)?;
            Ok("source")
        }
    }
}

/// The bundled object, if it was built from the sources that lie here.
fn bundled_object(package: &Path, workspace: &Path) -> Result<PathBuf> {
    let object = package.join(bpf_sources::BUNDLED_OBJECT);
    if !object.is_file() {
        bail!(
            "There is no bundled BPF object {}: `{REFRESH}` builds it.",
            object.display()
        );
    }
    let architecture = variable("CARGO_CFG_TARGET_ARCH")?;
    if architecture != BUNDLED_ARCHITECTURE {
        bail!(
            "The bundled BPF object is for {BUNDLED_ARCHITECTURE}, this build is for {architecture}."
        );
    }
    // A published package has the object but not what it was made from.
    if let Some(now) = bpf_sources::listing(workspace).context("cannot read the BPF sources")? {
        let recorded =
            fs::read_to_string(package.join(bpf_sources::BUNDLED_SOURCES)).unwrap_or_default();
        if let Some(changed) = bpf_sources::first_change(&recorded, &now) {
            bail!(
                "The bundled BPF object is stale: {changed} has changed since it was built.\nRefresh it with `{REFRESH}`."
            );
        }
    }
    Ok(object)
}

/// Compiles the BPF crate and puts the result at `object`.
fn compile(toolchain: &BpfToolchain, workspace: &Path, object: &Path) -> Result<()> {
    let root = workspace.join("profiler-ebpf");
    let root = root
        .to_str()
        .with_context(|| format!("{} is not UTF-8", root.display()))?;
    if toolchain.needs_bootstrap() {
        // aya-build lets a compiler that is not a nightly build `core` for BPF only
        // when this is set. In `.cargo/config.toml` it would reach every build script.
        // SAFETY: a build script has a single thread, and aya-build starts its own
        // only after this, so nothing reads the environment meanwhile.
        unsafe { env::set_var("RUSTC_BOOTSTRAP", "1") };
    }
    let package = Package {
        name: "profiler-ebpf",
        root_dir: root,
        ..Package::default()
    };
    aya_build::build_ebpf([package], Toolchain::Custom(&toolchain.name))
        .with_context(|| format!(
            "cannot compile the BPF object with the toolchain `{}` and {}; `cargo xtask setup` finds out whether the two fit",
            toolchain.name,
            toolchain.linker.display()
        ))?;
    copy(&object.with_file_name("pyprof-bpf-ebpf"), object)
}
