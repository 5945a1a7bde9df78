//! `cargo xtask test-pythons`: the trials against the kernel, with Pythons that no package of this system has.
//!
//! Debian's other releases are unpacked below `target/test-roots` (debootstrap, some 400 MB each), and their Pythons
//! are run from there by `chroot`. A script in front of each makes it look like any other interpreter; the mounts that
//! this takes are in a mount namespace of their own and end with it.
//!
//! ```text
//! sid       3.13, 3.14, and 3.15 with frame pointers ─► trials, and perf beside us
//! bookworm  3.11, linked statically                  ─► trials with our trampolines
//! both                                               ─► trials of the interpreter's own frames
//! ```
//!
//! Those of `activate` are among them: CPython takes requests from 3.14 on.

use std::{
    env, fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::{self, Patience},
    demo, host, pythons, test,
    workload::Workload,
};

/// A release of Debian.
struct Release {
    name: &'static str,
    /// Its Pythons, as packages and programs.
    pythons: &'static [&'static str],
    /// They have trampolines of their own.
    own_trampolines: bool,
}

const RELEASES: [Release; 2] = [
    Release {
        name: "sid",
        pythons: &["python3.13", "python3.14", "python3.15"],
        own_trampolines: true,
    },
    Release {
        name: "bookworm",
        pythons: &["python3.11"],
        own_trampolines: false,
    },
];

/// The test programs with the trials.
const PROGRAMS: [&str; 4] = [
    "kernel",
    "kernel_activate",
    "kernel_jit",
    "kernel_interpreter",
];

/// First word of the command line within the mount namespace. Not for people.
pub(crate) const INSIDE: &str = "__test-pythons-inside";

/// Trials that look at, copy or change the interpreter's file, change what is mounted, need packages or the current
/// directory (which `chroot` changes), or count on how this system's C library gets its memory.
const SKIPPED: [&str; 8] = [
    "numpy",
    "names_are_there_however_it_is_started",
    "a_file_system_without_programs",
    "with_trampolines_of_its_own_is_left_alone",
    "interpreter_without_section_headers",
    "interpreter_whose_file_was_deleted",
    "system_calls_and_page_faults",
    "user_registers_are_also_found",
];

/// What everything else needs, made visible below the root: `$1`, then the workspace `$2`.
const ENTER: &str = r#"
set -e
root=$1 workspace=$2
shift 2
mount --make-rprivate /
for folder in /proc /sys /dev /run /tmp "$workspace"; do
    mkdir -p "$root$folder"
    mount --rbind "$folder" "$root$folder"
done
exec "$@"
"#;

/// How long perf and we record for the comparison.
const SECONDS: u64 = 4;
/// Samples a second there.
const HZ: &str = "499";

/// Runs everything for the releases named, or all.
pub(crate) fn run(names: &[&str]) -> Result<()> {
    if !host::is_root() {
        bail!("chroot needs root.\nRun: sudo env PATH=\"$PATH\" cargo xtask test-pythons");
    }
    if let Some(unknown) = names.iter().find(|name| release(name).is_err()) {
        let known = RELEASES.map(|release| release.name).join(", ");
        bail!("no release `{unknown}`; there are {known}");
    }
    let programs = PROGRAMS
        .map(test::program)
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    if let Err(err) = samply() {
        println!("note: samply is not tried: {err:#}");
    }
    let profiler = demo::release_build()?;
    let mut failed = Vec::new();
    for release in &RELEASES {
        if !names.is_empty() && !names.contains(&release.name) {
            continue;
        }
        println!("== {}", release.name);
        let root = unpacked(release)?;
        let mut inside = Command::new("unshare");
        inside
            .args(["--mount", "sh", "-c", ENTER, "sh"])
            .args([&root, host::workspace()])
            .arg(env::current_exe().context("where am I?")?)
            .args([INSIDE, release.name])
            .args(&programs)
            .arg(&profiler);
        if !command::status(&mut inside)?.success() {
            failed.push(release.name);
        }
    }
    if failed.is_empty() {
        Ok(())
    } else {
        bail!("trials failed under {}", failed.join(", "))
    }
}

