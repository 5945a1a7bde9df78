//! What the program finds itself in, looked at first: what is missing here would be blamed on something else later.

use std::{
    fs,
    sync::mpsc::{Receiver, channel},
    thread,
};

use anyhow::{Context as _, bail};
use rustix::process::{Resource, getrlimit};

/// Address space that a recording may take, with what is mapped of the program itself.
const ADDRESS_SPACE_MIB: u64 = 512;
/// Descriptors for one process on a few CPUs, and for its files.
const FILES_MIN: u64 = 128;
/// Threads of a recording.
const THREADS: usize = 8;

/// Without `/proc` nothing is known of any process, this one's rights included.
pub(crate) fn check_proc() -> anyhow::Result<()> {
    fs::read_to_string("/proc/self/status").map(drop).context(
        "cannot read /proc, which says what runs, what is mapped and what this program may do; mount it: \
         mount -t proc proc /proc",
    )
}

/// Limits under which a recording would break off, or be ended by the first allocation that fails.
pub(crate) fn check_limits() -> anyhow::Result<()> {
    if let Some(bytes) = getrlimit(Resource::As).current
        && bytes >> 20 < ADDRESS_SPACE_MIB
    {
        bail!(
            "address space is limited to {} MiB here, and a recording may take {ADDRESS_SPACE_MIB} MiB: raise \
             `ulimit -v`, or pass `unlimited`",
            bytes >> 20
        );
    }
    // The soft limit is raised as far as that later.
    if let Some(files) = getrlimit(Resource::Nofile).maximum
        && files < FILES_MIN
    {
        bail!(
            "only {files} files can be open here, and a recording takes {FILES_MIN} or more: raise `ulimit -n`"
        );
    }
    try_threads().context(
        "cannot start the threads of a recording: raise `ulimit -u`, or pids.max of the control group",
    )
}

/// Starts as many threads as a recording has, and ends them: a library that starts some later panics if it cannot.
fn try_threads() -> std::io::Result<()> {
    let started: std::io::Result<Vec<_>> = (0..THREADS)
        .map(|_| {
            let (end, until): (_, Receiver<()>) = channel();
            let thread = thread::Builder::new().spawn(move || {
                let _ = until.recv();
            })?;
            Ok((end, thread))
        })
        .collect();
    for (end, thread) in started? {
        drop(end);
        drop(thread.join());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_tests_run_nothing_is_missing() {
        check_proc().expect("mounted");
        try_threads().expect("threads");
    }
}
