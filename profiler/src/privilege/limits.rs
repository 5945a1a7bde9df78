//! Limits of our own process that a recording would run into.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limits on open files and locked memory to what is allowed.
///
/// Every mapped file with code is kept open, and an attacker's process may map thousands; shells start programs with
/// 1,024. Before Linux 5.11, BPF maps count as locked memory (`bpf_map_charge_memlock` in kernel/bpf/syscall.c, Linux
/// 5.10), and `CAP_SYS_RESOURCE` lifts that limit. What is refused stays as it was. Comes before
/// [`keep_only`](super::keep_only), as limits stay when rights go; commands that were launched before keep theirs.
pub fn raise_limits() {
    let files = getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: files.maximum,
        ..files
    };
    let unlimited = Rlimit {
        current: None,
        maximum: None,
    };
    for (resource, limit) in [(Resource::Nofile, raised), (Resource::Memlock, unlimited)] {
        if let Err(error) = setrlimit(resource, limit) {
            tracing::debug!("the limit {resource:?} stays: {error}");
        }
    }
}
