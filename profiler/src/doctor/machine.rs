//! The machine: its kernel, its settings, and what this process may do on it.

use std::{fs, path::Path};

use rustix::{
    process::{Resource, getrlimit},
    thread::CapabilitySet,
};

use super::{Check, container::Surroundings, rights};
use crate::{
    kernel::{self, Clock, Probed, RateLimits},
    privilege::{self, Facts, Lockdown, OLDEST_KERNEL, Wish},
};

/// The first kernel with `bpf_task_pt_regs`, from where on samples can be taken without BTF.
const WITHOUT_BTF: (u32, u32) = (5, 15);
/// The first kernel that does not count BPF maps as locked memory.
const MAPS_UNLOCKED: (u32, u32) = (5, 11);
/// What `record` samples at unless it is told otherwise.
const USUAL_RATE: u64 = 99;
/// Files that are kept open for one large program, and as many again.
const OPEN_FILES: u64 = 4096;

/// All that is looked at.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Rights, kernel version, settings that forbid.
    pub rights: Facts,
    /// Container, namespaces, filters.
    pub around: Surroundings,
    /// The kernel's own description of its types is there.
    pub btf: bool,
    /// The CPU has counters that the kernel can use.
    pub pmu: bool,
    /// Limits of the kernel on sampling.
    pub rates: Option<RateLimits>,
    /// `kernel.kptr_restrict`.
    pub kptr_restrict: Option<i32>,
    /// Limits of this process.
    pub limits: Limits,
    /// What came of trying.
    pub tried: Tried,
    /// Path of this program, for the next steps.
    pub program: String,
}

/// Hard limits of this process; `None`: none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of locked memory.
    pub locked_memory: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
}

/// What came of setting up the kernel side.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Tried {
    /// It was not tried: the rights for it are missing.
    No,
    /// It works.
    Works(Probed),
    /// The message of the error.
    Fails(String),
}

impl Machine {
    /// Reads everything, and tries the kernel side if the rights for it are there.
    pub fn read(program: String) -> Self {
        let rights = Facts::read();
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let exists = |path: &str| Path::new(path).exists();
        let limits = Limits {
            locked_memory: getrlimit(Resource::Memlock).maximum,
            open_files: getrlimit(Resource::Nofile).maximum,
        };
        privilege::raise_limits();
        let tried = if privilege::missing(&rights, Wish::default()).is_empty()
            && !rights.in_user_namespace
        {
            kernel::probe().map_or_else(|error| Tried::Fails(error.to_string()), Tried::Works)
        } else {
            Tried::No
        };
        Self {
            rights,
            around: Surroundings::read(),
            btf: exists("/sys/kernel/btf/vmlinux"),
            // Processors with two kinds of cores have `cpu_core` and `cpu_atom`.
            pmu: ["cpu", "cpu_core"]
                .iter()
                .any(|name| exists(&format!("/sys/bus/event_source/devices/{name}"))),
            rates: RateLimits::read().ok(),
            kptr_restrict: text("/proc/sys/kernel/kptr_restrict").trim().parse().ok(),
            limits,
            tried,
            program,
        }
    }

    /// The checks, in order.
    pub fn checks(&self) -> Vec<Check> {
        let mut checks = vec![self.kernel(), self.btf()];
        checks.extend(self.lockdown());
        checks.extend(rights::checks(self));
        checks.extend(self.user_namespace());
        checks.push(self.unprivileged_bpf());
        checks.push(self.paranoid());
        checks.extend(self.rates.map(sample_rate));
        checks.push(self.clock());
        checks.extend(self.bpf());
        checks.push(self.kernel_names());
        checks.extend(self.locked_memory());
        checks.push(self.open_files());
        checks.push(self.container());
        checks.extend(self.system_calls());
        checks.push(self.proc());
        checks
    }

    fn kernel(&self) -> Check {
        const NAME: &str = "kernel";
        let machine = &self.rights.machine;
        let Some(found) = self.rights.kernel else {
            let next = "mount -t proc proc /proc";
            return Check::limited(NAME, "its version cannot be read: is /proc there?", next);
        };
        let finding = format!("Linux {}.{} on {machine}", found.0, found.1);
        if machine != "x86_64" {
            let next = "profile on an x86-64 machine: others are not supported";
            return Check::missing(NAME, finding, next);
        }
        if found < OLDEST_KERNEL {
            let next = format!(
                "boot Linux {}.{} or later",
                OLDEST_KERNEL.0, OLDEST_KERNEL.1
            );
            return Check::missing(NAME, finding, next);
        }
        Check::ok(NAME, finding)
    }

