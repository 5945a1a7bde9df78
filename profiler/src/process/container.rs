//! A container as a set of control groups: those that have its id in their names, and that no other user can have made.
//!
//! A user to whom a control group was delegated (`user@1000.service`) makes groups of any name below it. So the name of
//! a group says that it is a container's only where its parents belong to the administrator. A group below a delegated
//! one counts where there is no other: rootless containers have nothing else.

use std::{
    collections::BTreeMap,
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use super::cgroup::{self, Mount, Place};
use super::select::SelectError;

/// The fewest digits of a container's id that are taken for one.
const ID_DIGITS_MIN: usize = 4;

/// Groups that are listed where several are meant, or ignored.
const LISTED_MAX: usize = 16;

/// A container as the user wrote it: its id, or the beginning of it.
#[derive(Clone, Debug)]
pub struct Container {
    /// Lower case, without the runtime's name.
    pub(super) beginning: String,
    /// Its groups, once processes of it were seen: another group of that name may be made later.
    chosen: OnceLock<Chosen>,
}

/// A control group as people are shown it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct NamedGroup {
    /// Its folder below `/sys/fs/cgroup`, or its path as in `/proc/PID/cgroup` where it is not mounted. Raw.
    pub path: PathBuf,
    /// Who owns it; `None`: that cannot be seen from here.
    pub owner: Option<u32>,
}

/// The groups that are recorded, and those that only have the same name.
#[derive(Clone, Debug)]
struct Chosen {
    places: Vec<Place>,
    /// It is below a delegated group: a rootless container.
    rootless: Option<NamedGroup>,
    ignored: Vec<NamedGroup>,
}

/// Who can have made a control group. Better ones first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Maker {
    /// Only the administrator: all groups down to this one are his.
    Administrator,
    /// The same, and it was delegated to a user afterwards.
    AdministratorForUser,
    /// A user, to whom a group above it was delegated; or nobody knows.
    AnyUser,
}

/// What the file system says of a group.
#[derive(Clone, Debug)]
struct Facts {
    maker: Maker,
    shown: NamedGroup,
}

/// A container's id that is none. Displayed as a clause to follow the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ContainerIdError {
    /// A name, most likely.
    #[error(
        "it is not a container's id, which is of hexadecimal digits: `docker inspect -f '{{{{.Id}}}}' NAME` turns a name \
         into one"
    )]
    NotHexadecimal,
    /// Too few digits to mean one.
    #[error("it is too short: give at least {ID_DIGITS_MIN} digits of the id")]
    TooShort,
}

impl Container {
    /// A container's id or its beginning, as runtimes and `kubectl` show it, or a pod's UID.
    pub fn new(written: &str) -> Result<Self, ContainerIdError> {
        // `kubectl` has it as `containerd://ID`.
        let id = written.rsplit_once("://").map_or(written, |(_, id)| id);
        if !id
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit() || byte == b'-')
        {
            return Err(ContainerIdError::NotHexadecimal);
        }
        if id.len() < ID_DIGITS_MIN {
            return Err(ContainerIdError::TooShort);
        }
        Ok(Self {
            beginning: id.to_ascii_lowercase(),
            chosen: OnceLock::new(),
        })
    }

    /// The groups of a process (its `/proc/PID/cgroup`) whose names have the id, or which are those of the container
    /// once that is known.
    pub(super) fn places_in(&self, cgroups: &str) -> Vec<Place> {
        match self.chosen.get() {
            Some(chosen) => {
                let places = chosen.places.iter();
                places
                    .filter(|place| place.holds(cgroups))
                    .cloned()
                    .collect()
            }
            None => cgroup::container_places(cgroups)
                .filter(|place| place.id.starts_with(&self.beginning))
                .collect(),
        }
    }

    /// Finds out which groups are the container's, from those of all processes that have its id in one of their groups'
    /// names. Fails where that could be several containers.
    pub(super) fn settle(&self, found: &[Vec<Place>]) -> Result<(), SelectError> {
        if self.chosen.get().is_some() || found.is_empty() {
            return Ok(());
        }
        let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
        let mounts = cgroup::mounts(&mounts);
        let chosen = choose(&self.beginning, found, |place| facts_of(place, &mounts))?;
        // Set before: then by another thread, from the same facts.
        let _ = self.chosen.set(chosen);
        Ok(())
    }

    /// Groups of the same name that any user can have made, and that are not recorded.
    pub fn ignored(&self) -> &[NamedGroup] {
        self.chosen.get().map_or(&[], |chosen| &chosen.ignored)
    }

    /// It is a rootless container: its group is below one that was delegated to a user.
    pub fn rootless(&self) -> Option<&NamedGroup> {
        self.chosen.get()?.rootless.as_ref()
    }
}

