//! Which of several groups with one id are meant.

#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use super::*;

const ID: &str = "3f2a9c0b7d1e4f5a6b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f70819a2b3c4";
const OTHER: &str = "3f2a9c0bbd1e4f5a6b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f70819a2b3ff";
const POD: &str = "1b7e4c2a-9d3f-4e5a-8b6c-7d8e9f0a1b2c";

/// Groups below `/delegated` are any user's, `/handed` was handed to one, and `/hidden` cannot be seen from here.
fn facts(place: &Place) -> Facts {
    let (maker, owner) = if place.path.starts_with("/delegated") {
        (Maker::AnyUser, Some(1000))
    } else if place.path.starts_with("/handed") {
        (Maker::AdministratorForUser, Some(1000))
    } else if place.path.starts_with("/hidden") {
        (Maker::AnyUser, None)
    } else {
        (Maker::Administrator, Some(0))
    };
    Facts {
        maker,
        shown: NamedGroup {
            path: place.path.clone().into(),
            owner,
        },
    }
}

/// Chooses among processes with these `/proc/PID/cgroup`.
fn chosen(written: &str, processes: &[String]) -> Result<Chosen, SelectError> {
    let container = Container::new(written).expect("an id");
    let found: Vec<_> = processes
        .iter()
        .map(|cgroups| container.places_in(cgroups))
        .collect();
    choose(written, &found, facts)
}

fn paths(chosen: &Chosen) -> Vec<&str> {
    chosen.places.iter().map(|place| &*place.path).collect()
}

#[test]
fn a_container_is_known_by_its_id() {
    assert_eq!(
        Container::new("web-1").unwrap_err(),
        ContainerIdError::NotHexadecimal
    );
    assert_eq!(
        Container::new("abc").unwrap_err(),
        ContainerIdError::TooShort
    );
    assert_eq!(Container::new("").unwrap_err(), ContainerIdError::TooShort);
    let from_kubectl = Container::new("containerd://ABCDEF12").unwrap();
    assert_eq!(from_kubectl.beginning, "abcdef12");
}

#[test]
fn a_group_that_a_user_made_is_not_the_container() {
    let real = format!("0::/system.slice/docker-{ID}.scope\n");
    for fake in [
        format!("0::/delegated/docker-{ID}.scope\n"),
        format!("0::/delegated/{ID}/init\n"),
        format!("0::/delegated/user@1000.service/crio-{ID}.scope\n"),
        // Of another container that only begins alike.
        format!("0::/delegated/libpod-{OTHER}.scope\n"),
    ] {
        for written in [ID, &ID[..12], &ID[..8]] {
            let found = chosen(written, &[fake.clone(), real.clone()]).unwrap();
            assert_eq!(paths(&found), [format!("/system.slice/docker-{ID}.scope")]);
            assert_eq!(found.rootless, None);
            let is_reported = found.ignored.len() == 1 && found.ignored[0].owner == Some(1000);
            // What only begins alike is reported where that beginning was written.
            assert_eq!(
                is_reported,
                fake.contains(&format!("/{written}")) || fake.contains(&format!("-{written}")),
                "{fake} {written}"
            );
        }
    }
}

#[test]
fn a_rootless_container_is_recorded_and_its_user_reported() {
    let path = format!("/delegated/user@1000.service/libpod-{ID}.scope");
    let found = chosen(&ID[..12], &[format!("0::{path}/container\n")]).unwrap();
    assert_eq!(paths(&found), [&*path]);
    assert_eq!(found.rootless.map(|group| group.owner), Some(Some(1000)));
    assert_eq!(found.ignored, []);
}

#[test]
fn of_several_groups_that_users_made_none_is_chosen() {
    let processes = ["one", "two"].map(|name| format!("0::/delegated/{name}/docker-{ID}.scope\n"));
    let error = chosen(ID, &processes).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("/delegated/one/") && text.contains("/delegated/two/"),
        "{text}"
    );
    assert!(
        text.contains("--cgroup") && text.contains("of user 1000"),
        "{text}"
    );
    // Nor of those that cannot be told from them.
    let hidden = format!("0::/hidden/docker-{ID}.scope\n");
    assert!(chosen(ID, &[processes[0].clone(), hidden.clone()]).is_err());
    assert_eq!(chosen(ID, &[hidden]).unwrap().rootless, None);
}

