//! What this process may do, and what it gives up once it is set up.
//!
//! Gets facts from /proc and /sys, gives one error for the first thing that stands in the way. The checks come before
//! anything is loaded, because the kernel answers all of them with the same `EPERM`.

mod facts;
mod limits;
mod realtime;
mod rights;

use std::{env, fmt};

use rustix::thread::CapabilitySet;

pub use facts::{Facts, Lockdown, user_of};
pub use limits::raise_limits;
pub use realtime::{PRIORITIES, RealtimeError, run_in_real_time};
pub use rights::{Work, held, keep_only, needed, needed_to_activate, use_only};

/// The first kernel with BPF ring buffers, and with `CAP_BPF` and `CAP_PERFMON`.
pub const OLDEST_KERNEL: (u32, u32) = (5, 8);

/// What `setcap` must give the program so that it runs without root, and sees everything.
pub const WANTED: &str =
    "cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,cap_syslog,cap_checkpoint_restore";

/// A missing right. At most five lines each: what is missing, why it is needed, what to type.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PrivilegeError {
    /// An ordinary user.
    #[error(
        "no permission to profile: {missing} missing\n  \
        {why}.{sysctls}\n  \
        As root:           sudo {retry}\n  \
        or once, for good: sudo setcap {WANTED}+ep {program}"
    )]
    Unprivileged {
        /// The missing capabilities.
        missing: Missing,
        /// What they are needed for.
        why: &'static str,
        /// Settings of the kernel that would otherwise have allowed more.
        sysctls: Sysctls,
        /// The command line, to be repeated with `sudo`.
        retry: String,
        /// Path of this program.
        program: String,
    },
    /// Root whose capabilities were taken away, as in a container.
    #[error(
        "root, but without {missing}: a container or service manager took them away\n  \
        {why}.{sysctls}\n  \
        Docker or Podman:  --pid=host --cap-add=BPF --cap-add=PERFMON --cap-add=SYS_PTRACE --cap-add=SYSLOG\n  \
        systemd:           AmbientCapabilities=CAP_BPF CAP_PERFMON CAP_SYS_PTRACE CAP_DAC_READ_SEARCH"
    )]
    RootWithoutCapabilities {
        /// The missing capabilities.
        missing: Missing,
        /// What they are needed for.
        why: &'static str,
        /// Settings of the kernel that would otherwise have allowed more.
        sysctls: Sysctls,
    },
    /// Root only within a user namespace: the kernel asks for the real one.
    #[error(
        "root in a user namespace only (a rootless container, or `unshare -r`)\n  \
        The kernel loads BPF programs for root of the whole machine, whatever the namespace grants.\n  \
        Run this outside of it: sudo {retry}"
    )]
    UserNamespace {
        /// The command line, to be repeated with `sudo`.
        retry: String,
    },
}

/// Something the machine cannot do. At most five lines each.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FeatureError {
    /// Before 5.8.
    #[error(
        "this kernel is Linux {}.{}: pyprof-bpf needs {}.{} or later\n  \
        BPF ring buffers and the capabilities CAP_BPF and CAP_PERFMON came with it.\n  \
        Boot a newer kernel, or profile on a newer machine.",
        found.0, found.1, OLDEST_KERNEL.0, OLDEST_KERNEL.1
    )]
    OldKernel {
        /// Major and minor version.
        found: (u32, u32),
    },
    /// The kernel keeps its memory confidential.
    #[error(
        "kernel lockdown is in `confidentiality` mode: BPF programs may not read memory\n  \
        See /sys/kernel/security/lockdown. Only booting differently changes it:\n  \
        use `lockdown=integrity` on the kernel's command line (or turn off Secure Boot)."
    )]
    Lockdown,
    /// Another kind of CPU.
    #[error(
        "this machine is {machine}: pyprof-bpf knows x86-64 only\n  \
        It walks stacks inside the kernel, and registers and unwind rules differ between CPUs."
    )]
    Architecture {
        /// What it is.
        machine: String,
    },
}

