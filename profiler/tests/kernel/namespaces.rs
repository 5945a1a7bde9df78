//! Targets in namespaces, roots and file systems of their own, seen from outside.
//!
//! Each lives in namespaces that are gone with it, and nothing is left where other programs look.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use super::{
    Python, Skip, Test, Verdict,
    empty_tmp::EMPTY_TMP,
    note,
    recording::{Recording, WHOLE, name_by_perf_maps, pyprof, record},
    running::Running,
    scratch, skip,
    unshare::{MOUNT, PID, innermost, unshare},
    workload,
};

pub(super) const TESTS: &[Test] = &[
    ("a_target_in_a_pid_namespace_alone", pid_namespace),
    (
        "a_target_in_pid_and_mount_namespaces",
        pid_and_mount_namespaces,
    ),
    (
        "a_target_of_an_ordinary_user_in_a_user_namespace",
        user_namespace,
    ),
    ("a_target_in_a_root_of_its_own", own_root),
    ("a_target_in_a_container_on_overlay_file_systems", container),
    ("a_target_whose_tmp_is_a_link_inside_its_root", linked_tmp),
    ("a_target_whose_tmp_is_mounted_from_elsewhere", bound_tmp),
    ("a_target_whose_tmp_became_read_only", read_only_tmp),
    ("a_target_whose_tmp_was_replaced_while_it_ran", replaced_tmp),
    ("a_target_that_may_not_write_its_map", no_map),
    ("a_target_whose_files_are_gone", files_gone),
    ("programs_without_glibc", without_glibc),
];

const OPTIONS: [&str; 4] = ["-F", "999", "-d", "2"];
const ENOUGH: u64 = 25;

/// Runs a shell script in new namespaces; `$@` in it is a busy Python with names.
fn in_namespaces(flags: &[&str], script: &str, python: &Python) -> Result<Running, Skip> {
    let mut command = unshare(flags)?;
    command.args(["sh", "-ec", &format!("{EMPTY_TMP}{script}"), "sh"]);
    command.arg(&python.path).args(["-X", "perf"]);
    Ok(Running::start(command.arg(workload("chain"))))
}

/// Every stack is whole and named.
pub(super) fn assert_chain(recording: &Recording) {
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    for stack in recording.whole() {
        assert_eq!(
            stack.python(),
            ["<module>", "baz", "bar", "foo"],
            "{stack:?}\n{}",
            recording.report
        );
    }
}

fn assert_recorded(target: &Running) {
    assert_chain(&record(innermost(target.pid()), &OPTIONS));
}

/// The map is in everybody's `/tmp`, under the pid that the process has inside.
fn pid_namespace(python: &Python) -> Verdict {
    // Not 1, which is the pid of others that may write a map there.
    let inside = (20_000..32_000)
        .find(|pid| !Path::new(&format!("/tmp/perf-{pid}.map")).exists())
        .unwrap();
    let script = format!(
        "echo {} > /proc/sys/kernel/ns_last_pid; \"$@\" & wait",
        inside - 1
    );
    let target = in_namespaces(&PID, &script, python)?;
    let map = PathBuf::from(format!("/tmp/perf-{inside}.map"));
    let is_there = map.exists();
    let recording = record(innermost(target.pid()), &OPTIONS);
    drop(target);
    let _ = fs::remove_file(map);
    assert!(is_there, "it has that pid inside");
    assert_chain(&recording);
    Ok(())
}

fn pid_and_mount_namespaces(python: &Python) -> Verdict {
    let flags = [&PID[..], &MOUNT, &["--mount-proc"]].concat();
    let script = "empty_tmp; exec \"$@\"";
    let target = in_namespaces(&flags, script, python)?;
    let map = format!("/proc/{}/root/tmp/perf-1.map", innermost(target.pid()));
    assert!(Path::new(&map).exists(), "it has pid 1 inside");
    assert_recorded(&target);
    Ok(())
}

fn user_namespace(python: &Python) -> Verdict {
    let target = of_ordinary_user(python)?;
    let map = format!("/proc/{}/root/tmp/perf-1.map", innermost(target.pid()));
    let owner = std::os::unix::fs::MetadataExt::uid(&fs::metadata(map).unwrap());
    assert_eq!(owner, 65534, "whatever it is called inside");
    assert_recorded(&target);
    Ok(())
}

