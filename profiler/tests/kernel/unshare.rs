//! Programs in namespaces of their own.

use std::{fs, process::Command};

use super::{Skip, skip};

/// The kernel makes namespaces of these kinds for us.
pub(super) fn unshare(flags: &[&str]) -> Result<Command, Skip> {
    let tried = Command::new("unshare").args(flags).arg("true").output();
    if !tried.is_ok_and(|done| done.status.success()) {
        return skip(format!("unshare {} does not work here", flags.join(" ")));
    }
    let mut command = Command::new("unshare");
    command.args(flags);
    Ok(command)
}

pub(super) const MOUNT: [&str; 3] = ["--mount", "--propagation", "private"];
pub(super) const PID: [&str; 3] = ["--pid", "--fork", "--kill-child"];

/// The process at the end of a row of parents and only children.
pub(super) fn innermost(outermost: u32) -> u32 {
    let mut pid = outermost;
    loop {
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
        match children.unwrap_or_default().split_whitespace().next() {
            Some(child) => pid = child.parse().unwrap(),
            None => return pid,
        }
    }
}