/// Chooses among the places of all processes. `facts` is asked once for each place.
fn choose(
    beginning: &str,
    found: &[Vec<Place>],
    facts: impl Fn(&Place) -> Facts,
) -> Result<Chosen, SelectError> {
    let mut known: BTreeMap<&Place, Facts> = BTreeMap::new();
    for place in found.iter().flatten() {
        known.entry(place).or_insert_with(|| facts(place));
    }
    let best = known.values().map(|facts| facts.maker).min();
    let best = best.unwrap_or(Maker::AnyUser);
    let (trusted, others): (Vec<_>, Vec<_>) =
        known.iter().partition(|(_, facts)| facts.maker == best);
    let containers = same_container(&trusted, found);
    if containers.len() > 1 {
        let groups = containers.iter().filter_map(|places| places.first());
        return Err(SelectError::AmbiguousContainer {
            id: beginning.to_owned(),
            found: groups.map(|place| known[place].shown.clone()).collect(),
        });
    }
    let places: Vec<Place> = trusted.iter().map(|(place, _)| (**place).clone()).collect();
    // A process may be in the container by one hierarchy, and in a group of no account by another.
    let mut ignored: Vec<NamedGroup> = others
        .iter()
        .filter(|(_, facts)| facts.shown.owner.is_some())
        .map(|(_, facts)| facts.shown.clone())
        .collect();
    ignored.sort();
    ignored.dedup();
    ignored.truncate(LISTED_MAX);
    let is_rootless = best == Maker::AnyUser;
    Ok(Chosen {
        places,
        rootless: trusted
            .first()
            .filter(|(_, facts)| is_rootless && facts.shown.owner.is_some_and(|uid| uid != 0))
            .map(|(_, facts)| facts.shown.clone()),
        ignored,
    })
}

/// Puts places together that are one container's: the same path in several hierarchies, or several that one process is
/// in with the same id.
fn same_container<'p>(
    trusted: &[(&&'p Place, &Facts)],
    found: &'p [Vec<Place>],
) -> Vec<Vec<&'p Place>> {
    let mut containers: Vec<Vec<&Place>> = Vec::new();
    let is_trusted = |place: &Place| trusted.iter().any(|(known, _)| **known == place);
    let mut by_path: BTreeMap<(&str, &str), Vec<&Place>> = BTreeMap::new();
    for (place, _) in trusted {
        by_path
            .entry((&place.id, &place.path))
            .or_default()
            .push(place);
    }
    let in_one_process = found.iter().map(|places| {
        let trusted = places.iter().filter(|place| is_trusted(place));
        trusted.collect::<Vec<_>>()
    });
    let together = in_one_process.flat_map(|places| {
        let mut by_id: BTreeMap<&str, Vec<&Place>> = BTreeMap::new();
        for place in places {
            by_id.entry(&place.id).or_default().push(place);
        }
        by_id.into_values()
    });
    for group in by_path.into_values().chain(together) {
        let (mut merged, rest): (Vec<_>, Vec<_>) = containers
            .into_iter()
            .partition(|known| known.iter().any(|place| group.contains(place)));
        containers = rest;
        merged.push(group);
        let mut merged: Vec<&Place> = merged.into_iter().flatten().collect();
        merged.sort();
        merged.dedup();
        containers.push(merged);
    }
    containers.sort();
    containers
}

/// Who can have made a group, by the owners of the folders above it.
fn facts_of(place: &Place, mounts: &[Mount]) -> Facts {
    let folders = mounts
        .iter()
        .filter_map(|mount| mount.folder_of(&place.group()));
    let Some((root, folder)) = folders
        .into_iter()
        .find(|(_, folder)| folder.symlink_metadata().is_ok_and(|it| it.is_dir()))
    else {
        return Facts {
            maker: Maker::AnyUser,
            shown: NamedGroup {
                path: place.path.clone().into(),
                owner: None,
            },
        };
    };
    let owner = folder.symlink_metadata().ok().map(|group| group.uid());
    Facts {
        maker: maker_of(root, &folder),
        shown: NamedGroup {
            path: folder,
            owner,
        },
    }
}

fn maker_of(root: &Path, folder: &Path) -> Maker {
    // In a user namespace root's groups look like nobody's: who owns the first of them is the administrator.
    let Ok(first) = root.symlink_metadata() else {
        return Maker::AnyUser;
    };
    let is_administrators = |folder: &Path| {
        folder.symlink_metadata().is_ok_and(|group| {
            let (mode, shared) = (group.mode(), group.gid() != first.gid());
            // Who may write to it makes groups in it.
            let others_write = mode & 0o002 != 0 || mode & 0o020 != 0 && shared;
            group.uid() == first.uid() && !others_write
        })
    };
    let parents = folder.ancestors().skip(1);
    let above = parents.take_while(|parent| parent.starts_with(root));
    if !above.into_iter().all(is_administrators) {
        Maker::AnyUser
    } else if is_administrators(folder) {
        Maker::Administrator
    } else {
        Maker::AdministratorForUser
    }
}

#[cfg(test)]
#[path = "container_tests.rs"]
mod tests;
