//! Interpreters whose code runs from another place than their file, and from files that nobody else may read.

use std::{
    fs,
    os::unix::fs::{FileExt as _, PermissionsExt as _},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use rustix::process::Signal;

use super::{
    Python, Skip, Test, Verdict,
    compiled::{Copied, compile},
    eventually,
    recording::{Recording, WHOLE, begin, record},
    running::{Running, signal},
    scratch, skip, workload,
};

pub(super) const TESTS: &[Test] = &[
    ("code_that_was_copied_to_other_memory_is_unwound", copied),
    ("code_that_moves_during_the_recording_is_unwound", moves),
    ("code_that_differs_from_its_file_is_reported", changed),
    ("files_that_root_may_not_read_are_read_from_memory", on_fuse),
];

const OPTIONS: [&str; 6] = ["-F", "999", "-d", "2", "--python-from", "auto"];
const ENOUGH: u64 = 100;

/// The library that moves code.
fn mover(folder: &Path) -> Result<PathBuf, Skip> {
    let library = folder.join("libmoved.so");
    compile("moved.c", &["-shared", "-fPIC"], &library)?;
    Ok(library)
}

/// A command line without trampolines whose interpreter is that of a file of its own, and moves so.
fn moving(copy: &Copied, mover: &Path, how: &str) -> Command {
    let mut command = copy.python.plain();
    command.arg(workload("chain")).env("PYTHONHOME", &copy.home);
    let preloaded = if copy.preload {
        format!("{} {}", copy.file.display(), mover.display())
    } else {
        mover.display().to_string()
    };
    command.env("LD_PRELOAD", preloaded);
    command.env("MOVED_FILE", &copy.file).env("MOVED_HOW", how);
    command
}

/// Parts of the file that are mapped as code from it.
fn mapped_code(target: &Running, file: &Path) -> usize {
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let file = file.to_str().unwrap();
    let lines = maps.lines();
    lines
        .filter(|line| line.contains(" r-xp ") && line.contains(file))
        .count()
}

fn assert_chain(recording: &Recording, what: &str) {
    recording.assert_done(ENOUGH).assert_whole(WHOLE);
    for stack in recording.whole() {
        let python = stack.python();
        assert_eq!(
            python,
            ["<module>", "baz", "bar", "foo"],
            "{what}: {stack:?}"
        );
        // The interpreter's own functions have names.
        assert!(stack.has("Py_RunMain"), "{what}: {stack:?}");
    }
}

fn copied(python: &Python) -> Verdict {
    let files = scratch();
    let (copy, mover) = (Copied::new(python, files.path()), mover(files.path())?);
    for (how, left) in [
        ("copied", 0),
        ("remapped", 0),
        ("middle", 2),
        ("halves", 0),
        ("memfd", 0),
    ] {
        let target = Running::start(&mut moving(&copy, &mover, how));
        assert_eq!(mapped_code(&target, &copy.file), left, "{how}");
        let recording = record(target.pid(), &OPTIONS);
        assert_chain(&recording, how);
        assert!(
            !recording.report.contains("in 1 file"),
            "{}",
            recording.report
        );
    }
    // Through the process, if the file has no name any more.
    let target = Running::start(&mut moving(&copy, &mover, "copied"));
    fs::remove_file(&copy.file).unwrap();
    assert_chain(&record(target.pid(), &OPTIONS), "deleted");
    Ok(())
}

fn moves(python: &Python) -> Verdict {
    let files = scratch();
    let (copy, mover) = (Copied::new(python, files.path()), mover(files.path())?);
    let target = Running::start(moving(&copy, &mover, "copied").env("MOVED_LATE", "1"));
    let recorder = begin(target.pid(), &OPTIONS);
    assert_eq!(mapped_code(&target, &copy.file), 1);
    signal(target.pid(), Signal::USR1);
    eventually("moving", || mapped_code(&target, &copy.file) == 0);
    assert_chain(&recorder.end(), "late");
    Ok(())
}

/// The copy is as it was, and the file is not: nobody can tell which of both was changed.
fn changed(python: &Python) -> Verdict {
    let files = scratch();
    let (copy, mover) = (Copied::new(python, files.path()), mover(files.path())?);
    let target = Running::start(&mut moving(&copy, &mover, "copied"));
    let maps = fs::read_to_string(format!("/proc/{}/maps", target.pid())).unwrap();
    let file = copy.file.to_str().unwrap();
    // The code lies between the first two mappings of the file.
    let own = || maps.lines().filter(|line| line.contains(file));
    let offset = |line: &str| u64::from_str_radix(line.split(' ').nth(2).unwrap(), 16).unwrap();
    let (first, next) = (own().next().unwrap(), own().nth(1).unwrap());
    let bounds: Vec<u64> = first
        .split(' ')
        .next()
        .unwrap()
        .split('-')
        .map(|at| u64::from_str_radix(at, 16).unwrap())
        .collect();
    let (begin, end) = (offset(first) + bounds[1] - bounds[0], offset(next));
    let opened = fs::File::options().write(true).open(&copy.file).unwrap();
    for page in (begin..end).step_by(4096) {
        opened.write_all_at(&[0xcc; 64], page).unwrap();
    }
    drop(opened);
    let recording = record(target.pid(), &OPTIONS);
    recording.assert_done(ENOUGH);
    assert!(
        recording.report.contains("runs other code in their place"),
        "{}",
        recording.report
    );
    // Frames of the interpreter need none of its code.
    let chain = recording.share(|stack| stack.python() == ["<module>", "baz", "bar", "foo"]);
    assert!(chain > 0.9, "{}", recording.report);
    let named = recording.count(|stack| stack.has("Py_RunMain"));
    assert_eq!(named, 0, "{}", recording.report);
    Ok(())
}

/// A file system that an ordinary user serves. The kernel asks it on behalf of nobody else, root included.
struct Served {
    folder: tempfile::TempDir,
    server: std::process::Child,
}

impl Served {
    const USER: &str = "65534";

    fn start(shown: &Path) -> Result<Self, Skip> {
        let folder = tempfile::tempdir_in("/var/tmp").unwrap();
        let (source, place) = (folder.path().join("source"), folder.path().join("place"));
        for folder in [&source, &place] {
            fs::create_dir(folder).unwrap();
        }
        let own = Command::new("chown").arg(Self::USER).arg(&place).status();
        assert!(own.is_ok_and(|status| status.success()));
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(folder.path(), open).unwrap();
        // Not through root's home, which is closed to others.
        let script = "mount --bind \"$0\" \"$1\" && exec setpriv --reuid=65534 --regid=65534 --clear-groups \
                      bindfs --no-allow-other -f \"$1\" \"$2\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", script]);
        command.arg(shown).arg(&source).arg(&place);
        let server = command.stderr(Stdio::null()).spawn().unwrap();
        let served = Self { folder, server };
        let bindfs = Command::new("bindfs").arg("--version").output();
        if bindfs.is_err() || !Path::new("/dev/fuse").exists() {
            return skip("there is no bindfs, which serves files to one user alone");
        }
        for _ in 0..500 {
            let mounts = fs::read_to_string(format!("/proc/{}/mounts", served.server.id()));
            if mounts.is_ok_and(|text| text.contains(&format!("{} fuse", place.display()))) {
                return Ok(served);
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        skip("bindfs cannot mount anything here")
    }

    /// A command that its user runs where that file system is seen.
    fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.server.id()));
        command.args([
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
        ]);
        command.arg(self.folder.path().join("place").join(program));
        command
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