/// A target as in a rootless container. Its Python is mounted where that user can read it.
pub(super) fn of_ordinary_user(python: &Python) -> Result<Running, Skip> {
    let rootless = [
        "setpriv",
        "--reuid=65534",
        "--regid=65534",
        "--clear-groups",
    ];
    let inner = ["unshare", "--user", "--map-root-user", "--mount-proc"];
    let usable = Command::new(rootless[0])
        .args(&rootless[1..])
        .args(inner)
        .args(PID)
        .arg("true")
        .output();
    if !usable.is_ok_and(|done| done.status.success()) {
        return skip("ordinary users cannot make user namespaces here");
    }
    let script = format!(
        "{EMPTY_TMP}mount --bind \"$1\" /mnt; mount --bind \"$2\" /media; empty_tmp; shift 2
         exec {} {} {} \"$@\"",
        rootless.join(" "),
        inner.join(" "),
        PID.join(" ")
    );
    let mut command = unshare(&MOUNT)?;
    command.args(["sh", "-ec", &script, "sh"]);
    command
        .arg(prefix(python))
        .arg(workload("chain").parent().unwrap());
    command.args(["env", "LD_LIBRARY_PATH=/mnt/lib"]);
    command.arg(Path::new("/mnt/bin").join(python.path.file_name().unwrap()));
    Ok(Running::start(command.args([
        "-X",
        "perf",
        "/media/chain.py",
    ])))
}

/// The interpreter itself, not that of a virtual environment, of which there is nothing in other roots.
fn program(python: &Python) -> PathBuf {
    fs::canonicalize(&python.path).unwrap()
}

/// The folder that a Python is installed in.
fn prefix(python: &Python) -> PathBuf {
    let program = program(python);
    program.ancestors().nth(2).unwrap().to_owned()
}

/// Makes a root in the folder `$R` with what a Python needs, out of what is here, but for `/tmp`.
const MAKE_ROOT: &str = "
R=$1 P=$2 W=$3; shift 3
mount -t tmpfs none $R
for d in /usr /bin /lib /lib64 /etc /dev $P; do
    if [ -d $d ]; then mkdir -p $R$d; mount --rbind $d $R$d; fi
done
mkdir -p $R/proc $R/srv $R/var/tmp $R/workloads
mount --bind $W $R/workloads
";

/// A busy Python in a root of its own, in which `make_tmp` has made `$R/tmp`.
struct Rooted {
    target: Running,
    root: tempfile::TempDir,
}

impl Rooted {
    fn start(python: &Python, flags: &[&str], make_tmp: &str) -> Result<Self, Skip> {
        let root = scratch();
        let mut command = unshare(&[flags, &MOUNT].concat())?;
        let script = format!("{MAKE_ROOT}{make_tmp}\nexec chroot $R \"$@\"");
        command.args(["sh", "-ec", &script, "sh"]).arg(root.path());
        let chain = workload("chain");
        command.arg(prefix(python)).arg(chain.parent().unwrap());
        command.arg(program(python)).args(["-X", "perf"]);
        command.arg(Path::new("/workloads").join(chain.file_name().unwrap()));
        Ok(Self {
            target: Running::start(&mut command),
            root,
        })
    }

    fn pid(&self) -> u32 {
        innermost(self.target.pid())
    }

    /// Runs a shell script in its mount namespace, as somebody outside of its root.
    fn tamper(&self, script: &str) {
        let done = Command::new("nsenter")
            .args([&format!("--mount=/proc/{}/ns/mnt", self.pid()), "sh", "-ec"])
            .arg(format!("R={}; {script}", self.root.path().display()))
            .output()
            .unwrap();
        assert!(done.status.success(), "{script}: {done:?}");
    }
}

fn own_root(python: &Python) -> Verdict {
    let rooted = Rooted::start(python, &[], "mkdir $R/tmp")?;
    let map = format!(
        "{}/tmp/perf-{}.map",
        rooted.root.path().display(),
        rooted.pid()
    );
    assert!(!Path::new(&map).exists(), "it is not seen from here");
    assert_recorded(&rooted.target);
    Ok(())
}

