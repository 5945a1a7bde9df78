//! The program at work, and what it wrote.

use std::{
    ffi::OsStr,
    fs,
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use super::{eventually, note, status_field};

/// Stacks that are whole, of all: what the project promises.
pub(super) const WHOLE: f64 = 0.999;

/// In the trial that runs, functions are named by perf maps; in others, as they are by default.
static BY_PERF_MAPS: AtomicBool = AtomicBool::new(true);

/// Whether functions are named by perf maps from now on, until the next trial.
pub(super) fn name_by_perf_maps(yes: bool) {
    BY_PERF_MAPS.store(yes, Ordering::Relaxed);
}

/// The program, away from the environment of whoever runs the tests. Under sudo, commands that it starts would run as
/// another user, who cannot read the tests' files.
pub(super) fn pyprof() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"));
    let foreign = |name: &str| name.starts_with("PYPROF_") || name.starts_with("SUDO_");
    for (name, _) in std::env::vars_os() {
        if foreign(&name.to_string_lossy()) {
            command.env_remove(name);
        }
    }
    let from = if BY_PERF_MAPS.load(Ordering::Relaxed) {
        "perf-map"
    } else {
        "auto"
    };
    command.env("PYPROF_PYTHON_FROM", from);
    command.env_remove("RUST_LOG").stdin(Stdio::null());
    command
}

/// A recording of `pid` with these options to its end: every frame, unless the options say otherwise.
pub(super) fn record(pid: u32, options: &[&str]) -> Recording {
    begin(pid, options).end()
}

/// The same, to be stopped later.
pub(super) fn begin(pid: u32, options: &[&str]) -> Recorder {
    let mut command = pyprof();
    command.args(["--pid", &pid.to_string()]);
    Recorder::start(command, options)
}

/// The program while it records.
pub(super) struct Recorder {
    child: Child,
    file: PathBuf,
    /// Holds `file`, unless that is somewhere else.
    files: Option<tempfile::TempDir>,
}

impl Recorder {
    /// Starts it and waits until it samples, or has ended.
    pub(super) fn start(command: Command, options: &[&str]) -> Self {
        let files = super::scratch();
        let file = files.path().join("profile.folded");
        let mut recorder = Self::start_into(command, &file, options);
        recorder.files = Some(files);
        recorder
    }

    /// The same, with its result in a file of that name.
    pub(super) fn start_into(mut command: Command, file: &Path, options: &[&str]) -> Self {
        command.args(["--output".as_ref(), file.as_os_str()]);
        if !options.contains(&"--view") {
            command.args(["--view", "mixed"]);
        }
        command.args(options).stderr(Stdio::piped());
        let mut recorder = Self {
            child: command.spawn().unwrap(),
            file: file.to_owned(),
            files: None,
        };
        let pid = recorder.pid();
        eventually("sampling", || {
            opened(pid).any(|link| link.as_os_str() == OsStr::new("anon_inode:[perf_event]"))
                || recorder.child.try_wait().unwrap().is_some()
        });
        recorder
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// It has opened this file.
    pub(super) fn has_open(&self, file: &Path) -> bool {
        let name = file.file_name();
        opened(self.pid()).any(|link| link.file_name() == name)
    }

    /// Identifiers of the BPF programs and maps that it holds.
    pub(super) fn bpf_ids(&self, kind: &str) -> Vec<u32> {
        let folder = format!("/proc/{}/fdinfo", self.pid());
        let mut ids: Vec<u32> = fs::read_dir(folder)
            .unwrap()
            .filter_map(|entry| fs::read_to_string(entry.ok()?.path()).ok())
            .filter_map(|text| {
                text.lines()
                    .find_map(|line| line.strip_prefix(kind)?.trim().parse().ok())
            })
            .collect();
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// Waits for its end, noting how much memory it came to need.
    pub(super) fn end(mut self) -> Recording {
        let mut peak_rss_kib = 0;
        while self.child.try_wait().unwrap().is_none() {
            peak_rss_kib = status_field(self.pid(), "VmHWM")
                .unwrap_or(0)
                .max(peak_rss_kib);
            std::thread::sleep(Duration::from_millis(10));
        }
        let output = self.child.wait_with_output().unwrap();
        Recording {
            peak_rss_kib,
            ..Recording::of(&output, &self.file)
        }
    }

    /// Waits for its end; what it said, whatever came of it.
    pub(super) fn output(self) -> Output {
        self.child.wait_with_output().unwrap()
    }
}

fn opened(pid: u32) -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten();
    entries.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
}

/// One line of the folded format.
#[derive(Debug)]
pub(super) struct Stack {
    /// Outermost first.
    pub(super) frames: Vec<String>,
    pub(super) count: u64,
}

impl Stack {
    pub(super) fn is_whole(&self) -> bool {
        !self.is_cut() && !self.begins_with("[no frames]")
    }

    fn is_cut(&self) -> bool {
        self.begins_with("[truncated]")
    }

    /// Behind the process and the thread, where these are told apart.
    fn begins_with(&self, mark: &str) -> bool {
        self.frames.iter().take(3).any(|frame| frame == mark)
    }

    /// Names of the Python functions, outermost first.
    pub(super) fn python(&self) -> Vec<&str> {
        let frames = self.frames.iter();
        frames
            .filter_map(|frame| Some(frame.strip_prefix("py::")?.rsplit_once(':')?.0))
            .collect()
    }

    /// How often a Python function is in it.
    pub(super) fn times(&self, function: &str) -> usize {
        let names = self.python().into_iter();
        names.filter(|name| *name == function).count()
    }

