//! `pyprof-bpf completions SHELL`.

use std::io::{self, Write as _};

use anyhow::Context as _;
use clap_complete::Shell;

use super::exit;

/// Prints the script.
pub(crate) fn run(shell: Shell) -> anyhow::Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::command(), "pyprof-bpf", &mut script);
    io::stdout()
        .write_all(&script)
        .context("cannot write the completion script to standard output")?;
    Ok(exit::DONE)
}