/// All that a container runtime does, but for the limits.
fn container(python: &Python) -> Verdict {
    let flags = [&PID[..], &MOUNT, &["--uts", "--ipc", "--net", "--cgroup"]].concat();
    let root = scratch();
    let mut command = unshare(&flags)?;
    let script = "
R=$1 P=$2 W=$3; shift 3
mount -t tmpfs none $R
for d in /usr $P; do
    mkdir -p $R$d $R/.layers$d/upper $R/.layers$d/work
    mount -t overlay -o lowerdir=$d,upperdir=$R/.layers$d/upper,workdir=$R/.layers$d/work none $R$d
done
mkdir -p $R/proc $R/tmp $R/dev $R/workloads $R/.old
mount --bind $W $R/workloads; mount --rbind /dev $R/dev; mount -t proc none $R/proc
for d in bin lib lib64; do ln -s usr/$d $R/$d; done
cd $R; pivot_root . .old; umount -l /.old
exec \"$@\"";
    command.args(["sh", "-ec", script, "sh"]).arg(root.path());
    let chain = workload("chain");
    command.arg(prefix(python)).arg(chain.parent().unwrap());
    command.arg(program(python)).args(["-X", "perf"]);
    command.arg(Path::new("/workloads").join(chain.file_name().unwrap()));
    let target = Running::start(&mut command);
    let maps = fs::read_to_string(format!("/proc/{}/mountinfo", innermost(target.pid()))).unwrap();
    assert!(maps.contains(" - overlay "), "{maps}");
    assert_recorded(&target);
    Ok(())
}

/// Inside its root a link leads to its own folder; followed from here, it would lead to ours, where another map waits.
fn linked_tmp(python: &Python) -> Verdict {
    for link in ["/var/tmp", "../../../../../../var/tmp"] {
        let rooted = Rooted::start(python, &[], &format!("ln -s {link} $R/tmp"))?;
        let trap = Trap::set(rooted.pid());
        let recording = record(rooted.pid(), &OPTIONS);
        drop(trap);
        assert_chain(&recording);
        assert_eq!(recording.count(|stack| stack.has("TRAP")), 0, "{link}");
    }
    Ok(())
}

/// A map in our own `/var/tmp` that names everything.
struct Trap(PathBuf);

impl Trap {
    fn set(pid: u32) -> Self {
        let path = PathBuf::from(format!("/var/tmp/perf-{pid}.map"));
        let lines =
            (0x7f00_u64..0x8000).map(|at| format!("{:x} ffffffff py::TRAP:/trap.py\n", at << 32));
        fs::write(&path, lines.collect::<String>()).unwrap();
        Self(path)
    }
}

