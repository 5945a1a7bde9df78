//! Texts as the kernel and the runtimes make them; the ids are made up.

use super::*;

const ID: &str = "3f2a9c0b7d1e4f5a6b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f70819a2b3c4";
const OTHER: &str = "aa2a9c0b7d1e4f5a6b8c9d0e1f2a3b4c5d6e7f8091a2b3c4d5e6f70819a2b3ff";
const POD: &str = "1b7e4c2a-9d3f-4e5a-8b6c-7d8e9f0a1b2c";

fn found(text: &str) -> Vec<String> {
    let mut found: Vec<String> = container_places(text).map(|place| place.id).collect();
    found.dedup();
    found
}

#[test]
fn the_id_is_found_for_every_runtime() {
    for text in [
        // Docker: version 2 with systemd, version 2 without, version 1.
        format!("0::/system.slice/docker-{ID}.scope\n"),
        format!("0::/docker/{ID}\n"),
        format!(
            "12:cpuset:/docker/{ID}\n4:cpu,cpuacct:/docker/{ID}\n1:name=systemd:/docker/{ID}\n0::/system.slice/containerd.service\n"
        ),
        // Docker with a process in a group of its own inside, and one that is gone.
        format!("0::/system.slice/docker-{ID}.scope/init\n"),
        format!("0::/docker/{ID} (deleted)\n"),
        // Seen from inside another container, with a cgroup namespace of its own.
        format!("0::/../{ID}\n"),
        format!("0::/../docker-{ID}.scope\n"),
        // Podman: root, rootless, version 1, without systemd.
        format!("0::/machine.slice/libpod-{ID}.scope/container\n"),
        format!(
            "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{ID}.scope/container\n"
        ),
        format!("9:memory:/machine.slice/libpod-{ID}.scope\n0::/\n"),
        format!("0::/libpod_parent/libpod-{ID}\n"),
        // containerd by nerdctl, and CRI-O outside of Kubernetes.
        format!("0::/system.slice/nerdctl-{ID}.scope\n"),
        format!("0::/default/{ID}\n"),
        format!("0::/machine.slice/crio-{ID}.scope\n"),
    ] {
        assert_eq!(found(&text), [ID], "{text}");
    }
}

#[test]
fn in_kubernetes_the_pod_is_found_too() {
    let slice = POD.replace('-', "_");
    for text in [
        format!("0::/kubepods/burstable/pod{POD}/{ID}\n"),
        format!(
            "0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{slice}.slice/cri-containerd-{ID}.scope\n"
        ),
        // Guaranteed pods have no class.
        format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope\n"),
        format!(
            "0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice}.slice/docker-{ID}.scope\n"
        ),
        format!("0::/kubepods.slice/kubepods-pod{slice}.slice/crio-{ID}.scope/container\n"),
        // In kind, where a node is a container itself, the slice is below another one.
        format!(
            "0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod{slice}.slice/cri-containerd-{ID}.scope\n"
        ),
        format!(
            "11:memory:/system.slice/containerd.service/kubepods-burstable-pod{slice}.slice:cri-containerd:{ID}\n"
        ),
    ] {
        assert_eq!(found(&text), [POD, ID], "{text}");
    }
    // The hash of a static pod.
    let hash = "d6f7a3b1c0e94857a6b5c4d3e2f10918";
    assert_eq!(found(&format!("0::/kubepods/pod{hash}/{ID}\n")), [hash, ID]);
}

#[test]
fn a_container_in_a_container_is_in_both() {
    let text = format!("0::/docker/{ID}/docker/{OTHER}\n");
    assert_eq!(found(&text), [ID, OTHER]);
}

#[test]
fn a_place_ends_with_the_id_and_holds_what_is_below_it() {
    let text = format!("0::/machine.slice/libpod-{ID}.scope/container\n");
    let place = container_places(&text).next().unwrap();
    assert_eq!(place.path, format!("/machine.slice/libpod-{ID}.scope"));
    assert!(place.holds(&text));
    for other in [
        format!("0::/machine.slice/libpod-{ID}.scope2\n"),
        format!("1:cpu:/machine.slice/libpod-{ID}.scope\n"),
        format!("0::/user.slice/libpod-{ID}.scope\n"),
    ] {
        assert!(!place.holds(&other), "{other}");
    }
    // One folder for pod and container.
    let slice = POD.replace('-', "_");
    let both = format!("3:cpu:/a.service/kubepods-pod{slice}.slice:cri-containerd:{ID}\n");
    let places: Vec<Place> = container_places(&both).collect();
    assert_eq!(
        places[0].path,
        format!("/a.service/kubepods-pod{slice}.slice")
    );
    assert!(places.len() == 2 && places.iter().all(|place| place.holds(&both)));
}

#[test]
fn the_folder_of_a_place_is_in_its_own_hierarchy() {
    let mounted = mounts(VERSION_1);
    let folders = |text: &str| -> Vec<PathBuf> {
        let place = container_places(text).next().unwrap();
        let folders = mounted
            .iter()
            .filter_map(|mount| mount.folder_of(&place.group()));
        folders.map(|(_, folder)| folder).collect()
    };
    let below = |mount: &str| vec![PathBuf::from(format!("{mount}/docker/{ID}"))];
    assert_eq!(
        folders(&format!("0::/docker/{ID}\n")),
        below("/sys/fs/cgroup/unified")
    );
    assert_eq!(
        folders(&format!("4:cpu,cpuacct:/docker/{ID}\n")),
        below("/sys/fs/cgroup/cpu,cpuacct")
    );
    // Outside of what is mounted, and outside of our cgroup namespace.
    assert_eq!(folders(&format!("5:memory:/docker/{ID}\n")), below("")[1..]);
    assert_eq!(folders(&format!("0::/../{ID}\n")), below("")[1..]);
}

