//! Parsers of this module, for `crate::fuzzing`.

use std::{ffi::OsString, os::unix::ffi::OsStringExt as _};

use super::{
    command_line,
    status::{Stat, Status},
};

/// `/proc/PID/stat`
pub(crate) fn stat(text: &[u8]) {
    if let Some(stat) = Stat::parse(text) {
        let _ = (stat.is_kernel_thread(), stat.is_dead(), stat.cpu_time());
    }
}

/// `/proc/PID/status`
pub(crate) fn status(text: &[u8]) {
    let _ = Status::parse(text);
}

/// `/proc/PID/cmdline`, and `/proc/PID/environ`, which looks the same.
pub(crate) fn command_line(text: &[u8]) {
    let arguments = text.split(|&byte| byte == 0);
    let arguments: Vec<OsString> = arguments
        .map(|argument| OsString::from_vec(argument.to_vec()))
        .collect();
    let _ = command_line::options(&arguments);
    let _ = command_line::from_environment(text);
}
