//! `cargo xtask test-kernels`: the same program on other kernels, each in a machine of its own that is all emulated.
//!
//! ```text
//! Debian's kernels ──────────────────────────┐
//! program, a Python, workloads ─► image ─► emulator ─► what the guest saw ─► judgement, a line of the table
//! ```
//!
//! Nothing of this machine's kernel takes part, so it needs neither root nor KVM; it takes one to three minutes a
//! kernel. Everything is kept below `target/test-kernels`: console, results and kernels.

mod boot;
mod checks;
mod image;
mod packages;
mod results;

use std::{fs, path::PathBuf, process::Command};

use anyhow::{Context as _, Result, bail};

use crate::{command, demo, host, pythons};
use packages::Kernel;

/// Where everything is kept.
fn folder() -> PathBuf {
    host::target_dir().join("test-kernels")
}

/// What it needs besides cargo, as programs and Debian packages.
const TOOLS: [(&str, &str); 5] = [
    ("qemu-system-x86_64", "qemu-system-x86"),
    ("busybox", "busybox-static"),
    ("cpio", "cpio"),
    ("dpkg-deb", "dpkg"),
    ("tar", "tar"),
];

/// Boots the kernels that `wanted` names: versions or the beginnings of them, `all` for every series that is served,
/// nothing for the newest of each release of Debian.
pub(crate) fn run(wanted: &[&str]) -> Result<()> {
    for (program, package) in TOOLS {
        if host::which(program).is_none() {
            command::apt_install(&[package])
                .with_context(|| format!("{program} is needed, of the package {package}"))?;
        }
    }
    let folder = folder();
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let served = packages::served()?;
    if wanted == ["list"] {
        for kernel in &served {
            println!("{kernel}");
        }
        return Ok(());
    }
    let kernels = packages::chosen(&served, wanted)?;

    let profiler = demo::release_build()?;
    let python = pythons::preferred()?;
    let help = command::output(Command::new(&profiler).args(["record", "--help"]))?;
    let (checks, skipped) = checks::for_program(&help);
    for check in skipped {
        println!("note: skipped: `{}`: {}", check.name, check.why_not());
    }
    let image = image::build(&folder, &profiler, &python, &checks)?;

    let mut table = results::Table::default();
    for kernel in kernels {
        println!("== {kernel}");
        match boot(&image, kernel, &checks) {
            Ok(judged) => table.add(kernel, judged),
            Err(err) => table.fail(kernel, &format!("{err:#}")),
        }
    }
    print!("\n{table}");
    if table.failed() > 0 {
        bail!(
            "{} checks failed; consoles and results are in {}",
            table.failed(),
            folder.display()
        );
    }
    Ok(())
}

/// One kernel, from its package to what is thought of it.
fn boot(
    image: &std::path::Path,
    kernel: &Kernel,
    checks: &[checks::Check],
) -> Result<results::Judged> {
    let binary = packages::binary(kernel)?;
    let folder = folder().join(&kernel.name);
    let text = boot::boot(&binary, image, &folder)?;
    let guest = results::Guest::parse(&text);
    if !guest.finished {
        bail!(
            "the guest stopped before it had done all checks; its console ends so:\n{}",
            boot::console_end(&folder)
        );
    }
    let judged = results::judge(&guest, checks);
    for line in &judged.lines {
        println!("{line}");
    }
    Ok(judged)
}
