//! The program: runs what the words ask for, prints what went wrong, and picks the exit code.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use pyprof_bpf::cli;

fn main() -> ExitCode {
    match cli::run(std::env::args_os()) {
        Ok(code) => code,
        Err(err) => {
            print(&err);
            cli::exit_code(&err)
        }
    }
}

/// Prints an error with its causes, once. What cannot be printed is given up: there is nobody to tell.
fn print(err: &anyhow::Error) {
    if let Some(clap) = err.downcast_ref::<clap::Error>() {
        // Chooses between standard output (help) and standard error by itself.
        let _ = clap.print();
    } else if !cli::is_told(err) {
        let _ = writeln!(io::stderr(), "error: {}", cli::message(err));
    }
}
