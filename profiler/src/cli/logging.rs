//! Log lines, on standard error.

use std::{
    fmt,
    io::{self, IsTerminal as _},
};

use tracing::field::Field;
use tracing_subscriber::{
    EnvFilter,
    fmt::format::{Writer, debug_fn},
};

use super::{status, text::visible};

/// Starts logging: as `RUST_LOG` says, else as many `-v` as there were ask for, else warnings.
pub(crate) fn start(verbose: u8) {
    let default = match verbose {
        0 => "warn",
        1 => "warn,pyprof_bpf=info",
        2 => "info,pyprof_bpf=debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default));
    // Fails only where a program that uses this as a library has set up logging already: then that holds.
    let _ = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(colours())
        .with_writer(status::above_the_line)
        .fmt_fields(debug_fn(write_field))
        .try_init();
}

/// Writes a field of a line, with whatever is in it visible: messages have names in them, and reasons of other libraries.
fn write_field(writer: &mut Writer<'_>, field: &Field, value: &dyn fmt::Debug) -> fmt::Result {
    let value = visible(&format!("{value:?}"));
    match field.name() {
        "message" => writer.write_str(&value),
        name => write!(writer, "{name}={value}"),
    }
}

/// Standard error is a terminal that may be coloured.
pub(crate) fn colours() -> bool {
    let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    io::stderr().is_terminal() && !no_color
}