impl Drop for Trap {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn bound_tmp(python: &Python) -> Verdict {
    let rooted = Rooted::start(python, &PID, "mkdir $R/tmp; mount --bind $R/srv $R/tmp")?;
    assert_recorded(&rooted.target);
    Ok(())
}

fn read_only_tmp(python: &Python) -> Verdict {
    let rooted = Rooted::start(python, &PID, "mkdir $R/tmp; mount -t tmpfs none $R/tmp")?;
    // Nothing becomes read-only that is open for writing: another mount does, and covers it.
    rooted.tamper("mount --bind $R/tmp $R/tmp; mount -o remount,bind,ro $R/tmp");
    assert_recorded(&rooted.target);
    Ok(())
}

/// Its map is out of sight, even of itself; but it has it open.
fn replaced_tmp(python: &Python) -> Verdict {
    let rooted = Rooted::start(python, &PID, "mkdir $R/tmp")?;
    rooted.tamper("mount -t tmpfs none $R/tmp");
    assert_recorded(&rooted.target);

    // The same while it is recorded.
    let rooted = Rooted::start(python, &PID, "mkdir $R/tmp")?;
    let recorder = super::recording::begin(rooted.pid(), &OPTIONS);
    rooted.tamper("mount -t tmpfs none $R/tmp");
    assert_chain(&recorder.end());
    Ok(())
}

fn no_map(python: &Python) -> Verdict {
    name_by_perf_maps(true);
    let rooted = Rooted::start(
        python,
        &PID,
        "mkdir $R/tmp; mount -t tmpfs -o ro none $R/tmp",
    )?;
    let recording = record(rooted.pid(), &OPTIONS);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    assert!(
        recording.report.contains("was not writable"),
        "{}",
        recording.report
    );
    Ok(())
}

/// Mounts and folders are taken away from a running process: what it has mapped is still there.
fn files_gone(python: &Python) -> Verdict {
    let rooted = Rooted::start(python, &PID, "mkdir $R/tmp")?;
    rooted.tamper("cd /; umount -l $R");
    let pid = rooted.pid();
    assert!(!rooted.target_file_exists(python), "its files are gone");
    let recording = record(pid, &OPTIONS);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    note(recording.report.lines().last().unwrap_or_default());
    assert_chain(&recording);

    // Without the right to use /proc/PID/map_files nobody can open the files: they are read from memory.
    let fewer = "-sys_admin,-checkpoint_restore";
    let files = scratch();
    let output = files.path().join("profile.folded");
    let mut command = Command::new("setpriv");
    command
        .args(["--bounding-set", fewer, "--inh-caps", fewer])
        .arg(pyprof().get_program())
        .args(["--pid", &pid.to_string(), "--view", "mixed", "-o"])
        .arg(&output)
        .args(OPTIONS);
    let recording = Recording::of(&command.output().unwrap(), &output);
    assert_chain(&recording);
    assert!(
        recording
            .report
            .contains("naming them takes CAP_CHECKPOINT_RESTORE"),
        "{}",
        recording.report
    );
    Ok(())
}

impl Rooted {
    fn target_file_exists(&self, python: &Python) -> bool {
        Path::new(&format!(
            "/proc/{}/root{}",
            self.pid(),
            python.path.display()
        ))
        .exists()
    }
}

/// Static programs of two C libraries, and a dynamic one of musl, each alone in a root without anything else: on their
/// first thread, and on another one.
fn without_glibc(_: &Python) -> Verdict {
    let mut tried = 0;
    for (compiler, options) in [
        ("cc", &["-static"][..]),
        ("musl-gcc", &["-static"]),
        ("musl-gcc", &["-static", "-no-pie"]),
        ("musl-gcc", &["-static", "-s"]),
        ("musl-gcc", &[]),
    ] {
        for (source, first) in [("program.c", "main"), ("thread.c", "run")] {
            match compiled(compiler, options, source) {
                Some(root) => {
                    assert_native(root, first, &format!("{compiler} {options:?} {source}"));
                }
                None => continue,
            }
            tried += 1;
        }
    }
    if tried == 0 {
        return skip("there is no C compiler");
    }
    // musl describes none of its functions.
    for options in [&["-static"][..], &[]] {
        let Some(root) = compiled("musl-gcc", options, "library.c") else {
            break;
        };
        let target = Running::start(Command::new("chroot").arg(root.path()).arg("/program"));
        let recording = record(target.pid(), &OPTIONS);
        recording.assert_done(ENOUGH).assert_whole(0.95);
        let on_main = recording.share(|stack| !stack.is_whole() || stack.has("main"));
        assert!(on_main > 0.99, "{:?}", recording.stacks);
    }
    Ok(())
}

/// A root with nothing but the program, and the loader it needs.
fn compiled(compiler: &str, options: &[&str], source: &str) -> Option<tempfile::TempDir> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/kernel/c")
        .join(source);
    let root = scratch();
    let mut compile = Command::new(compiler);
    compile
        .args(["-O2", "-fomit-frame-pointer", "-pthread"])
        .args(options);
    compile
        .arg("-o")
        .arg(root.path().join("program"))
        .arg(&source);
    match compile.output() {
        Ok(done) => assert!(done.status.success(), "{compile:?}: {done:?}"),
        Err(error) => {
            note(format!("not tried: there is no {compiler} ({error})"));
            return None;
        }
    }
    if options.is_empty() {
        fs::create_dir(root.path().join("lib")).unwrap();
        let loader = "lib/ld-musl-x86_64.so.1";
        fs::copy(Path::new("/").join(loader), root.path().join(loader)).unwrap();
    }
    Some(root)
}

fn assert_native(root: tempfile::TempDir, first: &str, what: &str) {
    let target = Running::start(Command::new("chroot").arg(root.path()).arg("/program"));
    // Nothing is left of it.
    root.close().unwrap();
    let recording = record(target.pid(), &OPTIONS);
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    let chain = recording.share(|stack| {
        let names: Vec<&str> = stack.frames.iter().map(String::as_str).collect();
        names
            .windows(4)
            .any(|window| window == [first, "outer", "middle", "inner"])
    });
    note(format!("{what}: {:.1} % are named", 100.0 * chain));
    let is_stripped = what.contains("-s\"");
    assert!(
        chain > 0.99 || is_stripped,
        "{what}: {:?}",
        recording.stacks
    );
}
