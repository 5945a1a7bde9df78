//! Places that were fit for the result when the recording began, and are not when it ends.

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use rustix::process::Signal;

use super::{
    Python, Skip, Test, Verdict, busy, let_work,
    recording::{Recorder, Recording, pyprof},
    running::signal,
    scratch, skip,
};

pub(super) const TESTS: &[Test] = &[
    ("a_full_disk_is_told_and_the_profile_kept", full),
    (
        "a_disk_that_becomes_read_only_is_told_and_the_profile_kept",
        read_only,
    ),
    ("a_removed_directory_is_told_and_the_profile_kept", removed),
    ("a_directory_that_was_made_anew_gets_the_profile", made_anew),
    ("one_place_that_is_gone_does_not_cost_the_other", one_of_two),
    ("a_limit_on_file_sizes_is_an_error_not_the_end", limited),
];

/// CPU time of the target that gives some hundred samples.
const WORK: Duration = Duration::from_millis(300);

/// Where the result is to go, and where it goes when that is impossible.
struct Places {
    files: tempfile::TempDir,
}

impl Places {
    fn new() -> Self {
        let files = scratch();
        for name in ["out", "fallback"] {
            fs::create_dir(files.path().join(name)).unwrap();
        }
        Self { files }
    }

    fn out(&self) -> PathBuf {
        self.files.path().join("out")
    }

    fn fallback(&self) -> PathBuf {
        self.files.path().join("fallback")
    }

    fn command(&self, target: u32) -> Command {
        let mut command = pyprof();
        command
            .env("TMPDIR", self.fallback())
            .args(["--pid", &target.to_string(), "-F", "999"]);
        command
    }

    fn start(&self, command: Command, target: u32) -> Recorder {
        let recorder = Recorder::start_into(command, &self.out().join("profile.folded"), &[]);
        let_work(target, WORK);
        recorder
    }

    /// The same with a small file system of its own at `out`.
    fn start_on_tmpfs(&self, target: u32) -> Result<Recorder, Skip> {
        let usable = Command::new("unshare").args(["--mount", "true"]).output();
        if !usable.is_ok_and(|done| done.status.success()) {
            return skip("mount namespaces cannot be made here");
        }
        let profiler = self.command(target);
        let mut command = Command::new("unshare");
        command
            .args(["--mount", "--propagation", "private", "sh", "-c"])
            .arg("mount -t tmpfs -o size=64k none \"$0\" && exec \"$@\"")
            .arg(self.out())
            .arg(profiler.get_program())
            .args(profiler.get_args())
            .env("TMPDIR", self.fallback());
        Ok(self.start(command, target))
    }

    /// The result is not where it should be, which is reported with this reason, but whole in the fallback directory.
    fn assert_kept(&self, recorder: Recorder, reason: &str) -> Recording {
        signal(recorder.pid(), Signal::INT);
        let output = recorder.output();
        let report = String::from_utf8(output.stderr.clone()).unwrap();
        assert_eq!(output.status.code(), Some(1), "{report}");
        let error = report.lines().find(|line| line.starts_with("error: "));
        assert!(error.is_some_and(|line| line.contains(reason)), "{report}");
        let files = names(&self.fallback());
        let [kept] = files.as_slice() else {
            panic!("{files:?}: {report}");
        };
        let kept = self.fallback().join(kept);
        let told = format!("The profile is not lost: it is in {}", kept.display());
        assert!(report.contains(&told), "{report}");
        let mode = fs::metadata(&kept).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        // Which also sees whether it has as many samples as were told.
        let recording = Recording::of(&output, &kept);
        assert!(recording.samples() >= 50, "{report}");
        recording
    }
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn full(python: &Python) -> Verdict {
    let target = busy(python);
    let places = Places::new();
    let recorder = places.start_on_tmpfs(target.pid())?;
    // What it sees there, nobody else does.
    let seen = format!("/proc/{}/root{}", recorder.pid(), places.out().display());
    let folder = fs::File::open(&seen).unwrap();
    let mut filler = fs::File::create(Path::new(&seen).join("filler")).unwrap();
    while filler.write_all(&[0; 4096]).is_ok() {}
    places.assert_kept(recorder, "No space left on device");
    // Of what was begun nothing is left. The folder outlives the namespace.
    let folder = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&folder));
    assert_eq!(names(Path::new(&folder)), ["filler"]);
    Ok(())
}

fn read_only(python: &Python) -> Verdict {
    let target = busy(python);
    let places = Places::new();
    let recorder = places.start_on_tmpfs(target.pid())?;
    let remounted = Command::new("nsenter")
        .args(["--mount", "--target", &recorder.pid().to_string()])
        .args(["mount", "-o", "remount,ro"])
        .arg(places.out())
        .status();
    assert!(remounted.is_ok_and(|status| status.success()));
    places.assert_kept(recorder, "Read-only file system");
    Ok(())
}

fn removed(python: &Python) -> Verdict {
    let target = busy(python);
    let places = Places::new();
    let recorder = places.start(places.command(target.pid()), target.pid());
    fs::remove_dir(places.out()).unwrap(); // so it was empty
    places.assert_kept(recorder, "No such file or directory");
    Ok(())
}

fn made_anew(python: &Python) -> Verdict {
    let target = busy(python);
    let places = Places::new();
    let recorder = places.start(places.command(target.pid()), target.pid());
    fs::remove_dir(places.out()).unwrap();
    fs::create_dir(places.out()).unwrap();
    signal(recorder.pid(), Signal::INT);
    recorder.end().assert_done(50);
    assert_eq!(names(&places.out()), ["profile.folded"]);
    Ok(())
}

fn one_of_two(python: &Python) -> Verdict {
    let target = busy(python);
    let places = Places::new();
    let picture = places.files.path().join("profile.svg");
    let mut command = places.command(target.pid());
    command
        .arg("--output")
        .arg(places.out().join("first.folded"));
    let recorder = Recorder::start_into(command, &picture, &[]);
    let_work(target.pid(), WORK);
    fs::remove_dir(places.out()).unwrap();
    places.assert_kept(recorder, "No such file or directory");
    assert!(fs::read_to_string(picture).unwrap().ends_with("</svg>"));
    Ok(())
}

/// The kernel sends a signal that ends programs which do not expect it, and here no place is better than another.
fn limited(python: &Python) -> Verdict {
    let target = busy(python);
    let places = Places::new();
    let profiler = places.command(target.pid());
    let mut command = Command::new("prlimit");
    command
        .arg("--fsize=0:0")
        .arg(profiler.get_program())
        .args(profiler.get_args())
        .env("TMPDIR", places.fallback());
    let recorder = places.start(command, target.pid());
    signal(recorder.pid(), Signal::INT);
    let output = recorder.output();
    let report = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{report}");
    assert!(report.contains("File too large"), "{report}");
    assert!(report.lines().count() <= 5, "{report}");
    assert!(names(&places.out()).is_empty() && names(&places.fallback()).is_empty());
    Ok(())
}
