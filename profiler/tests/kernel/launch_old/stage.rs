//! Where commands are started, and what is to be seen afterwards.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::PathBuf,
    process::{Command, Output},
};

use crate::suite::{
    recording::{Recording, WHOLE, pyprof, remove_map_of_launched},
    scratch, script,
};

/// A folder for one trial: the programs, and a place for temporary files, which must be empty afterwards.
pub(super) struct Stage {
    files: tempfile::TempDir,
}

impl Stage {
    pub(super) fn new() -> Self {
        let files = scratch();
        // Everybody may look in: the command may be another user's.
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(files.path().join("tmp")).unwrap();
        fs::copy(script("started"), files.path().join("started.py")).unwrap();
        Self { files }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }

    pub(super) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    pub(super) fn write(&self, name: &str, content: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
        path
    }

    /// The program with a command to start; environment and arguments may still be added.
    pub(super) fn command(&self, options: &[&str], words: &[&str]) -> Command {
        let mut command = pyprof();
        command
            .args(["record", "-F", "999", "--output"])
            .arg(self.path("profile.folded"))
            .args(options)
            .arg("--")
            .args(words)
            .current_dir(self.files.path())
            .env("TMPDIR", self.path("tmp"))
            .env("PYTHONDONTWRITEBYTECODE", "1")
            .env_remove("PYTHONPATH");
        command
    }

    /// Runs it to its end. Nothing of ours may be left.
    pub(super) fn run(&self, command: &mut Command) -> (Output, Recording) {
        let output = command.output().unwrap();
        let file = self.path("profile.folded");
        let recording = Recording::of(&output, &file);
        let _ = fs::remove_file(file);
        remove_map_of_launched(&recording);
        assert!(self.leftovers().is_empty(), "{:?}", self.leftovers());
        (output, recording)
    }

    pub(super) fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.path("tmp")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// Most samples are of the function that works, and the Python stack above it is known.
pub(super) fn assert_named(recording: &Recording, callers: &[&str], what: &str) {
    let report = &recording.report;
    assert_eq!(recording.status.code(), Some(0), "{what}: {report}");
    let expected = [callers, &["main", "work"]].concat();
    let shown = recording.share(|stack| stack.python().ends_with(&expected));
    assert!(shown > 0.5, "{what}: {shown} of {report}");
    let working = recording.count(|stack| stack.has("work"));
    let whole = recording.count(|stack| stack.is_whole() && stack.has("work"));
    assert!(
        whole as f64 >= WHOLE * working as f64,
        "{what}: {whole} of {working}: {report}"
    );
}

/// What the command printed behind these words, once for each process.
pub(super) fn said<'o>(output: &'o Output, words: &str) -> Vec<&'o str> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let values = text.lines().filter_map(|line| line.strip_prefix(words));
    values.map(str::trim).collect()
}
