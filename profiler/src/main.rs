//! The program: runs what the words ask for, prints what went wrong, and picks the exit code.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use anyhow::Context as _;
use pyprof_bpf::{cli, output::check_stdout};

fn main() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(err) => match print(&err) {
            Ok(()) => cli::exit_code(&err),
            Err(failed) => {
                let _ = writeln!(io::stderr(), "error: {}", cli::message(&failed));
                cli::exit_code(&failed)
            }
        },
    }
}

/// Prints an error with its causes, once; an error that cannot be printed is given up: there is nobody to tell. Fails
/// where what was asked for, help or version, could not be printed.
fn print(err: &anyhow::Error) -> anyhow::Result<()> {
    if let Some(clap) = err.downcast_ref::<clap::Error>() {
        // Chooses between standard output (help) and standard error by itself.
        if clap.use_stderr() {
            let _ = clap.print();
        } else {
            check_stdout()?;
            clap.print().context("cannot write to standard output")?;
        }
    } else if !cli::is_told(err) {
        let _ = writeln!(io::stderr(), "error: {}", cli::message(err));
    }
    Ok(())
}
