//! Perf maps that must not be trusted are refused with a reason, and the profile goes on.
//!
//! Each target lives in a mount namespace with a `/tmp` of its own, so that nothing hostile lies about where other
//! programs find it.

use std::{
    fs,
    os::unix::fs::{chown, symlink},
    path::Path,
    process::Command,
};

use rustix::fs::{CWD, FileType, Mode, mknodat};

use super::{
    Python, Test, Verdict, empty_tmp::EMPTY_TMP, recording::record, running::Running, skip,
    workload,
};

pub(super) const TESTS: &[Test] = &[
    ("a_map_in_another_mount_namespace_is_read", harmless),
    ("a_map_that_is_a_link_is_refused", link),
    ("a_map_that_is_a_fifo_is_refused", fifo),
    ("a_map_that_is_a_device_is_refused", device),
    ("a_map_that_is_a_directory_is_refused", directory),
    ("a_map_of_another_user_is_refused", foreign),
    ("a_map_of_a_terabyte_is_refused", enormous),
];

/// A busy Python with a `/tmp` of its own.
fn with_own_tmp(python: &Python) -> Result<Running, super::Skip> {
    let mut command = python.perf();
    command.arg(workload("chain"));
    let target = in_own_tmp(&command)?;
    assert!(target.perf_map().exists(), "it has written its map");
    Ok(target)
}

/// A program that says `ready`, with a `/tmp` of its own, where it is.
pub(super) fn in_own_tmp(program: &Command) -> Result<Running, super::Skip> {
    let usable = Command::new("unshare").args(["--mount", "true"]).output();
    if !usable.is_ok_and(|done| done.status.success()) {
        return skip("mount namespaces cannot be made here");
    }
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c"]);
    command
        .arg(format!("{EMPTY_TMP}empty_tmp && cd /tmp && exec \"$@\""))
        .arg("sh")
        .arg(program.get_program())
        .args(program.get_args());
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Ok(Running::start(&mut command))
}

/// Replaces the map, and expects the program to refuse it in these words.
fn assert_refused(python: &Python, replace: impl FnOnce(&Path), words: &str) -> Verdict {
    let target = with_own_tmp(python)?;
    let map = target.perf_map();
    fs::remove_file(&map).unwrap();
    replace(&map);
    let recording = record(target.pid(), &["-F", "999", "-d", "1"]);
    recording.assert_done(50);
    assert!(
        recording.report.contains(words),
        "no \"{words}\" in\n{}",
        recording.report
    );
    assert!(
        recording
            .stacks
            .iter()
            .all(|stack| stack.python().is_empty()),
        "no name comes from it"
    );
    assert!(
        recording.peak_rss_kib < 200 * 1024,
        "{} KiB",
        recording.peak_rss_kib
    );
    Ok(())
}

fn harmless(python: &Python) -> Verdict {
    let target = with_own_tmp(python)?;
    let recording = record(target.pid(), &["-F", "999", "-d", "1"]);
    recording.assert_done(50);
    assert!(
        recording.share(|stack| stack.has("foo")) > 0.9,
        "{}",
        recording.report
    );
    Ok(())
}

fn link(python: &Python) -> Verdict {
    assert_refused(
        python,
        |map| symlink("/etc/shadow", map).unwrap(),
        "it is a symbolic link",
    )
}

fn fifo(python: &Python) -> Verdict {
    let make = |map: &Path| mknodat(CWD, map, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
    assert_refused(python, make, "it is a FIFO")
}

fn device(python: &Python) -> Verdict {
    // Endless to whoever reads it.
    let zero = rustix::fs::makedev(1, 5);
    let make = |map: &Path| mknodat(CWD, map, FileType::CharacterDevice, Mode::RUSR, zero).unwrap();
    assert_refused(python, make, "it is a device")
}

fn directory(python: &Python) -> Verdict {
    assert_refused(
        python,
        |map| fs::create_dir(map).unwrap(),
        "it is a directory",
    )
}

fn foreign(python: &Python) -> Verdict {
    let make = |map: &Path| {
        fs::write(map, "1000 1000 py::foo:/x.py\n").unwrap();
        chown(map, Some(65534), None).unwrap();
    };
    assert_refused(python, make, "it belongs to user 65534")
}

fn enormous(python: &Python) -> Verdict {
    let make = |map: &Path| fs::File::create(map).unwrap().set_len(1 << 40).unwrap();
    assert_refused(python, make, "it has 1099511627776 bytes")
}
