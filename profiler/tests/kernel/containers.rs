//! Choosing processes, telling them apart, and pyprof-bpf in a container itself.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use super::{
    Python, Skip, Test, Verdict,
    empty_tmp::EMPTY_TMP,
    eventually,
    namespaces::{assert_chain, of_ordinary_user},
    note,
    recording::{Recording, Stack, WHOLE, name_by_perf_maps, pyprof},
    running::Running,
    scratch, script, skip,
    unshare::{MOUNT, PID, innermost, unshare},
};

pub(super) const TESTS: &[Test] = &[
    ("several_processes_are_told_apart", several),
    ("processes_are_chosen_by_control_group", control_group),
    ("processes_are_chosen_by_container", container_id),
    ("in_a_container_with_the_hosts_pids", with_host_pids),
    ("in_a_container_with_pids_of_its_own", with_own_pids),
    ("two_containers_that_write_one_map", one_map),
];

const ENOUGH: u64 = 25;

/// Runs the program to its end; what it says and what it writes to standard output.
fn recorded(command: &mut Command, options: &[&str]) -> Recording {
    let output = command
        .args(options)
        .args(["-F", "999", "--view", "mixed", "-f", "folded", "-o", "-"])
        .output()
        .unwrap();
    of_output(&output)
}

/// From a recording to standard output.
fn of_output(output: &Output) -> Recording {
    let files = scratch();
    let file = files.path().join("profile.folded");
    if !output.stdout.is_empty() {
        fs::write(&file, &output.stdout).unwrap();
    }
    Recording::of(output, &file)
}

/// Samples of stacks below this process's frame.
fn of_process(recording: &Recording, frame: &str) -> u64 {
    recording.count(|stack| stack.frames[0] == frame)
}

fn titled(python: &Python, title: &str, name: &str) -> Running {
    Running::start(python.perf().arg(script("titled")).args([title, name]))
}

fn several(python: &Python) -> Verdict {
    let master = titled(python, "", "manage");
    let worker = titled(python, "gunicorn: worker [app:app]", "serve");
    let pids = format!("{},{}", master.pid(), worker.pid());
    let recording = recorded(&mut pyprof(), &["--pid", &pids, "-d", "2"]);
    recording.assert_done(ENOUGH);
    let (first, second) = (
        format!("titled.py [{}]", master.pid()),
        format!("gunicorn: worker [app:app] [{}]", worker.pid()),
    );
    for (frame, own, other) in [(&first, "manage", "serve"), (&second, "serve", "manage")] {
        assert!(
            of_process(&recording, frame) > ENOUGH / 4,
            "{frame}: {:?}",
            recording.stacks
        );
        for stack in recording
            .stacks
            .iter()
            .filter(|stack| stack.frames[0] == *frame)
        {
            assert!(stack.has(own) && !stack.has(other), "{stack:?}");
        }
    }
    let both = of_process(&recording, &first) + of_process(&recording, &second);
    assert_eq!(both, recording.samples());
    let report = &recording.report;
    assert!(report.contains("of 2 processes"), "{report}");
    assert!(
        report.contains("most samples: ") && report.contains(&second),
        "{report}"
    );

    // A child that is recorded itself is not missed.
    let script_of_child = script("titled");
    let shell = Running::start(
        Command::new("sh")
            .args(["-c", "setpriv --pdeathsig KILL \"$@\" & wait", "sh"])
            .arg(&python.path)
            .args(["-X", "perf"])
            .arg(script_of_child)
            .args(["", "child"]),
    );
    let child = innermost(shell.pid());
    for (pids, missed) in [
        (format!("{},{child}", shell.pid()), false),
        (format!("{},{}", shell.pid(), master.pid()), true),
    ] {
        let recording = recorded(&mut pyprof(), &["--pid", &pids, "-d", "1"]);
        let report = &recording.report;
        assert_eq!(report.contains("not recorded"), missed, "{report}");
        assert_eq!(report.contains("-s records them too"), missed, "{report}");
        assert!(
            !report.contains("no CPython was found"),
            "the shell is no news: {report}"
        );
    }

    // Threads below their processes; or all as one.
    let recording = recorded(&mut pyprof(), &["--pid", &pids, "-d", "1", "--threads"]);
    let thread = |stack: &Stack| stack.frames[1] == format!("python3 [{}]", master.pid());
    let name = python.path.file_name().unwrap().to_string_lossy();
    assert!(
        recording.count(|stack| thread(stack) || stack.frames[1].starts_with(&*name)) > 0,
        "{:?}",
        recording.stacks
    );
    assert!(of_process(&recording, &first) > 0);
    let recording = recorded(
        &mut pyprof(),
        &["--pid", &pids, "-d", "1", "--merge-processes"],
    );
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    for stack in &recording.stacks {
        assert!(!stack.frames[0].contains('['), "{stack:?}");
    }
    Ok(())
}

