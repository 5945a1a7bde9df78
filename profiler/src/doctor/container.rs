//! What surrounds this process: a container, a namespace, a filter on system calls.

use std::{env, fs, os::unix::fs::MetadataExt as _, path::Path};

/// Inode of the first pid namespace (`PROC_PID_INIT_INO`, include/linux/proc_ns.h, Linux 6.12).
const INITIAL_PID_NAMESPACE: u64 = 0xEFFF_FFFC;

/// What surrounds this process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// What kind of container it is in, as far as it shows.
    pub container: Option<String>,
    /// Its pid namespace is not the machine's: other processes of the machine cannot be seen.
    pub inner_pids: bool,
    /// A filter looks at its system calls (`Seccomp: 2` in /proc/self/status).
    pub filtered: bool,
    /// Programs get no rights from sudo or by their files (`no_new_privs`).
    pub no_new_privileges: bool,
    /// How /proc is mounted, where that hides something: `hidepid=2`, `subset=pid`.
    pub proc_hides: Option<String>,
}

impl Surroundings {
    /// Reads them. What cannot be read counts as not there.
    pub fn read() -> Self {
        let text = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let status = text("/proc/self/status");
        let marks = Marks {
            docker: Path::new("/.dockerenv").exists(),
            podman: Path::new("/run/.containerenv").exists(),
            kubernetes: env::var_os("KUBERNETES_SERVICE_HOST").is_some(),
            systemd: text("/run/systemd/container"),
            cgroup: text("/proc/self/cgroup"),
        };
        let pids = fs::metadata("/proc/self/ns/pid");
        Self {
            container: marks.container(),
            inner_pids: pids.is_ok_and(|namespace| namespace.ino() != INITIAL_PID_NAMESPACE),
            filtered: field(&status, "Seccomp:") == Some("2"),
            no_new_privileges: field(&status, "NoNewPrivs:") == Some("1"),
            proc_hides: proc_hides(&text("/proc/self/mountinfo")),
        }
    }
}

/// What containers leave lying about.
#[derive(Default)]
struct Marks {
    docker: bool,
    podman: bool,
    kubernetes: bool,
    /// Its name, from systemd in it.
    systemd: String,
    cgroup: String,
}

impl Marks {
    fn container(&self) -> Option<String> {
        let in_cgroup = |word| self.cgroup.contains(word);
        let systemd = self.systemd.trim();
        let name = if self.kubernetes || in_cgroup("kubepods") {
            "Kubernetes"
        } else if self.podman || in_cgroup("libpod") {
            "Podman"
        } else if self.docker || in_cgroup("docker") {
            "Docker"
        } else if in_cgroup("/lxc") {
            "LXC"
        } else if systemd.is_empty() {
            return None;
        } else {
            systemd
        };
        Some(name.to_owned())
    }
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines();
    lines.find_map(|line| line.strip_prefix(name).map(str::trim))
}

/// The options of the topmost /proc that hide processes or files (`man 5 proc`), from a mountinfo.
fn proc_hides(mountinfo: &str) -> Option<String> {
    let topmost = mountinfo
        .lines()
        .filter(|line| line.split(' ').nth(4) == Some("/proc"))
        .filter_map(|line| line.split_once(" - proc "))
        .next_back()?;
    let hiding: Vec<&str> = topmost
        .1
        .split([' ', ','])
        .filter(|option| option.starts_with("hidepid=") || option.starts_with("subset="))
        .filter(|option| !matches!(*option, "hidepid=0" | "hidepid=off"))
        .collect();
    (!hiding.is_empty()).then(|| hiding.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn containers_are_known_by_what_they_leave() {
        let in_cgroup = |cgroup: &str| Marks {
            cgroup: cgroup.to_owned(),
            ..Marks::default()
        };
        let table = [
            (Marks::default(), None),
            (in_cgroup("0::/user.slice/session-1.scope\n"), None),
            (
                in_cgroup("0::/system.slice/docker-4f5.scope\n"),
                Some("Docker"),
            ),
            (
                in_cgroup("0::/kubepods.slice/pod1/docker-4f5.scope\n"),
                Some("Kubernetes"),
            ),
            (
                in_cgroup("0::/machine.slice/libpod-4f5.scope\n"),
                Some("Podman"),
            ),
            (in_cgroup("1:name=systemd:/lxc/c1\n"), Some("LXC")),
            (
                Marks {
                    docker: true,
                    ..Marks::default()
                },
                Some("Docker"),
            ),
            (
                Marks {
                    podman: true,
                    ..Marks::default()
                },
                Some("Podman"),
            ),
            (
                Marks {
                    kubernetes: true,
                    docker: true,
                    ..Marks::default()
                },
                Some("Kubernetes"),
            ),
            (
                Marks {
                    systemd: "systemd-nspawn\n".to_owned(),
                    ..Marks::default()
                },
                Some("systemd-nspawn"),
            ),
        ];
        for (marks, expected) in table {
            assert_eq!(marks.container().as_deref(), expected);
        }
    }

    #[test]
    fn the_topmost_proc_counts() {
        let plain = "25 29 0:22 / /proc rw,nosuid shared:14 - proc proc rw\n";
        assert_eq!(proc_hides(plain), None);
        let hiding =
            format!("{plain}70 25 0:50 / /proc rw - proc proc rw,hidepid=invisible,gid=4\n");
        assert_eq!(proc_hides(&hiding).as_deref(), Some("hidepid=invisible"));
        let mounted_over = format!("{hiding}71 70 0:51 / /proc rw - proc none rw,hidepid=0\n");
        assert_eq!(proc_hides(&mounted_over), None);
        let subset = "25 29 0:22 / /proc rw - proc proc rw,subset=pid\n";
        assert_eq!(proc_hides(subset).as_deref(), Some("subset=pid"));
        assert_eq!(proc_hides("26 29 0:23 / /sys rw - sysfs sysfs rw\n"), None);
    }

    #[test]
    fn fields_of_a_status_are_whole_words() {
        let status = "NoNewPrivs:\t0\nSeccomp:\t2\nSeccomp_filters:\t1\n";
        assert_eq!(field(status, "Seccomp:"), Some("2"));
        assert_eq!(field(status, "NoNewPrivs:"), Some("0"));
    }
}