    fn btf(&self) -> Check {
        const NAME: &str = "BTF";
        if self.btf {
            return Check::ok(NAME, "/sys/kernel/btf/vmlinux is there");
        }
        let next = "boot a kernel with CONFIG_DEBUG_INFO_BTF, as distributions build it";
        if self.rights.kernel.is_some_and(|found| found >= WITHOUT_BTF) {
            let finding = "no /sys/kernel/btf/vmlinux: child processes cannot be followed (-s)";
            return Check::limited(NAME, finding, next);
        }
        Check::missing(
            NAME,
            "no /sys/kernel/btf/vmlinux, which Linux before 5.15 needs",
            next,
        )
    }

    fn lockdown(&self) -> Option<Check> {
        const NAME: &str = "lockdown";
        match self.rights.lockdown {
            Lockdown::None => None,
            Lockdown::Integrity => Some(Check::ok(NAME, "integrity, which does not matter here")),
            Lockdown::Confidentiality => Some(Check::missing(
                NAME,
                "confidentiality: BPF programs may not read memory",
                "boot with lockdown=integrity on the kernel's command line, or without Secure Boot",
            )),
        }
    }

    fn user_namespace(&self) -> Option<Check> {
        self.rights.in_user_namespace.then(|| {
            Check::missing(
                "user namespace",
                "this is one (a rootless container, or unshare -r): its rights do not count for BPF",
                "run it outside, as root of the machine",
            )
        })
    }

    fn unprivileged_bpf(&self) -> Check {
        let finding = match self.rights.unprivileged_bpf_disabled {
            Some(0) => "kernel.unprivileged_bpf_disabled = 0",
            Some(_) => "switched off for others, which CAP_BPF passes",
            None => "kernel.unprivileged_bpf_disabled cannot be read",
        };
        Check::ok("unprivileged BPF", finding)
    }

    /// Levels above 2 are distributions' own: Debian's and Android's ask for `CAP_SYS_ADMIN`.
    fn paranoid(&self) -> Check {
        const NAME: &str = "perf_event_paranoid";
        let Some(level) = self.rights.perf_event_paranoid else {
            let next = "boot a kernel with CONFIG_PERF_EVENTS";
            return Check::missing(NAME, "this kernel has no perf events", next);
        };
        let is_root = self.rights.effective.contains(CapabilitySet::SYS_ADMIN);
        let works = matches!(self.tried, Tried::Works(_));
        if level <= 2 || is_root || works {
            return Check::ok(NAME, format!("{level}, which CAP_PERFMON passes"));
        }
        let next = format!(
            "run as root: sudo {}; or: sudo sysctl kernel.perf_event_paranoid=2",
            self.program
        );
        Check::missing(NAME, format!("{level}: sampling is for root alone"), next)
    }

    fn clock(&self) -> Check {
        const NAME: &str = "CPU counter";
        let has_one = match self.tried {
            Tried::Works(Probed { clock, .. }) => clock == Clock::Cycles,
            _ => self.pmu,
        };
        Check::ok(
            NAME,
            if has_one {
                "cycles drive the samples"
            } else {
                "none, as in most virtual machines: the kernel's cpu-clock drives the samples"
            },
        )
    }

    fn bpf(&self) -> Option<Check> {
        const NAME: &str = "BPF and events";
        match &self.tried {
            Tried::No => None,
            Tried::Works(Probed { follows: true, .. }) => Some(Check::ok(
                NAME,
                "tried: the programs load, and the events of all CPUs open",
            )),
            // Told where BTF is.
            Tried::Works(_) if !self.btf => Some(Check::ok(
                NAME,
                "tried: the program loads, and the events of all CPUs open",
            )),
            Tried::Works(_) => Some(Check::limited(
                NAME,
                "tried: samples can be taken, but this kernel does not tell of child processes (-s)",
                "boot a kernel that lets BPF programs use its tracepoints, as distributions build it",
            )),
            Tried::Fails(message) => Some(Check::of_error(NAME, message)),
        }
    }

    /// As `kallsyms_show_value` (kernel/ksyms_common.c, Linux 6.12) decides.
    fn kernel_names(&self) -> Check {
        const NAME: &str = "kernel names";
        let has_right =
            self.rights.effective.contains(CapabilitySet::SYSLOG) && !self.rights.in_user_namespace;
        let paranoid = self.rights.perf_event_paranoid.unwrap_or(2);
        match self.kptr_restrict {
            Some(0) if paranoid <= 1 || has_right => Check::ok(NAME, "shown (--kernel)"),
            Some(1) if has_right => Check::ok(NAME, "shown (--kernel)"),
            Some(0 | 1) | None => Check::limited(
                NAME,
                "hidden: --kernel shows kernel stacks without names",
                "CAP_SYSLOG shows them, as root of the machine has it",
            ),
            Some(level) => Check::limited(
                NAME,
                format!("hidden from everybody: kernel.kptr_restrict = {level}"),
                "sudo sysctl kernel.kptr_restrict=1",
            ),
        }
    }