/// Why a recording cannot begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Obstacle {
    /// A missing right.
    #[error(transparent)]
    Privilege(#[from] PrivilegeError),
    /// A missing feature.
    #[error(transparent)]
    Feature(#[from] FeatureError),
}

/// Capabilities as a list of words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing(pub CapabilitySet);

/// Kernel settings worth a word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// `kernel.perf_event_paranoid`, where it forbids.
    pub paranoid: Option<i32>,
    /// `kernel.unprivileged_bpf_disabled`, where it forbids.
    pub bpf_disabled: Option<i32>,
}

/// What is to be recorded, as far as rights go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wish {
    /// The target's user; `None` where it is not known, or the same by construction.
    pub target_uid: Option<u32>,
}

/// Checks that a recording can begin. `retry` is the command line for the advice, without `sudo`.
pub fn check(facts: &Facts, wish: Wish, retry: &str) -> Result<(), Obstacle> {
    if facts.machine != "x86_64" {
        let machine = facts.machine.clone();
        return Err(FeatureError::Architecture { machine }.into());
    }
    if let Some(found) = facts.kernel.filter(|found| *found < OLDEST_KERNEL) {
        return Err(FeatureError::OldKernel { found }.into());
    }
    let missing = missing(facts, wish);
    if !missing.is_empty() {
        return Err(denied(facts, missing, retry).into());
    }
    if facts.in_user_namespace {
        let retry = retry.to_owned();
        return Err(PrivilegeError::UserNamespace { retry }.into());
    }
    // Last, as an unprivileged user could do nothing about it anyway.
    if facts.lockdown == Lockdown::Confidentiality {
        return Err(FeatureError::Lockdown.into());
    }
    Ok(())
}

/// The capabilities without which nothing works, less those that are there.
pub fn missing(facts: &Facts, wish: Wish) -> CapabilitySet {
    let mut needed = CapabilitySet::BPF | CapabilitySet::PERFMON;
    if wish.target_uid.is_some_and(|uid| uid != facts.euid) {
        needed |= CapabilitySet::SYS_PTRACE;
    }
    let mut held = facts.effective;
    if held.contains(CapabilitySet::SYS_ADMIN) {
        // `bpf_capable` and `perfmon_capable` (include/linux/capability.h) take it for either.
        held |= CapabilitySet::BPF | CapabilitySet::PERFMON;
    }
    needed - held
}

fn denied(facts: &Facts, missing: CapabilitySet, retry: &str) -> PrivilegeError {
    let why = if missing.contains(CapabilitySet::BPF) {
        "They load the BPF program, sample other processes and read what is mapped in them"
    } else if missing.contains(CapabilitySet::PERFMON) {
        "It lets the BPF program sample other processes and read their stacks"
    } else {
        "It is needed to see what is mapped in a process of another user"
    };
    let sysctls = Sysctls {
        paranoid: facts
            .perf_event_paranoid
            .filter(|level| *level > 0 && missing.contains(CapabilitySet::PERFMON)),
        bpf_disabled: facts
            .unprivileged_bpf_disabled
            .filter(|value| *value > 0 && missing.contains(CapabilitySet::BPF)),
    };
    let missing = Missing(missing);
    if facts.euid == 0 {
        return PrivilegeError::RootWithoutCapabilities {
            missing,
            why,
            sysctls,
        };
    }
    PrivilegeError::Unprivileged {
        missing,
        why,
        sysctls,
        retry: retry.to_owned(),
        program: env::current_exe().map_or_else(
            |_| "\"$(command -v pyprof-bpf)\"".to_owned(),
            |path| path.display().to_string(),
        ),
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self
            .0
            .iter_names()
            .map(|(name, _)| format!("CAP_{name}"))
            .collect();
        match names.as_slice() {
            [] => f.write_str("nothing"),
            [one] => f.write_str(one),
            [most @ .., last] => write!(f, "{} and {last}", most.join(", ")),
        }
    }
}

impl fmt::Display for Sysctls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut before = "\n  This kernel has ";
        for (name, value) in [
            ("kernel.perf_event_paranoid", self.paranoid),
            ("kernel.unprivileged_bpf_disabled", self.bpf_disabled),
        ] {
            if let Some(value) = value {
                write!(f, "{before}{name} = {value}")?;
                before = " and ";
            }
        }
        if before == " and " {
            f.write_str(".")?;
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "privilege/tests.rs"]
mod tests;
