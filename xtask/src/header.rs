//! `cargo xtask header`: the C header of `profiler-trampoline`, from its sources.

use std::process::Command;

use anyhow::Result;

use crate::{command, host};

/// Has the test that compares the header write it.
pub(crate) fn refresh() -> Result<()> {
    let mut cargo = Command::new("cargo");
    cargo
        .args(["test", "--quiet", "-p", "profiler-trampoline"])
        .args(["--test", "header"])
        .env("PYPROF_REFRESH_HEADER", "1")
        .current_dir(host::workspace());
    command::run(&mut cargo)?;
    println!("profiler-trampoline/include/pyprof_trampoline.h is up to date.");
    Ok(())
}