    /// `bpf_map_charge_memlock` (kernel/bpf/syscall.c, Linux 5.10).
    fn locked_memory(&self) -> Option<Check> {
        const NAME: &str = "locked memory";
        let counts = self
            .rights
            .kernel
            .is_some_and(|found| found < MAPS_UNLOCKED);
        match self.limits.locked_memory.filter(|_| counts) {
            None => None,
            Some(_) if self.rights.effective.contains(CapabilitySet::SYS_RESOURCE) => {
                Some(Check::ok(NAME, "limited, which CAP_SYS_RESOURCE lifts"))
            }
            Some(bytes) => Some(Check::limited(
                NAME,
                format!(
                    "{} KiB, and this kernel counts BPF maps as such",
                    bytes / 1024
                ),
                "ulimit -l unlimited, as root, or CAP_SYS_RESOURCE",
            )),
        }
    }

    fn open_files(&self) -> Check {
        const NAME: &str = "open files";
        match self.limits.open_files {
            Some(limit) if limit < OPEN_FILES => Check::limited(
                NAME,
                format!(
                    "at most {limit}: of programs with many libraries, some stay without names"
                ),
                format!("ulimit -Hn {OPEN_FILES}, as root"),
            ),
            Some(limit) => Check::ok(NAME, format!("up to {limit}")),
            None => Check::ok(NAME, "any number"),
        }
    }

    fn container(&self) -> Check {
        const NAME: &str = "container";
        let container = self.around.container.as_deref();
        match (container, self.around.inner_pids) {
            (None, false) => Check::ok(NAME, "none"),
            (Some(kind), false) => Check::ok(NAME, format!("{kind}, with the pids of the machine")),
            (kind, true) => {
                let kind = kind.map_or_else(String::new, |kind| format!("{kind}, "));
                let finding =
                    format!("{kind}a pid namespace: only the processes in it can be recorded");
                let next = "for others: run it on the host, or with --pid=host (hostPID: true)";
                Check::limited(NAME, finding, next)
            }
        }
    }

    fn system_calls(&self) -> Option<Check> {
        const NAME: &str = "system calls";
        if !self.around.filtered {
            return None;
        }
        Some(match self.tried {
            Tried::Works(_) => Check::ok(
                NAME,
                "filtered (seccomp), but bpf and perf_event_open go through",
            ),
            _ => Check::limited(
                NAME,
                "filtered (seccomp): bpf and perf_event_open may be refused",
                "Docker or Podman: --security-opt seccomp=unconfined, or a profile that allows both",
            ),
        })
    }

    fn proc(&self) -> Check {
        const NAME: &str = "/proc";
        let Some(options) = &self.around.proc_hides else {
            return Check::ok(NAME, "shows all processes");
        };
        let sees_all = self.rights.effective.contains(CapabilitySet::SYS_PTRACE);
        if sees_all && !options.contains("subset=") {
            return Check::ok(NAME, format!("{options}, which CAP_SYS_PTRACE passes"));
        }
        let (finding, next) = if options.contains("subset=") {
            (
                "only processes, not the settings of the kernel",
                "as root: mount -t proc proc /proc",
            )
        } else {
            (
                "processes of others do not show",
                "CAP_SYS_PTRACE shows them; or, as root: mount -o remount,hidepid=0 /proc",
            )
        };
        Check::limited(NAME, format!("mounted with {options}: {finding}"), next)
    }
}

fn sample_rate(rates: RateLimits) -> Check {
    const NAME: &str = "sampling rate";
    let RateLimits {
        max_sample_rate: limit,
        cpu_time_max_percent: percent,
    } = rates;
    if limit < USUAL_RATE {
        return Check::limited(
            NAME,
            format!("at most {limit} Hz, less than the usual {USUAL_RATE}"),
            format!(
                "record with -F {limit}, or: sudo sysctl kernel.perf_event_max_sample_rate=100000"
            ),
        );
    }
    Check::ok(
        NAME,
        format!("up to {limit} Hz; lowered when samples take more than {percent} % of a CPU"),
    )
}

#[cfg(test)]
#[path = "machine_tests.rs"]
pub(super) mod tests;