/// A control group that is gone with this value; it must be empty by then.
struct ControlGroup {
    folder: PathBuf,
    /// As in `/proc/PID/cgroup`.
    path: String,
}

impl ControlGroup {
    /// In version 2's hierarchy, or else in one of version 1's.
    fn new(name: &str) -> Result<Self, Skip> {
        let path = format!("/pyprof-{}/{name}", std::process::id());
        for hierarchy in ["", "unified", "pids", "cpu"] {
            let root = Path::new("/sys/fs/cgroup").join(hierarchy);
            let folder = root.join(&path[1..]);
            if root.join("cgroup.procs").exists() && fs::create_dir_all(&folder).is_ok() {
                return Ok(Self { folder, path });
            }
        }
        skip("no control group can be made here")
    }

    fn enter(&self, below: &str, target: &Running) {
        let folder = self.folder.join(below);
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("cgroup.procs"), target.pid().to_string()).unwrap();
    }

    /// Ends what is in it.
    fn leave(self, below: &str, targets: Vec<Running>) {
        drop(targets);
        for folder in [
            &self.folder.join(below),
            &self.folder,
            self.folder.parent().unwrap(),
        ] {
            eventually("the group is empty", || {
                fs::remove_dir(folder).is_ok() || !folder.exists()
            });
        }
    }
}

fn control_group(python: &Python) -> Verdict {
    let group = ControlGroup::new("web")?;
    let targets: Vec<Running> = ["one", "two", "outside"]
        .into_iter()
        .map(|name| titled(python, "", name))
        .collect();
    group.enter("", &targets[0]);
    group.enter("below", &targets[1]);
    let folder = group.folder.to_string_lossy().into_owned();
    let recordings = [folder.as_str(), &group.path]
        .map(|path| recorded(&mut pyprof(), &["--cgroup", path, "-d", "1"]));
    let empty = pyprof()
        .args(["--cgroup", &format!("{}/none", group.path)])
        .output()
        .unwrap();
    let pids: Vec<u32> = targets.iter().map(Running::pid).collect();
    group.leave("below", targets);

    for recording in &recordings {
        recording.assert_done(ENOUGH).assert_whole(WHOLE);
        for (pid, name) in pids.iter().zip(["one", "two"]) {
            let frame = format!("titled.py [{pid}]");
            assert!(recording.count(|stack| stack.frames[0] == frame && stack.has(name)) > 0);
        }
        assert_eq!(recording.count(|stack| stack.has("outside")), 0);
    }
    let said = String::from_utf8(empty.stderr.clone()).unwrap();
    assert_eq!(empty.status.code(), Some(1), "{said}");
    assert!(said.contains("there is no control group"), "{said}");
    Ok(())
}

fn container_id(python: &Python) -> Verdict {
    // Unlike any that runs here.
    let id = format!(
        "{:08x}{}",
        std::process::id(),
        "0123456789abcdef".repeat(4).split_at(56).0
    );
    let group = ControlGroup::new(&format!("docker-{id}.scope"))?;
    let targets = vec![titled(python, "", "inside"), titled(python, "", "outside")];
    group.enter("init", &targets[0]);
    let recordings =
        [&id[..12], &id].map(|id| recorded(&mut pyprof(), &["--container", id, "-d", "1"]));
    group.leave("init", targets);
    for recording in &recordings {
        recording.assert_done(ENOUGH / 2).assert_whole(WHOLE);
        assert!(recording.share(|stack| stack.has("inside")) > 0.99);
        assert_eq!(recording.count(|stack| stack.has("outside")), 0);
    }
    let gone = pyprof()
        .args(["--container", &id[..12], "-d", "1"])
        .output()
        .unwrap();
    let said = String::from_utf8(gone.stderr.clone()).unwrap();
    assert_eq!(gone.status.code(), Some(1), "{said}");
    assert!(
        said.contains("no process is in a container") && said.lines().count() <= 5,
        "{said}"
    );
    Ok(())
}

