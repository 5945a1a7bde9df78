//! `pyprof-bpf man`.

use std::io::{self, Write as _};

use anyhow::Context as _;

use super::exit;

/// Prints the manual page, in roff.
pub(crate) fn run() -> anyhow::Result<u8> {
    let mut page = Vec::new();
    clap_mangen::Man::new(super::command())
        .render(&mut page)
        .context("cannot make the manual page")?;
    io::stdout()
        .write_all(&page)
        .context("cannot write the manual page to standard output")?;
    Ok(exit::DONE)
}