#[test]
fn what_only_looks_like_a_container_is_none() {
    for text in [
        // Their monitors run outside.
        format!("0::/machine.slice/libpod-conmon-{ID}.scope\n"),
        format!("0::/system.slice/crio-conmon-{ID}.scope\n"),
        // Too long, too short, no digits, no boundary.
        format!("0::/docker/{ID}0\n"),
        format!("0::/docker/{}\n", &ID[1..]),
        format!("0::/docker/{}\n", ID.replace('a', "x")),
        format!("0::/dockerx{ID}\n"),
        "0::/user.slice/user-1000.slice/session-3.scope\n".to_owned(),
        "0::/podcast.service\n0::/kubepods.slice/kubepods-burstable.slice\n".to_owned(),
        "0::/pod\u{e9}\n0::/\u{65e5}\u{672c}.scope\n".to_owned(),
        String::new(),
        "no fields at all\n0:\n".to_owned(),
    ] {
        assert_eq!(found(&text), [""; 0], "{text}");
    }
}

const VERSION_1: &str = "\
25 24 0:22 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
26 25 0:23 / /sys/fs/cgroup/unified rw,nosuid shared:5 - cgroup2 cgroup2 rw,nsdelegate
27 25 0:24 / /sys/fs/cgroup/systemd rw,nosuid shared:6 - cgroup cgroup rw,xattr,name=systemd
28 25 0:25 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:7 - cgroup cgroup rw,cpu,cpuacct
29 25 0:26 /docker/abc /mnt/a\\040b rw - cgroup cgroup rw,memory
";
const VERSION_2: &str = "\
24 23 0:22 / /sys/fs/cgroup rw,nosuid,nodev shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot
25 23 0:23 / /sys/fs/bpf rw - bpf bpf rw
";

fn group(folder: &str, mountinfo: &str) -> Option<Group> {
    Group::of_folder(Path::new(folder), &mounts(mountinfo))
}

#[test]
fn a_folder_means_its_hierarchy_only() {
    let group = group("/sys/fs/cgroup/cpu,cpuacct/web", VERSION_1).unwrap();
    assert!(group.holds("4:cpu,cpuacct:/web\n"));
    assert!(group.holds("4:cpu,cpuacct:/web/worker\n0::/\n"));
    assert!(!group.holds("4:memory:/web\n0::/web\n"));
    assert!(!group.holds("4:cpu,cpuacct:/website\n"));
    assert!(!group.holds("4:cpu,cpuacct:/\n"));
    let systemd = self::group("/sys/fs/cgroup/systemd/web", VERSION_1).unwrap();
    assert!(systemd.holds("1:name=systemd:/web\n"));
    let unified = self::group("/sys/fs/cgroup/unified/web", VERSION_1).unwrap();
    assert!(unified.holds("0::/web\n") && !unified.holds("1:name=systemd:/web\n"));
}

#[test]
fn a_mount_of_a_part_of_a_hierarchy_is_that_part() {
    let group = group("/mnt/a b/inner", VERSION_1).unwrap();
    assert!(group.holds("5:memory:/docker/abc/inner\n"));
    assert!(!group.holds("5:memory:/inner\n"));
}

#[test]
fn the_root_of_a_hierarchy_holds_all_that_is_in_it() {
    let root = group("/sys/fs/cgroup", VERSION_2).unwrap();
    assert!(root.holds("0::/\n") && root.holds("0::/system.slice/a.service\n"));
    assert!(!root.holds("1:cpu:/\n"));
    assert_eq!(group("/sys/fs", VERSION_2), None);
    assert_eq!(group("/sys/fs/cgroups", VERSION_2), None);
    // The temporary file system that the hierarchies of version 1 are mounted in.
    assert_eq!(group("/sys/fs/cgroup", VERSION_1), None);
}

#[test]
fn a_path_of_proc_is_looked_for_in_every_hierarchy() {
    for written in ["/web/a.service", "web/a.service", "//web//a.service/"] {
        let group = Group::anywhere(written);
        for text in [
            "0::/web/a.service\n",
            "4:cpu,cpuacct:/web/a.service/x\n",
            "0::/web/a.service (deleted)\n",
        ] {
            assert!(group.holds(text), "{written}: {text}");
        }
        assert!(!group.holds("0::/web/a.services\n0::/other/web/a.service\n"));
    }
    assert!(Group::anywhere("/").holds("0::/anything\n"));
    assert!(Group::anywhere("/a:b").holds("0::/a:b/c\n"));
}

#[test]
fn folders_of_cgroup_file_systems_are_told_from_their_paths() {
    let (one, two) = (mounts(VERSION_1), mounts(VERSION_2));
    assert!(is_folder_path(Path::new("/sys/fs/cgroup/nothing"), &two));
    assert!(is_folder_path(Path::new("/mnt/a b/x"), &one));
    assert!(!is_folder_path(Path::new("/mnt/a b/x"), &two));
    assert!(!is_folder_path(Path::new("/system.slice"), &one));
}
