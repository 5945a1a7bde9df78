//! Control groups: in which of them a process is, and which containers these belong to. Texts in, values out.
//!
//! Paths are those of `/proc/PID/cgroup`, which shows them as seen from the reader's cgroup namespace: what lies outside
//! of it begins with `/..`. `/proc/self/mountinfo` shows the roots of cgroup mounts the same way (`cgroup_show_path`,
//! kernel/cgroup/cgroup.c).

use std::path::{Path, PathBuf};

/// Hexadecimal digits of a container's id, for all runtimes that make their ids themselves.
const ID_DIGITS: usize = 64;

/// What the names of scopes and folders have before the id. A monitor (`conmon`) is no part of its container.
const MONITOR: &str = "conmon-";

/// One line of `/proc/PID/cgroup`: a place in one of the hierarchies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Membership<'a> {
    /// `cpu,cpuacct` or `name=systemd`; empty for version 2.
    controllers: &'a str,
    /// From the root of the hierarchy.
    pub(super) path: &'a str,
}

/// Reads `/proc/PID/cgroup`: `ID:CONTROLLERS:PATH`. A path may hold colons, but no newline (`cgroup_mkdir` refuses it).
pub(super) fn memberships(text: &str) -> impl Iterator<Item = Membership<'_>> {
    text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':').skip(1);
        let (controllers, path) = (fields.next()?, fields.next()?);
        Some(Membership {
            controllers,
            path: path.strip_suffix(" (deleted)").unwrap_or(path),
        })
    })
}

/// A hierarchy that is mounted for us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mount {
    /// Where.
    point: PathBuf,
    /// Which group of the hierarchy that is.
    root: String,
    /// `None` for version 2, else the options of the mount, its controllers among them.
    options: Option<String>,
}

/// Reads `/proc/self/mountinfo`, as far as it is about control groups.
pub(super) fn mounts(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

fn mount(line: &str) -> Option<Mount> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(3);
    let (root, point) = (before.next()?, before.next()?);
    let mut after = after.split(' ');
    let kind = after.next()?;
    let options = match kind {
        "cgroup2" => None,
        "cgroup" => Some(after.next_back()?.to_owned()),
        _ => return None,
    };
    Some(Mount {
        point: PathBuf::from(unescaped(point)),
        root: unescaped(root),
        options,
    })
}

/// Spaces and the like are octal numbers in mountinfo (`mangle`, fs/proc_namespace.c).
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\134", "\\")
}

/// A control group, in one hierarchy or in any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Group {
    /// From the hierarchy's root, without a slash at its end: empty for the root itself.
    path: String,
    hierarchy: Hierarchy,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Hierarchy {
    Any,
    /// Version 2.
    Unified,
    /// Version 1, with the options of its mount.
    Controllers(String),
}

impl Group {
    /// A folder of a mounted hierarchy; `None` for any other. `folder` has no links in it.
    pub(super) fn of_folder(folder: &Path, mounts: &[Mount]) -> Option<Self> {
        let within = mounts
            .iter()
            .filter_map(|mount| Some((mount, folder.strip_prefix(&mount.point).ok()?)));
        // A hierarchy may be mounted below another one, and over one: the last is what is seen.
        let (mount, rest) = within.max_by_key(|(mount, _)| mount.point.as_os_str().len())?;
        let root = mount.root.trim_end_matches('/');
        Some(Self {
            path: match rest.to_str()? {
                "" => root.to_owned(),
                rest => format!("{root}/{rest}"),
            },
            hierarchy: match &mount.options {
                None => Hierarchy::Unified,
                Some(options) => Hierarchy::Controllers(options.clone()),
            },
        })
    }

    /// A path as `/proc/PID/cgroup` has it, in whichever hierarchy.
    pub(super) fn anywhere(path: &str) -> Self {
        let parts = path.split('/').filter(|part| !part.is_empty());
        Self {
            path: parts.flat_map(|part| ["/", part]).collect(),
            hierarchy: Hierarchy::Any,
        }
    }

    /// Some mounted hierarchy has a folder for it. Without any mount, nobody can tell.
    pub(super) fn may_exist(&self, mounts: &[Mount]) -> bool {
        let folder = |mount: &Mount| {
            let rest = self.path.strip_prefix(mount.root.trim_end_matches('/'))?;
            Some(mount.point.join(rest.trim_start_matches('/')))
        };
        mounts.is_empty()
            || mounts
                .iter()
                .filter_map(folder)
                .any(|folder| folder.is_dir())
    }