#[test]
fn several_containers_of_the_administrator_are_listed() {
    let processes = [
        format!("0::/docker/{ID}\n"),
        format!("0::/docker/{OTHER}\n"),
    ];
    let error = chosen("3f2a9c0b", &processes).unwrap_err().to_string();
    assert!(error.contains(ID) && error.contains(OTHER), "{error}");
    assert_eq!(chosen(ID, &processes).unwrap().places.len(), 1);
}

#[test]
fn a_group_that_was_handed_to_a_user_comes_before_what_users_make() {
    let handed = format!("0::/handed/docker-{ID}.scope\n");
    let made = format!("0::/delegated/docker-{ID}.scope\n");
    let found = chosen(ID, &[made, handed]).unwrap();
    assert_eq!(paths(&found), [format!("/handed/docker-{ID}.scope")]);
    assert_eq!((found.ignored.len(), found.rootless), (1, None));
}

#[test]
fn one_container_in_several_hierarchies_is_one() {
    let same = format!("4:cpu:/docker/{ID}\n3:memory:/docker/{ID}\n0::/system.slice/x\n");
    assert_eq!(
        chosen(ID, std::slice::from_ref(&same))
            .unwrap()
            .places
            .len(),
        2
    );
    // Under two names, by a process that is in both.
    let two = format!("4:cpu:/docker/{ID}\n1:name=systemd:/system.slice/docker-{ID}.scope\n");
    assert_eq!(chosen(ID, &[two, same]).unwrap().places.len(), 3);
}

#[test]
fn a_pod_has_several_containers() {
    let processes = [ID, OTHER].map(|id| format!("0::/kubepods/burstable/pod{POD}/{id}\n"));
    let found = chosen(POD, &processes).unwrap();
    assert_eq!(paths(&found), [format!("/kubepods/burstable/pod{POD}")]);
    assert!(
        processes
            .iter()
            .all(|cgroups| found.places[0].holds(cgroups))
    );
}

#[test]
fn what_was_found_is_told_from_groups_that_are_made_later() {
    let container = Container::new("3f2a").unwrap();
    let real = format!("0::/docker/{ID}\n");
    let found = choose("3f2a", &[container.places_in(&real)], facts).unwrap();
    container.chosen.set(found).unwrap();
    assert_eq!(
        container
            .places_in(&format!("0::/docker/{ID}/init\n"))
            .len(),
        1
    );
    for later in [
        format!("0::/delegated/docker/{ID}\n"),
        format!("0::/docker/{OTHER}\n"),
        format!("1:cpu:/docker/{ID}\n"),
    ] {
        assert_eq!(container.places_in(&later), [], "{later}");
    }
}

#[test]
fn who_owns_the_folders_above_says_who_can_have_made_a_group() {
    use std::os::unix::fs::{PermissionsExt as _, chown};
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: giving folders away takes root");
        return;
    }
    let root = tempfile::tempdir().unwrap();
    let root = root.path();
    fs::set_permissions(root, fs::Permissions::from_mode(0o755)).unwrap();
    let folder = root.join("a/b/docker");
    fs::create_dir_all(&folder).unwrap();
    assert_eq!(maker_of(root, &folder), Maker::Administrator);
    chown(&folder, Some(1000), Some(1000)).unwrap();
    assert_eq!(maker_of(root, &folder), Maker::AdministratorForUser);
    chown(root.join("a"), Some(1000), None).unwrap();
    assert_eq!(maker_of(root, &folder), Maker::AnyUser);
    chown(root.join("a"), Some(0), Some(1000)).unwrap();
    assert_eq!(maker_of(root, &folder), Maker::AdministratorForUser);
    fs::set_permissions(root.join("a"), fs::Permissions::from_mode(0o775)).unwrap();
    assert_eq!(maker_of(root, &folder), Maker::AnyUser);
    assert_eq!(
        maker_of(Path::new("/no/such/mount"), &folder),
        Maker::AnyUser
    );
}
