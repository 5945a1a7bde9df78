//! What the kernel says of this process and of itself. Reading is apart from parsing, so that parsing can be tested.

use std::fs;

use rustix::thread::CapabilitySet;

/// All that the checks look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Facts {
    /// Effective user id.
    pub euid: u32,
    /// Effective capabilities.
    pub effective: CapabilitySet,
    /// The user ids here are not the machine's own.
    pub in_user_namespace: bool,
    /// Kernel version, major and minor; `None` where it cannot be read.
    pub kernel: Option<(u32, u32)>,
    /// Kind of CPU, as in `uname -m`.
    pub machine: String,
    /// `kernel.perf_event_paranoid`.
    pub perf_event_paranoid: Option<i32>,
    /// `kernel.unprivileged_bpf_disabled`.
    pub unprivileged_bpf_disabled: Option<i32>,
    /// Kernel lockdown.
    pub lockdown: Lockdown,
}

/// How much the kernel hides from root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lockdown {
    /// Nothing, or this kernel has no lockdown.
    #[default]
    None,
    /// It cannot be changed from user space.
    Integrity,
    /// It cannot be read either.
    Confidentiality,
}

/// All capabilities there are.
#[cfg(test)]
pub(super) const FULL: CapabilitySet = CapabilitySet::from_bits_retain(0x1ff_ffff_ffff);

impl Facts {
    /// Root on a machine where all is well.
    #[cfg(test)]
    pub fn of_root() -> Self {
        Self {
            euid: 0,
            effective: FULL,
            in_user_namespace: false,
            kernel: Some((6, 1)),
            machine: "x86_64".to_owned(),
            perf_event_paranoid: Some(2),
            unprivileged_bpf_disabled: Some(2),
            lockdown: Lockdown::None,
        }
    }

    /// Reads them. What cannot be read counts as unknown, and nothing is refused for it but capabilities.
    pub fn read() -> Self {
        let text = |path| fs::read_to_string(path).unwrap_or_default();
        Self {
            euid: rustix::process::geteuid().as_raw(),
            effective: effective_capabilities(&text("/proc/self/status")),
            in_user_namespace: is_mapped(&text("/proc/self/uid_map")),
            kernel: kernel_version(&text("/proc/sys/kernel/osrelease")),
            machine: std::env::consts::ARCH.to_owned(),
            perf_event_paranoid: number(&text("/proc/sys/kernel/perf_event_paranoid")),
            unprivileged_bpf_disabled: number(&text("/proc/sys/kernel/unprivileged_bpf_disabled")),
            lockdown: lockdown(&text("/sys/kernel/security/lockdown")),
        }
    }
}

/// The effective user id of a process; `None` when there is no such process.
pub fn user_of(pid: crate::model::Pid) -> Option<u32> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    field(&status, "Uid:")?
        .split_whitespace()
        .nth(1)?
        .parse()
        .ok()
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status
        .lines()
        .find_map(|line| line.strip_prefix(name))
        .map(str::trim)
}

/// `CapEff` of a /proc/PID/status.
fn effective_capabilities(status: &str) -> CapabilitySet {
    field(status, "CapEff:")
        .and_then(|hex| u64::from_str_radix(hex, 16).ok())
        .map_or(CapabilitySet::empty(), CapabilitySet::from_bits_retain)
}

/// Is this the uid_map of a user namespace other than the first, which maps every id to itself?
fn is_mapped(uid_map: &str) -> bool {
    let words: Vec<&str> = uid_map.split_whitespace().collect();
    !words.is_empty() && words != ["0", "0", "4294967295"]
}

/// `6.1.0-18-amd64` as 6 and 1.
fn kernel_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn number(text: &str) -> Option<i32> {
    text.trim().parse().ok()
}

/// `none [integrity] confidentiality`: the chosen one is in brackets.
fn lockdown(text: &str) -> Lockdown {
    if text.contains("[confidentiality]") {
        Lockdown::Confidentiality
    } else if text.contains("[integrity]") {
        Lockdown::Integrity
    } else {
        Lockdown::None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_are_a_hexadecimal_line_of_status() {
        let status = "Name:\tbash\nCapPrm:\t0000000000000000\nCapEff:\t000000c000000000\n";
        assert_eq!(
            effective_capabilities(status),
            CapabilitySet::BPF | CapabilitySet::PERFMON
        );
        assert_eq!(effective_capabilities("garbage"), CapabilitySet::empty());
    }

    #[test]
    fn kernel_versions_of_distributions() {
        for (release, version) in [
            ("6.1.0-18-amd64\n", Some((6, 1))),
            ("5.8.0", Some((5, 8))),
            ("5.15.167.4-microsoft-standard-WSL2", Some((5, 15))),
            ("6.12-rc3", Some((6, 12))),
            ("6.18.0+", Some((6, 18))),
            ("", None),
        ] {
            assert_eq!(kernel_version(release), version, "{release}");
        }
    }

    #[test]
    fn lockdown_mode_is_the_one_in_brackets() {
        assert_eq!(
            lockdown("none integrity [confidentiality]\n"),
            Lockdown::Confidentiality
        );
        assert_eq!(
            lockdown("none [integrity] confidentiality\n"),
            Lockdown::Integrity
        );
        assert_eq!(
            lockdown("[none] integrity confidentiality\n"),
            Lockdown::None
        );
        assert_eq!(lockdown(""), Lockdown::None);
    }

    #[test]
    fn only_the_first_user_namespace_maps_everything_to_itself() {
        assert!(!is_mapped("         0          0 4294967295\n"));
        assert!(is_mapped("         0       1000          1\n"));
        assert!(!is_mapped(""));
    }
}