fn on_fuse(python: &Python) -> Verdict {
    let program = fs::canonicalize(&python.path).unwrap();
    let prefix = program.ancestors().nth(2).unwrap();
    let served = Served::start(prefix)?;
    let mut command = served.command(program.strip_prefix(prefix).unwrap());
    let chain = served.folder.path().join("chain");
    fs::create_dir(&chain).unwrap();
    for name in ["chain.py", "common.py"] {
        let from = workload("chain").with_file_name(name);
        fs::copy(from, chain.join(name)).unwrap();
    }
    command.env("LD_LIBRARY_PATH", served.folder.path().join("place/lib"));
    let target = Running::start(command.arg(chain.join("chain.py")));
    let entry = format!("/proc/{}/exe", target.pid());
    assert!(fs::File::open(entry).is_err(), "root cannot read it");
    let recording = record(target.pid(), &OPTIONS);
    assert_chain(&recording, "served");
    assert!(
        recording.report.contains("read from the memory"),
        "{}",
        recording.report
    );
    let doctor = super::recording::pyprof()
        .args(["doctor", "--pid", &target.pid().to_string()])
        .output()
        .unwrap();
    let text = String::from_utf8(doctor.stdout).unwrap();
    assert!(text.contains("read from memory"), "{text}");
    Ok(())
}