/// What README says a container needs, and what is missing without each.
const CAPABILITIES: [(&str, &str); 5] = [
    ("bpf", "CAP_BPF"),
    ("perfmon", "CAP_PERFMON"),
    ("sys_ptrace", "CAP_SYS_PTRACE"),
    ("dac_read_search", "CAP_DAC_READ_SEARCH"),
    // Without it, files are looked for by their path.
    ("checkpoint_restore", ""),
];

/// As `docker run --pid=host --network=none --cap-drop=ALL --cap-add=…` does it: a root, a `/tmp`, a network, a host name
/// and IPC of its own. The target is in another container, as another user.
fn with_host_pids(python: &Python) -> Verdict {
    let target = of_ordinary_user(python)?;
    let pid = innermost(target.pid()).to_string();
    let all: Vec<&str> = CAPABILITIES.iter().map(|(name, _)| *name).collect();
    assert_chain(&recorded(
        &mut in_container(&all)?,
        &["--pid", &pid, "-d", "2"],
    ));

    for (left_out, missing) in CAPABILITIES {
        let mut others = all.clone();
        others.retain(|name| *name != left_out);
        let recording = recorded(&mut in_container(&others)?, &["--pid", &pid, "-d", "1"]);
        if missing.is_empty() {
            assert_chain(&recording);
        } else {
            assert!(
                recording.report.contains(missing),
                "without {left_out}: {}",
                recording.report
            );
        }
    }
    Ok(())
}

/// The program in a container that sees all processes, with these capabilities.
fn in_container(capabilities: &[&str]) -> Result<Command, Skip> {
    let mut command = unshare(&[&MOUNT[..], &["--uts", "--ipc", "--net", "--cgroup"]].concat())?;
    let script = "
R=/mnt program=$1; shift
mount -t tmpfs none $R
mkdir -p $R/proc $R/sys $R/tmp $R/usr $R/bin $R/lib $R/lib64 $R/dev
for d in proc sys dev; do mount --rbind -o ro /$d $R/$d; done
for d in usr bin lib lib64; do mount --bind /$d $R/$d; done
touch $R/pyprof-bpf; mount --bind $program $R/pyprof-bpf
cd $R; mkdir .old; pivot_root . .old; umount -l /.old
exec \"$@\"";
    command
        .args(["sh", "-ec", script, "sh"])
        .arg(pyprof().get_program());
    let set = format!("-all,+{}", capabilities.join(",+"));
    command.args(["setpriv", "--bounding-set", &set, "--inh-caps", &set]);
    command.args(["--no-new-privs", "/pyprof-bpf"]);
    Ok(command)
}