/// Within the mount namespace: the trials, then the comparison.
pub(crate) fn inside(name: &str, programs: &[&str], profiler: &str) -> Result<()> {
    let [kernel, activate, jit, interpreter] = programs else {
        bail!("not for people");
    };
    let release = release(name)?;
    let shims = release
        .pythons
        .iter()
        .map(|python| shim(&root_of(release), python))
        .collect::<Result<Vec<_>>>()?;
    let list = env::join_paths(&shims).context("a path has a colon")?;
    let nobody = "/dev/null".into();
    let all = list.clone();
    let (own, old) = if release.own_trampolines {
        (list, nobody)
    } else {
        (nobody, list)
    };
    let trials = |program: &str| {
        let mut trials = Command::new(program);
        trials
            .current_dir(host::workspace().join("profiler"))
            .env("CARGO_MANIFEST_DIR", host::workspace().join("profiler"))
            .env("PYPROF_TEST_PYTHONS", &own)
            .env("PYPROF_TEST_OLD_PYTHONS", &old)
            .env("PYPROF_TEST_INTERPRETERS", &all);
        trials
    };
    let mut kernel = trials(kernel);
    for skipped in SKIPPED {
        kernel.args(["--skip", skipped]);
    }
    let mut passed = command::status(&mut kernel)?.success();
    passed &= command::status(&mut trials(activate))?.success();
    passed &= command::status(&mut trials(interpreter))?.success();
    if release.own_trampolines {
        let mut samply = trials(jit);
        samply.arg("samply_names_python_functions");
        passed &= command::status(&mut samply)?.success();
    }
    if release.own_trampolines {
        println!(
            "\nSamples of workloads/chain.py with all of its functions, {HZ} Hz, {SECONDS} s:"
        );
        for shim in shims {
            compare(Path::new(profiler), &shim)?;
        }
    }
    if passed {
        Ok(())
    } else {
        bail!("trials failed")
    }
}

/// Sees to it that samply is there, for the trials that compare.
fn samply() -> Result<()> {
    let home = env::home_dir().unwrap_or_default();
    if host::which("samply").is_some() || home.join(".cargo/bin/samply").exists() {
        return Ok(());
    }
    println!("Installing samply, which takes some minutes");
    let mut cargo = Command::new("cargo");
    cargo.args(["install", "--locked", "--quiet", "samply@0.13.1"]);
    command::run_patiently(&mut cargo, Patience::seconds(1200))
}

fn release(name: &str) -> Result<&'static Release> {
    RELEASES
        .iter()
        .find(|release| release.name == name)
        .with_context(|| format!("no release `{name}`"))
}

fn root_of(release: &Release) -> PathBuf {
    host::target_dir().join("test-roots").join(release.name)
}

/// The root of a release, unpacked if it is not there.
fn unpacked(release: &Release) -> Result<PathBuf> {
    let root = root_of(release);
    let complete = root.with_extension("complete");
    if complete.exists() {
        return Ok(root);
    }
    if host::which("debootstrap").is_none() {
        command::apt_install(&["debootstrap"])?;
    }
    if root.exists() {
        fs::remove_dir_all(&root).with_context(|| format!("cannot remove {}", root.display()))?;
    }
    fs::create_dir_all(&root).with_context(|| format!("cannot make {}", root.display()))?;
    println!("Unpacking Debian {} into {}", release.name, root.display());
    let mut debootstrap = Command::new("debootstrap");
    debootstrap
        .args(["--variant=minbase", "--include"])
        .arg(format!("python3,{}", release.pythons.join(",")))
        .arg(release.name)
        .arg(&root);
    command::run_patiently(&mut debootstrap, Patience::seconds(900))?;
    // What debootstrap mounts there it does not always unmount.
    let proc = root.join("proc");
    if proc.join("self").exists() {
        command::run(Command::new("umount").arg(&proc))?;
    }
    fs::write(&complete, "").with_context(|| format!("cannot write {}", complete.display()))?;
    Ok(root)
}

