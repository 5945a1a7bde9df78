//! What is said when this program has a fault.

use std::{
    backtrace::{Backtrace, BacktraceStatus},
    io::{self, Write as _},
    panic::{self, AssertUnwindSafe, PanicHookInfo},
    thread,
};

use super::text::{clip, visible};
use crate::session::CAREFUL_THREADS;

/// A fault of this program. It was told when it happened.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("internal error")]
pub(crate) struct Fault;

/// Has panics told in one line, where they are not dealt with on the spot.
pub(super) fn tell_in_one_line() {
    panic::set_hook(Box::new(tell));
}

/// Runs something; a panic becomes an error.
pub(super) fn caught<T>(run: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    panic::catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(|_| Err(Fault.into()))
}

fn tell(info: &PanicHookInfo<'_>) {
    let thread = thread::current();
    let name = thread.name().unwrap_or_default();
    let place = info.location().map(ToString::to_string);
    let text = line(info.payload_as_str(), place.as_deref());
    // Threads that read hostile files catch their panics: one file less.
    if CAREFUL_THREADS.contains(&name) {
        tracing::debug!("{name}: {text}");
        return;
    }
    super::status::clear();
    let mut stderr = io::stderr().lock();
    let _ = writeln!(stderr, "{text}");
    let backtrace = Backtrace::capture();
    if backtrace.status() == BacktraceStatus::Captured {
        let _ = writeln!(stderr, "{backtrace}");
    }
}

fn line(message: Option<&str>, place: Option<&str>) -> String {
    format!(
        "error: a fault in pyprof-bpf at {}: {} (please report it; RUST_BACKTRACE=1 says more)",
        place.unwrap_or("an unknown place"),
        clip(&visible(message.unwrap_or("no message")), 200)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_is_one_line_whatever_its_message() {
        let text = line(Some("index\nout of \x1b[31mbounds"), Some("src/a.rs:1:2"));
        assert!(!text.chars().any(char::is_control), "{text:?}");
        assert!(text.contains("src/a.rs:1:2: index"), "{text}");
    }

    #[test]
    fn a_panic_becomes_an_error() {
        let error = caught(|| -> anyhow::Result<()> { panic!("on purpose") }).unwrap_err();
        assert!(error.is::<Fault>());
    }
}