/// Without `--pid=host`: the processes of the same container, by the pids that they have there.
fn with_own_pids(python: &Python) -> Verdict {
    let flags = [&PID[..], &MOUNT, &["--mount-proc"]].concat();
    let outside = titled(python, "", "outside");
    let mut command = unshare(&flags)?;
    let script = format!(
        "{EMPTY_TMP}empty_tmp
mkfifo /tmp/said
program=$1; outside=$2; shift 2
\"$@\" one > /tmp/said & one=$!
read ready < /tmp/said
\"$@\" two > /tmp/said & two=$!
read ready < /tmp/said
cd /tmp
$program --all-python -d 2 -F 999 --view mixed -f folded -o /tmp/all.folded
$program --pid $one -d 1 -F 999 --view mixed -f folded -o /tmp/one.folded
if $program --pid $outside -d 1; then echo found; else echo code $?; fi >&2
echo one $one two $two
cat /tmp/all.folded; echo; cat /tmp/one.folded
kill $one $two"
    );
    command
        .args(["sh", "-c", &script, "sh"])
        .arg(pyprof().get_program());
    command.arg(outside.pid().to_string()).arg(&python.path);
    command
        .args(["-X", "perf"])
        .arg(self::script("titled"))
        .arg("");
    let output = command.output().unwrap();
    let (text, said) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    let (pids, folded) = text
        .split_once('\n')
        .unwrap_or_else(|| panic!("{text}\n{said}"));
    let pids: Vec<&str> = pids.split(' ').collect();
    let (all, one) = folded
        .split_once("\n\n")
        .unwrap_or_else(|| panic!("{text}\n{said}"));
    for (name, pid) in [("one", pids[1]), ("two", pids[3])] {
        let begin = format!("titled.py [{pid}];");
        let own = |line: &&str| line.starts_with(&begin) && line.contains(&format!("py::{name}:"));
        assert!(all.lines().filter(own).count() > 0, "{name}: {said}\n{all}");
    }
    assert!(
        !all.contains("py::outside") && all.contains("py::one"),
        "{all}"
    );
    assert!(one.contains("py::one") && !one.contains("py::two"), "{one}");
    assert!(
        said.contains("there is no process") && said.contains("code 1"),
        "{said}"
    );
    assert!(said.contains("of 2 processes"), "{said}");
    Ok(())
}

/// Two containers with pid 1 and one `/tmp`. With addresses that are not random their functions lie at the same places.
fn one_map(python: &Python) -> Verdict {
    name_by_perf_maps(true);
    for (random, contested) in [(false, true), (true, false)] {
        let mut command = unshare(&MOUNT)?;
        let inner = format!("unshare {} --mount-proc", PID.join(" "));
        let inner = if random {
            inner
        } else {
            format!("setarch -R {inner}")
        };
        let script = format!(
            "{EMPTY_TMP}empty_tmp; mkfifo /tmp/said
{inner} \"$@\" alpha > /tmp/said & alpha=$!
read ready < /tmp/said
{inner} \"$@\" beta > /tmp/said & beta=$!
read ready < /tmp/said
echo ready; echo $alpha $beta; wait"
        );
        command.args(["sh", "-ec", &script, "sh"]).arg(&python.path);
        command.args(["-X", "perf"]).arg(self::script("rival"));
        let mut both = Running::start(&mut command);
        let pids: Vec<u32> = both
            .line()
            .split(' ')
            .map(|pid| pid.parse().unwrap())
            .collect();
        let (alpha, beta) = (innermost(pids[0]), innermost(pids[1]));
        let map = fs::read_to_string(format!("/proc/{alpha}/root/tmp/perf-1.map")).unwrap();
        assert!(
            map.contains("py::alpha_3:") && map.contains("py::beta_3:"),
            "they share it"
        );

        let wanted = format!("{alpha},{beta}");
        let recording = recorded(&mut pyprof(), &["--pid", &wanted, "-d", "2"]);
        for pid in pids {
            super::running::signal(pid, rustix::process::Signal::KILL);
        }
        drop(both);
        recording.assert_done(ENOUGH).assert_whole(WHOLE);
        for (pid, own, other) in [(alpha, "alpha_", "beta_"), (beta, "beta_", "alpha_")] {
            let frame = format!("rival.py [{pid}]");
            let stacks = || {
                recording
                    .stacks
                    .iter()
                    .filter(|stack| stack.frames[0] == frame)
            };
            assert!(stacks().count() > 0, "{:?}", recording.stacks);
            for stack in stacks() {
                assert!(
                    !stack.python().iter().any(|name| name.starts_with(other)),
                    "{stack:?}"
                );
                let named = stack.python().iter().any(|name| name.starts_with(own));
                assert!(named || contested, "{stack:?}");
            }
        }
        let unnamed = recording.count(|stack| stack.has("[code with two names]"));
        note(format!(
            "{unnamed} of {} samples have frames of two names",
            recording.samples()
        ));
        assert_eq!(unnamed > 0, contested, "{}", recording.report);
        assert_eq!(
            recording.report.contains("have two names each"),
            contested,
            "{}",
            recording.report
        );
    }
    Ok(())
}