/// A script that is the interpreter to whoever starts it.
fn shim(root: &Path, python: &str) -> Result<PathBuf> {
    let folder = root.with_extension("pythons");
    fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let shim = folder.join(python);
    let chroot = host::which("chroot").unwrap_or_else(|| "/usr/sbin/chroot".into());
    let (chroot, root) = (chroot.display(), root.display());
    // By its path: a program may be started with another PATH.
    let text = format!("#!/bin/sh\nexec {chroot} '{root}' /usr/bin/{python} \"$@\"\n");
    fs::write(&shim, text).with_context(|| format!("cannot write {}", shim.display()))?;
    fs::set_permissions(&shim, fs::Permissions::from_mode(0o755))
        .with_context(|| format!("cannot make {} executable", shim.display()))?;
    Ok(shim)
}

/// perf and this profiler on the same program, one after the other.
fn compare(profiler: &Path, shim: &Path) -> Result<()> {
    let python = pythons::at(shim).with_context(|| format!("{} does not run", shim.display()))?;
    let seconds = (3 * SECONDS + 4).to_string();
    let workload = Workload::start(&python, "chain", &["--seconds", &seconds])?;
    let pid = workload.pid().to_string();
    let folder = host::target_dir().join("test-roots");

    let folded = folder.join("chain.folded");
    let _ = fs::remove_file(&folded); // of another run: no file is replaced
    let mut ours = Command::new(profiler);
    ours.args(["record", "--quiet", "--frequency", HZ, "--duration"])
        .args([&SECONDS.to_string(), "--pid", &pid, "--output"])
        .arg(&folded);
    command::run(&mut ours)?;
    let text = fs::read_to_string(&folded).context("the profile is not there")?;
    let stacks = text.lines().filter_map(|line| line.rsplit_once(' '));
    let ours = share(stacks.filter_map(|(stack, count)| Some((stack, count.parse().ok()?))));

    let perf = match host::which("perf") {
        Some(perf) => perf_share(&perf, &pid, &folder)?,
        None => "not installed".to_owned(),
    };
    println!(
        "CPython {:<9} pyprof-bpf {ours:<18} perf record -g {perf}",
        python.version_text()
    );
    Ok(())
}

fn perf_share(perf: &Path, pid: &str, folder: &Path) -> Result<String> {
    let data = folder.join("chain.data");
    let mut record = Command::new(perf);
    record
        .args(["record", "-q", "-e", "cpu-clock", "-g", "-F", HZ, "-o"])
        .arg(&data)
        .args(["-p", pid, "--", "sleep", &SECONDS.to_string()]);
    command::run(&mut record)?;
    thread::sleep(Duration::from_millis(100));
    let mut script = Command::new(perf);
    script.args(["script", "-F", "ip,sym", "-i"]).arg(&data);
    let text = command::output(&mut script)?;
    Ok(share(text.split("\n\n").map(|stack| (stack, 1))))
}

/// How many of the stacks have all functions of the chain.
fn share<'a>(stacks: impl Iterator<Item = (&'a str, u64)>) -> String {
    let (mut all, mut whole) = (0, 0);
    for (stack, count) in stacks.filter(|(stack, _)| !stack.trim().is_empty()) {
        all += count;
        let functions = ["py::foo:", "py::bar:", "py::baz:", "py::<module>:"];
        if functions.iter().all(|function| stack.contains(function)) {
            whole += count;
        }
    }
    let percent = 100.0 * whole as f64 / all.max(1) as f64;
    format!("{percent:.2} % of {all}")
}

#[cfg(test)]
mod tests {
    use super::share;

    #[test]
    fn a_stack_counts_when_all_of_the_chain_is_in_it() {
        let whole = "py::<module>:/c.py;py::baz:/c.py;py::bar:/c.py;py::foo:/c.py";
        let stacks = [(whole, 3), ("py::foo:/c.py", 1), ("", 7)];
        assert_eq!(share(stacks.into_iter()), "75.00 % of 4");
    }
}
