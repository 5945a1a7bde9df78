//! Exit codes, one place. `--help` lists them.

use std::{io, process::ExitCode};

use super::{signals::Caught, text::visible};
use crate::{
    activate::ActivateError,
    privilege::{FeatureError, Obstacle, PrivilegeError, RealtimeError},
    process::{TargetError, launch::LaunchError},
    session::SessionError,
};

/// Lines of an error that people read.
const LINES_MAX: usize = 5;

/// Done.
pub(crate) const DONE: u8 = 0;
/// Something failed while it ran.
pub(crate) const FAILED: u8 = 1;
/// Wrong usage: what clap uses as well.
pub(crate) const USAGE: u8 = 2;
/// No samples.
pub(crate) const NOTHING_TO_DRAW: u8 = 3;
/// A privilege or a kernel feature is missing.
pub(crate) const NOT_ALLOWED: u8 = 4;
/// A second Ctrl-C.
pub(crate) const ABORTED: u8 = 130;

/// A signal that means "at once". Its own type, as it has its own exit code.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("stopped by {}: what was not written by then is lost", .0.name())]
pub(crate) struct Aborted(pub(crate) Caught);

/// An error and its causes in one text, with whatever is in it visible. A cause that the text before it tells already is
/// left out.
pub fn message(err: &anyhow::Error) -> String {
    let mut message = String::new();
    for cause in err.chain().map(ToString::to_string) {
        if message.is_empty() {
            message = cause;
        } else if !message.contains(&cause) {
            message.push_str(": ");
            message.push_str(&cause);
        }
    }
    // What is missing may be one of several things, and has its own messages when it comes to it.
    if code_of(err) == NOT_ALLOWED
        && !err.is::<RealtimeError>()
        && message.lines().count() < LINES_MAX
    {
        message.push_str(
            "\n  Everything that recording needs, and what of it is here: pyprof-bpf doctor",
        );
    }
    let lines: Vec<_> = message.lines().map(visible).collect();
    lines.join("\n")
}

/// The error was told when it happened, or is none that anybody need know.
pub fn is_told(err: &anyhow::Error) -> bool {
    code_of(err) == DONE || err.is::<super::panics::Fault>()
}

/// The exit code for an error of [`run`](super::run).
pub fn exit_code(err: &anyhow::Error) -> ExitCode {
    ExitCode::from(code_of(err))
}

fn code_of(err: &anyhow::Error) -> u8 {
    for cause in err.chain() {
        if let Some(err) = cause.downcast_ref::<clap::Error>() {
            // Help and version are "errors" with the code 0.
            return u8::try_from(err.exit_code()).unwrap_or(FAILED);
        }
        if cause.is::<Obstacle>()
            || cause.is::<PrivilegeError>()
            || cause.is::<FeatureError>()
            || cause.is::<RealtimeError>()
        {
            return NOT_ALLOWED;
        }
        if matches!(cause.downcast_ref(), Some(TargetError::NotPermitted { .. })) {
            return NOT_ALLOWED;
        }
        if cause.downcast_ref().is_some_and(ActivateError::is_refusal) {
            return NOT_ALLOWED;
        }
        match cause.downcast_ref() {
            Some(err) if SessionError::is_wrong_usage(err) => return USAGE,
            Some(err) if SessionError::is_refusal(err) => return NOT_ALLOWED,
            Some(err) if SessionError::is_early_stop(err) => return NOTHING_TO_DRAW,
            _ => {}
        }
        if let Some(err) = cause.downcast_ref::<LaunchError>() {
            return err.exit_code();
        }
        if let Some(Aborted(caught)) = cause.downcast_ref() {
            return caught.exit_code();
        }
        if let Some(err) = cause.downcast_ref::<io::Error>()
            && err.kind() == io::ErrorKind::BrokenPipe
        {
            // `… -o - | head`: the reader has had enough, which is its right.
            return DONE;
        }
    }
    FAILED
}

#[cfg(test)]
mod tests {
    use anyhow::anyhow;

    use super::*;
    use crate::output::OutputError;

    #[test]
    fn a_cause_is_told_once() {
        let full = io::Error::other("disk full");
        let write = OutputError::Write { source: full };
        assert_eq!(
            message(&anyhow::Error::from(write)),
            "cannot write the profile: disk full; check that there is room"
        );
        let err = anyhow!("no such file").context("cannot read x");
        assert_eq!(message(&err), "cannot read x: no such file");
    }

    #[test]
    fn what_is_not_allowed_points_to_the_doctor() {
        let text = message(&FeatureError::Lockdown.into());
        assert!(text.ends_with("pyprof-bpf doctor"), "{text}");
        assert!(text.lines().count() <= LINES_MAX, "{text}");
        let text = message(&anyhow!("cannot read x"));
        assert!(!text.contains("doctor"), "{text}");
    }

    #[test]
    fn the_cause_is_found_below_its_context() {
        let privilege = anyhow::Error::from(FeatureError::Lockdown).context("cannot attach");
        assert_eq!(code_of(&privilege), NOT_ALLOWED);
        let aborted = |caught| anyhow::Error::from(Aborted(caught)).context("cannot record");
        assert_eq!(code_of(&aborted(Caught::Interrupt)), ABORTED);
        assert_eq!(code_of(&aborted(Caught::Terminate)), 143);
        assert_eq!(code_of(&anyhow!("cannot read").context("x")), FAILED);
        let pipe = io::Error::from(io::ErrorKind::BrokenPipe);
        assert_eq!(code_of(&anyhow::Error::from(pipe)), DONE);
    }
}
