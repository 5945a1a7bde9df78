//! The interpreters, and a program that runs in one of them while it is switched.

use std::{
    collections::{BTreeMap, BTreeSet},
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

/// An interpreter.
#[derive(Clone)]
pub(super) struct Python {
    pub(super) path: PathBuf,
    pub(super) version: (u32, u32, u32),
}

impl Python {
    /// One of each minor version from 3.9 on.
    pub(super) fn all() -> Vec<Self> {
        let listed = ["PYPROF_TEST_PYTHONS", "PYPROF_TEST_OLD_PYTHONS"]
            .map(|name| env::var_os(name).unwrap_or_default());
        let mut paths: Vec<PathBuf> = listed.iter().flat_map(env::split_paths).collect();
        if paths.iter().all(|path| path.as_os_str().is_empty()) {
            let pyenv = env::home_dir().unwrap_or_default().join(".pyenv/versions");
            let versions = fs::read_dir(pyenv).into_iter().flatten().flatten();
            paths = versions
                .map(|version| version.path().join("bin/python3"))
                .collect();
        }
        let mut found = BTreeMap::new();
        for python in paths.into_iter().filter_map(Self::ask) {
            found
                .entry((python.version.0, python.version.1))
                .or_insert(python);
        }
        let new_enough = |python: &Self| python.version >= (3, 9, 0);
        found.into_values().filter(new_enough).collect()
    }

    fn ask(path: PathBuf) -> Option<Self> {
        let code = "import sys; print(sys.implementation.name, *sys.version_info[:3])";
        let output = Command::new(&path).args(["-S", "-c", code]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let mut words = text.strip_prefix("cpython ")?.split_whitespace();
        let mut number = || words.next()?.parse().ok();
        let version = (number()?, number()?, number()?);
        Some(Self { path, version })
    }

    pub(super) fn takes_requests(&self) -> bool {
        self.version >= (3, 14, 0)
    }

    /// Cpython issue 146522.
    pub(super) fn crashes_the_second_time(&self) -> bool {
        matches!(self.version, (3, 14, 3..) | (3, 15.., _))
    }

    /// The folder that it is installed in, of one that has a folder of its own. Behind the links of a
    /// virtual environment, which has no libpython.
    pub(super) fn prefix(&self) -> Option<PathBuf> {
        let program = fs::canonicalize(&self.path).ok()?;
        let prefix = program.ancestors().nth(2)?.to_owned();
        (prefix.join("lib").is_dir() && prefix != Path::new("/usr")).then_some(prefix)
    }

    pub(super) fn command(&self, mode: &str) -> Command {
        let mut command = Command::new(&self.path);
        // Not by its path: it may run in another root.
        command.args(["-c", include_str!("target.py"), mode]);
        command
            .env_remove("PYTHONPERFSUPPORT")
            .env_remove("PYTHONPATH");
        command
    }

    pub(super) fn start(&self, mode: &str) -> Running {
        Running::start(&mut self.command(mode))
    }
}

/// A process that ends with the test.
pub(super) struct Running {
    pub(super) child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    errors: tempfile::NamedTempFile,
    pub(super) files_before: BTreeSet<String>,
}

impl Running {
    /// Starts it and waits until it says `ready`.
    pub(super) fn start(command: &mut Command) -> Self {
        let errors = tempfile::NamedTempFile::new().unwrap();
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.reopen().unwrap())
            .spawn()
            .unwrap();
        let mut running = Self {
            input: child.stdin.take().unwrap(),
            output: BufReader::new(child.stdout.take().unwrap()),
            child,
            errors,
            files_before: BTreeSet::new(),
        };
        running.expect("ready");
        running.files_before = running.files();
        // That of an earlier process with its pid.
        let _ = fs::remove_file(running.map());
        running
    }

    pub(super) fn pid(&self) -> String {
        self.child.id().to_string()
    }

    pub(super) fn root(&self) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root", self.pid()))
    }

    /// Our files in its `/tmp`.
    pub(super) fn files(&self) -> BTreeSet<String> {
        // Of a process that has ended there is no root any more.
        let entries = fs::read_dir(self.root().join("tmp")).into_iter().flatten();
        let names = entries
            .flatten()
            .map(|entry| entry.file_name().to_string_lossy().into_owned());
        names
            .filter(|name| name.starts_with("pyprof-activate-"))
            .collect()
    }

    pub(super) fn new_files(&self) -> Vec<String> {
        let files = self.files();
        files.difference(&self.files_before).cloned().collect()
    }

    pub(super) fn map(&self) -> PathBuf {
        self.root().join(format!("tmp/perf-{}.map", self.pid()))
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(super) fn expect(&mut self, line: &str) {
        let said = self.line();
        let errors = fs::read_to_string(self.errors.path()).unwrap();
        assert_eq!(said, line, "{errors}");
    }

    /// Lets it go on.
    pub(super) fn say(&mut self) {
        writeln!(self.input, "go").unwrap();
    }

    pub(super) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// It lives, said nothing on standard error, and nothing of ours is left in its `/tmp`.
    pub(super) fn assert_unharmed(&mut self) {
        assert!(self.child.try_wait().unwrap().is_none(), "it lives");
        assert_eq!(fs::read_to_string(self.errors.path()).unwrap(), "");
        assert_eq!(self.new_files(), Vec::<String>::new());
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.map());
        for file in self.new_files() {
            let _ = fs::remove_file(self.root().join("tmp").join(file));
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