    /// A function of any kind.
    pub(super) fn has(&self, name: &str) -> bool {
        self.frames.iter().any(|frame| frame == name) || self.python().contains(&name)
    }
}

fn read_stacks(file: &Path) -> Vec<Stack> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let stack = |line: &str| {
        let (frames, count) = line
            .rsplit_once(' ')
            .unwrap_or_else(|| panic!("no count: {line}"));
        let frames = frames.split(';').map(str::to_owned).collect();
        Stack {
            frames,
            count: count.parse().unwrap_or_else(|_| panic!("no count: {line}")),
        }
    };
    text.lines().map(stack).collect()
}

/// What a recording wrote.
pub(super) struct Recording {
    pub(super) status: ExitStatus,
    pub(super) stacks: Vec<Stack>,
    pub(super) has_file: bool,
    /// Standard error.
    pub(super) report: String,
    pub(super) peak_rss_kib: u64,
}

impl Recording {
    /// From what the program said and wrote, once it is seen that both count the same.
    pub(super) fn of(output: &Output, file: &Path) -> Self {
        let recording = Self {
            status: output.status,
            stacks: read_stacks(file),
            has_file: file.exists(),
            report: String::from_utf8(output.stderr.clone()).unwrap(),
            peak_rss_kib: 0,
        };
        recording.assert_honest();
        recording
    }

    pub(super) fn samples(&self) -> u64 {
        self.count(|_| true)
    }

    /// Samples whose stack is like this.
    pub(super) fn count(&self, is_such: impl Fn(&Stack) -> bool) -> u64 {
        self.stacks
            .iter()
            .filter(|stack| is_such(stack))
            .map(|stack| stack.count)
            .sum()
    }

    /// Of all.
    pub(super) fn share(&self, is_such: impl Fn(&Stack) -> bool) -> f64 {
        self.count(is_such) as f64 / self.samples() as f64
    }

    pub(super) fn whole(&self) -> impl Iterator<Item = &Stack> {
        self.stacks.iter().filter(|stack| stack.is_whole())
    }

    /// It went well, and there is enough to judge by.
    pub(super) fn assert_done(&self, samples_min: u64) -> &Self {
        assert_eq!(self.status.code(), Some(0), "{}", self.report);
        assert!(
            self.samples() >= samples_min,
            "{} samples only: {}",
            self.samples(),
            self.report
        );
        self
    }

    /// So many of the stacks are whole. The counts are noted.
    pub(super) fn assert_whole(&self, least: f64) -> &Self {
        let (whole, all) = (self.count(Stack::is_whole), self.samples());
        let cut: Vec<String> = self
            .stacks
            .iter()
            .filter(|stack| !stack.is_whole())
            .map(|stack| format!("{} {}", stack.count, stack.frames.join(";")))
            .collect();
        let about_stacks = self
            .report
            .lines()
            .find(|line| line.contains("of the stacks"))
            .unwrap_or_default();
        note(format!("{whole} of {all} whole; {about_stacks}"));
        assert!(
            whole as f64 >= least * all as f64,
            "{whole} of {all}\n{}\n{}",
            self.report,
            cut.join("\n")
        );
        self
    }

    /// Every sample that the kernel took is in the file or counted as lost. Needs `--bpf-stats`. Gives the number of
    /// those that were lost.
    pub(super) fn assert_all_accounted_for(&self) -> u64 {
        let report = &self.report;
        let (_, taken) = report.split_once(" samples=").unwrap();
        let taken: u64 = taken.split(' ').next().unwrap().parse().unwrap();
        let lost = report
            .lines()
            .find_map(|line| number_before(line.strip_prefix("lost ")?, " sample"))
            .unwrap_or(0);
        note(format!("{taken} taken, {lost} lost"));
        assert_eq!(self.samples() + lost, taken, "{report}");
        lost
    }

    /// None was lost.
    pub(super) fn assert_none_lost(&self) -> &Self {
        assert!(!self.report.contains("lost "), "{}", self.report);
        self
    }

    /// The report counts the same as the file: each sample is whole, or cut short for a reason that is told.
    fn assert_honest(&self) {
        let Some(said) = number_before(&self.report, " samples at ") else {
            return;
        };
        assert_eq!(said, self.samples(), "{}", self.report);
        let causes = self
            .report
            .lines()
            .find_map(|line| line.split_once(" cut short ("));
        let causes = causes.map_or("", |(_, causes)| causes).split(", ");
        let causes = causes.filter_map(|cause| {
            let (count, why) = cause.split_once(' ')?;
            Some((number(count)?, why))
        });
        let causes: Vec<(u64, &str)> = causes.collect();
        let of = |is_such: fn(&str) -> bool| -> u64 {
            let such = causes.iter().filter(|(_, why)| is_such(why));
            such.map(|(count, _)| count).sum()
        };
        let said = number_before(&self.report, " cut short").unwrap_or(0);
        assert_eq!(of(|_| true), said, "{}", self.report);
        // What lacks native frames alone begins where it does.
        let cut = of(|why| !why.starts_with("in native code"));
        assert_eq!(cut, self.count(Stack::is_cut), "{}", self.report);
    }
}

/// Removes the perf map of a command that the program started: only its report says which process that was.
pub(super) fn remove_map_of_launched(recording: &Recording) {
    let pid = recording
        .report
        .split_once(" of pid ")
        .map(|(_, rest)| rest);
    if let Some(pid) = pid.and_then(|rest| rest.split(' ').next()?.parse().ok()) {
        super::running::remove_perf_map(pid);
    }
}

/// The number in front of `words`, written with or without separators.
pub(super) fn number_before(text: &str, words: &str) -> Option<u64> {
    let before = &text[..text.find(words)?];
    number(before.rsplit([' ', '\n']).next()?)
}

fn number(text: &str) -> Option<u64> {
    text.replace(',', "").parse().ok()
}