    /// The process with this `/proc/PID/cgroup` is in the group, or in one below it.
    pub(super) fn holds(&self, text: &str) -> bool {
        memberships(text).any(|membership| {
            self.hierarchy.is_of(membership.controllers)
                && membership
                    .path
                    .strip_prefix(&self.path)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

impl Mount {
    /// Where a group lies that is in this hierarchy: the mount's root, and its folder.
    pub(super) fn folder_of(&self, group: &Membership<'_>) -> Option<(&Path, PathBuf)> {
        let hierarchy = match &self.options {
            None => Hierarchy::Unified,
            Some(options) => Hierarchy::Controllers(options.clone()),
        };
        let root = self.root.trim_end_matches('/');
        let rest = group.path.strip_prefix(root)?;
        let is_below = rest.starts_with('/') && !rest.split('/').any(|part| part == "..");
        (is_below && hierarchy.is_of(group.controllers))
            .then(|| (&*self.point, self.point.join(rest.trim_start_matches('/'))))
    }
}

impl Hierarchy {
    fn is_of(&self, controllers: &str) -> bool {
        match self {
            Self::Any => true,
            Self::Unified => controllers.is_empty(),
            Self::Controllers(options) => {
                !controllers.is_empty()
                    && controllers
                        .split(',')
                        .all(|one| options.split(',').any(|option| option == one))
            }
        }
    }
}

/// The path is written as one of a file system, not as one of a hierarchy.
pub(super) fn is_folder_path(path: &Path, mounts: &[Mount]) -> bool {
    path.starts_with("/sys/fs/cgroup") || mounts.iter().any(|mount| path.starts_with(&mount.point))
}

/// A control group whose name has the id of a container, or the UID of a Kubernetes pod.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    /// Of the hierarchy, as in `/proc/PID/cgroup`: empty for version 2.
    controllers: String,
    /// From the root of the hierarchy to the id.
    pub(super) path: String,
    /// As runtimes and kubelet write it, a pod's with dashes.
    pub(super) id: String,
}

impl Place {
    /// Its hierarchy and path.
    pub(super) fn group(&self) -> Membership<'_> {
        Membership {
            controllers: &self.controllers,
            path: &self.path,
        }
    }

    /// The process with this `/proc/PID/cgroup` is in the group, or in one below it.
    pub(super) fn holds(&self, text: &str) -> bool {
        memberships(text).any(|membership| {
            let rest = membership.path.strip_prefix(&self.path);
            membership.controllers == self.controllers
                && rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['/', ':']))
        })
    }
}

/// The containers that the process with this `/proc/PID/cgroup` is in, and its Kubernetes pods, outermost first in each
/// hierarchy.
///
/// The id is the end of a folder's name in all of them:
///
/// | runtime | folder |
/// |---|---|
/// | Docker, containerd by nerdctl | `/docker/ID`, `/system.slice/docker-ID.scope`, `nerdctl-ID.scope` |
/// | Podman | `libpod-ID.scope/container`, `/libpod_parent/libpod-ID` |
/// | containerd, CRI-O in Kubernetes | `/kubepods/burstable/podUID/ID`, `kubepods-burstable-podU_ID.slice/cri-containerd-ID.scope`, `crio-ID.scope` |
/// | containerd with a driver it was not told of | `system.slice:containerd.service/kubepods-podU_ID.slice:cri-containerd:ID` |
pub(super) fn container_places(text: &str) -> impl Iterator<Item = Place> {
    memberships(text).flat_map(|Membership { controllers, path }| {
        let mut end = 0;
        path.split_inclusive(['/', ':']).filter_map(move |part| {
            end += part.len();
            let name = part.trim_end_matches(['/', ':']);
            let id = container(name).or_else(|| pod(name))?;
            Some(Place {
                controllers: controllers.to_owned(),
                path: path[..end - (part.len() - name.len())].to_owned(),
                id,
            })
        })
    })
}

fn container(part: &str) -> Option<String> {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let (before, id) = part.split_at_checked(part.len().checked_sub(ID_DIGITS)?)?;
    let is_id = id.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_name = before.is_empty() || before.ends_with('-') && !before.ends_with(MONITOR);
    (is_id && is_name).then(|| id.to_ascii_lowercase())
}

/// `podUID`, or the same within the name of a slice, with `_` for `-`.
fn pod(part: &str) -> Option<String> {
    let part = part.strip_suffix(".slice").unwrap_or(part);
    let of_slice = || {
        // kind has `kubelet-` before it.
        let (before, rest) = part.split_once("kubepods")?;
        let uid = rest.rsplit_once("-pod")?.1;
        (before.is_empty() || before.ends_with('-')).then_some(uid)
    };
    let uid = part.strip_prefix("pod").or_else(of_slice)?;
    let uid = uid.replace('_', "-").to_ascii_lowercase();
    // Static pods have a hash for a UID, without dashes.
    let is_uid = uid.len() >= 32
        && uid
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    is_uid.then_some(uid)
}

#[cfg(test)]
#[path = "cgroup_tests.rs"]
mod tests;
