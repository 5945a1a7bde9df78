//! Generated code that is named through `profiler-trampoline`, as profilers show it: this one, Linux perf and samply.
//!
//! The programs are the examples of that crate, `jit.rs` and `jit.c`: `jit::outer` calls `jit::inner` three times and
//! `jit::leaf2` once, each as long as the other. Trials need root, as the other `kernel` ones do; where a program is
//! missing they say so and count as skipped.

#![expect(clippy::print_stdout, reason = "what was measured is worth reading")]
#![expect(clippy::unwrap_used, reason = "a test that cannot go on has failed")]

use std::{
    collections::HashMap,
    env,
    ffi::OsStr,
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, ExitCode, Output, Stdio},
    sync::Mutex,
};

use children::EndChildren;
use libtest_mimic::{Arguments, Completion, Trial};

#[path = "support/children.rs"]
mod children;

type Verdict = Result<(), Skip>;
type Test = fn(&Path, &Path) -> Verdict;

/// Why a trial cannot run here.
struct Skip(String);

const SAMPLES_MIN: u64 = 300;
static NOTES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn main() -> ExitCode {
    children::supervised(run_all)
}

fn run_all() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(1);
    let tests: [(&str, Test); 3] = [
        ("pyprof_bpf_names_generated_code", pyprof_bpf),
        ("perf_names_generated_code", perf),
        ("samply_names_generated_code", samply),
    ];
    let mut trials = Vec::new();
    for (language, find) in [
        ("rust", rust as fn(&Path) -> Result<PathBuf, Skip>),
        ("c", c),
    ] {
        for (name, test) in tests {
            trials.push(Trial::ignorable_test(
                format!("{language}::{name}"),
                move || {
                    Ok(match run(find, test) {
                        Ok(()) => Completion::Completed,
                        Err(Skip(why)) => Completion::ignored_with(why),
                    })
                },
            ));
        }
    }
    let pythons = env::var_os("PYPROF_TEST_PYTHONS").unwrap_or_default();
    for python in env::split_paths(&pythons) {
        let name = format!("samply_names_python_functions::{}", python.display());
        trials.push(Trial::ignorable_test(name, move || {
            let folder = tempfile::tempdir()?;
            Ok(match if_root(|| samply_on_python(&python, folder.path())) {
                Ok(()) => Completion::Completed,
                Err(Skip(why)) => Completion::ignored_with(why),
            })
        }));
    }
    trials.push(Trial::ignorable_test(
        "node_is_walked_by_its_frame_pointers",
        || {
            Ok(match if_root(node) {
                Ok(()) => Completion::Completed,
                Err(Skip(why)) => Completion::ignored_with(why),
            })
        },
    ));
    let conclusion = libtest_mimic::run(&arguments, trials);
    for note in NOTES.lock().unwrap().iter() {
        println!("{note}");
    }
    conclusion.exit_code()
}

fn if_root(trial: impl FnOnce() -> Verdict) -> Verdict {
    if rustix::process::geteuid().is_root() {
        let _end = EndChildren;
        trial()
    } else {
        Err(Skip(
            "only root can load BPF programs everywhere".to_owned(),
        ))
    }
}

fn run(find: fn(&Path) -> Result<PathBuf, Skip>, test: Test) -> Verdict {
    if_root(|| run_example(find, test))
}

fn run_example(find: fn(&Path) -> Result<PathBuf, Skip>, test: Test) -> Verdict {
    if !cfg!(target_arch = "x86_64") {
        return Err(Skip("the examples make code for x86-64".to_owned()));
    }
    let folder = tempfile::tempdir().unwrap();
    let program = find(folder.path())?;
    test(&program, folder.path())
}

/// The folder that cargo puts test programs and libraries into.
fn built() -> PathBuf {
    env::current_exe().unwrap().parent().unwrap().to_owned()
}

/// The example in Rust, which cargo builds along with the tests of its own package.
fn rust(_: &Path) -> Result<PathBuf, Skip> {
    let program = built().parent().unwrap().join("examples/jit");
    if program.is_file() {
        Ok(program)
    } else {
        let make = "cargo build -p profiler-trampoline --example jit";
        Err(Skip(format!(
            "the example is not built: `{make}` does that"
        )))
    }
}

/// The example in C, through the header and the shared object.
fn c(folder: &Path) -> Result<PathBuf, Skip> {
    let library = built().join("libpyprof_trampoline.so");
    if !library.is_file() {
        let make = "cargo build -p profiler-trampoline --example jit";
        return Err(Skip(format!(
            "the shared object is not built: `{make}` does that"
        )));
    }
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler-trampoline");
    let program = folder.join("jit");
    let mut cc = Command::new("cc");
    cc.args([
        "-std=c99",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-pedantic",
        "-O2",
    ])
    .args(["-fno-omit-frame-pointer", "-I"])
    .arg(package.join("include"))
    .arg(package.join("examples/jit.c"))
    .arg(&library)
    .arg("-o")
    .arg(&program)
    .arg(format!("-Wl,-rpath,{}", built().display()));
    succeed(&mut cc)?;
    Ok(program)
}

/// Runs a program that is to succeed; one that is not there is a reason to skip.
fn succeed(command: &mut Command) -> Result<Output, Skip> {
    match command.stdin(Stdio::null()).output() {
        Err(err) => {
            let name = command.get_program().to_string_lossy().into_owned();
            Err(Skip(format!("cannot start {name}: {err}")))
        }
        Ok(done) => {
            let said = String::from_utf8_lossy(&done.stderr);
            assert!(done.status.success(), "{command:?}: {said}");
            Ok(done)
        }
    }
}

/// The example while it runs.
struct Running(Child);

impl Running {
    fn start(program: &Path) -> Self {
        Self::spawn(Command::new(program).args(["--seconds", "60"]))
            .unwrap_or_else(|Skip(why)| panic!("{why}"))
    }

    /// A program that says when it is ready; one that is not there is a reason to skip.
    fn spawn(command: &mut Command) -> Result<Self, Skip> {
        let name = command.get_program().to_string_lossy().into_owned();
        let mut child = command
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|err| Skip(format!("cannot start {name}: {err}")))?;
        let mut line = String::new();
        let output = child.stdout.take().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Ok(Self(child))
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
        remove_map(&self.pid());
    }
}

fn remove_map(pid: &str) {
    let _ = fs::remove_file(format!("/tmp/perf-{pid}.map"));
}

/// The innermost frame and its caller, with their count.
type Ends = HashMap<(String, String), u64>;

/// Three quarters are `jit::inner`, one is `jit::leaf2`, and both stand on `jit::outer`.
fn assert_shares(who: &str, ends: &Ends) {
    let count = |is_such: &dyn Fn(&str, &str) -> bool| -> u64 {
        ends.iter()
            .filter(|((leaf, caller), _)| is_such(leaf, caller))
            .map(|(_, count)| count)
            .sum()
    };
    let all = count(&|_, _| true);
    assert!(all >= SAMPLES_MIN, "{who}: {all} samples only");
    let share = |part: u64| part as f64 / all as f64;
    let inner = share(count(&|leaf, _| leaf == "jit::inner"));
    let leaf2 = share(count(&|leaf, _| leaf == "jit::leaf2"));
    let on_outer = share(count(&|leaf, caller| {
        ["jit::inner", "jit::leaf2"].contains(&leaf) && caller == "jit::outer"
    }));
    let note = format!(
        "{who}: {:.1} % jit::inner, {:.1} % jit::leaf2; {:.1} % of all called by jit::outer",
        100.0 * inner,
        100.0 * leaf2,
        100.0 * on_outer
    );
    assert!((inner - 0.75).abs() < 0.08, "{note}\n{ends:?}");
    assert!((leaf2 - 0.25).abs() < 0.08, "{note}\n{ends:?}");
    assert!(on_outer > 0.97, "{note}\n{ends:?}");
    NOTES.lock().unwrap().push(note);
}

fn pyprof_bpf(program: &Path, folder: &Path) -> Verdict {
    let target = Running::start(program);
    for view in ["python", "mixed", "native"] {
        let output = folder.join(format!("{view}.folded"));
        let mut command = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"));
        command
            .args([
                "--pid",
                &target.pid(),
                "--view",
                view,
                "-F",
                "499",
                "-d",
                "2",
                "--output",
            ])
            .arg(&output);
        let done = succeed(&mut command)?;
        let text = fs::read_to_string(output).unwrap();
        let mut ends = Ends::new();
        for (stack, count) in stacks(&text) {
            let mut frames = stack.rsplit(';').map(str::to_owned);
            let leaf = frames.next().unwrap_or_default();
            let caller = frames.next().unwrap_or_default();
            *ends.entry((leaf, caller)).or_default() += count;
        }
        assert_whole(&text);
        assert_shares(&format!("pyprof-bpf --view {view}"), &ends);
        let report = String::from_utf8_lossy(&done.stderr).into_owned();
        let stacks = report.lines().find(|line| line.contains("of the stacks"));
        NOTES
            .lock()
            .unwrap()
            .extend(stacks.map(|line| format!("pyprof-bpf: {line}")));
    }
    Ok(())
}

fn stacks(folded: &str) -> impl Iterator<Item = (&str, u64)> {
    folded.lines().map(|line| {
        let (stack, count) = line.rsplit_once(' ').unwrap();
        (stack, count.parse().unwrap())
    })
}

/// Generated code that keeps a frame pointer does not end the walk.
fn assert_whole(folded: &str) {
    let count = |is_such: &dyn Fn(&str) -> bool| -> u64 {
        let such = stacks(folded).filter(|(stack, _)| is_such(stack));
        such.map(|(_, count)| count).sum()
    };
    let (all, cut) = (
        count(&|_| true),
        count(&|stack| stack.contains("[truncated]")),
    );
    assert!(cut * 100 <= all, "{cut} of {all} are cut short\n{folded}");
}

/// V8's code keeps a frame pointer, its own and that of its parts in the program file, which has no unwind information.
fn node() -> Verdict {
    const PROGRAM: &str = "
        function inner(n) { let sum = 0; for (let i = 0; i < n; i++) sum += Math.sqrt(i) % 7; return sum; }
        function outer() { const end = Date.now() + 60000; while (Date.now() < end) inner(20000); }
        console.log('ready'); outer();";
    let mut command = Command::new("node");
    command.args(["--perf-basic-prof", "-e", PROGRAM]);
    let target = Running::spawn(&mut command)?;
    let mut record = Command::new(env!("CARGO_BIN_EXE_pyprof-bpf"));
    record
        .args(["--pid", &target.pid(), "--view", "mixed", "-F", "499"])
        .args(["-d", "2", "--format", "folded", "--output", "-"])
        .stderr(Stdio::null());
    let done = succeed(&mut record)?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_whole(&text);
    let of_outer: u64 = stacks(&text)
        .filter(|(stack, _)| stack.contains("outer"))
        .map(|(_, count)| count)
        .sum();
    assert!(of_outer >= SAMPLES_MIN, "{text}");
    Ok(())
}

fn perf(program: &Path, folder: &Path) -> Verdict {
    let target = Running::start(program);
    let data = folder.join("perf.data");
    let mut record = Command::new("perf");
    record
        .args([
            "record",
            "-q",
            "-g",
            "-e",
            "cpu-clock:u",
            "-F",
            "499",
            "-p",
            &target.pid(),
            "-o",
        ])
        .arg(&data)
        .args(["sleep", "2"]);
    succeed(&mut record)?;

    let mut script = Command::new("perf");
    script.args(["script", "-F", "ip,sym", "-i"]).arg(&data);
    let text = String::from_utf8(succeed(&mut script)?.stdout).unwrap();
    let mut ends = Ends::new();
    for sample in text
        .split("\n\n")
        .filter(|sample| !sample.trim().is_empty())
    {
        // An address, a blank, the name; innermost first.
        let mut names = sample
            .lines()
            .filter_map(|line| Some(line.trim().split_once(' ')?.1.to_owned()));
        let leaf = names.next().unwrap_or_default();
        let caller = names.next().unwrap_or_default();
        *ends.entry((leaf, caller)).or_default() += 1;
    }
    assert_shares("perf script", &ends);

    let mut report = Command::new("perf");
    report
        .args([
            "report",
            "--stdio",
            "--no-children",
            "-g",
            "none",
            "-F",
            "overhead,sym",
            "-i",
        ])
        .arg(&data);
    let text = String::from_utf8(succeed(&mut report)?.stdout).unwrap();
    let first = text
        .lines()
        .find(|line| !line.starts_with('#') && !line.trim().is_empty());
    assert!(
        first.is_some_and(|line| line.ends_with("jit::inner")),
        "{text}"
    );
    Ok(())
}

fn samply(program: &Path, folder: &Path) -> Verdict {
    let mut ends = Ends::new();
    let seconds = OsStr::new("2");
    for stack in samply_stacks(
        &[program.as_os_str(), "--seconds".as_ref(), seconds],
        folder,
    )? {
        let mut frames = stack.into_iter();
        let (leaf, caller) = (frames.next(), frames.next());
        let pair = (leaf.unwrap_or_default(), caller.unwrap_or_default());
        *ends.entry(pair).or_default() += 1;
    }
    assert_shares("samply", &ends);
    Ok(())
}

/// A Python built with frame pointers, as Debian's 3.15 is: samply sees whole stacks there, too.
fn samply_on_python(python: &Path, folder: &Path) -> Verdict {
    const ASK: &str = "import sysconfig; print(sysconfig.get_config_var('PY_CORE_CFLAGS'))";
    let flags = succeed(Command::new(python).args(["-c", ASK]))?.stdout;
    if !String::from_utf8_lossy(&flags).contains("-fno-omit-frame-pointer") {
        let why = "it is built without frame pointers";
        return Err(Skip(format!("{}: {why}", python.display())));
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/chain.py");
    let command = [
        python.as_os_str(),
        "-X".as_ref(),
        "perf".as_ref(),
        script.as_os_str(),
        "--seconds".as_ref(),
        "3".as_ref(),
    ];
    let chain = ["py::foo:", "py::bar:", "py::baz:", "py::<module>:"];
    let (mut all, mut whole) = (0_u64, 0_u64);
    for stack in samply_stacks(&command, folder)? {
        let mut frames = stack.iter().filter(|name| name.starts_with("py::"));
        // What ran before it is not of the chain.
        if !stack.iter().any(|name| name.starts_with(chain[0])) {
            continue;
        }
        all += 1;
        whole += u64::from(
            chain
                .iter()
                .all(|name| frames.next().is_some_and(|frame| frame.starts_with(name))),
        );
    }
    let note = format!("samply: {whole} of {all} stacks of the chain are whole");
    assert!(all >= SAMPLES_MIN && whole * 100 >= all * 99, "{note}");
    NOTES.lock().unwrap().push(note);
    Ok(())
}

/// What samply records of a command: the stacks of all its threads, each from the innermost frame on.
fn samply_stacks(command: &[&OsStr], folder: &Path) -> Result<Vec<Vec<String>>, Skip> {
    let Some(samply) = find("samply") else {
        return Err(Skip(
            "there is no samply; `cargo install samply` takes minutes".to_owned(),
        ));
    };
    let clock = folder.join("clock.so");
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-o"])
        .arg(&clock)
        .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/c/software_clock.c"))
        .arg("-ldl");
    succeed(&mut cc)?;
    let profile = folder.join("profile.json");
    let mut record = Command::new(samply);
    record
        .env("LD_PRELOAD", &clock)
        .args(["record", "--save-only", "-r", "499", "-o"])
        .arg(&profile)
        .args(["--", "env", "-u", "LD_PRELOAD"])
        .args(command);
    succeed(&mut record)?;

    let profile: serde_json::Value = serde_json::from_slice(&fs::read(profile).unwrap()).unwrap();
    let mut stacks = Vec::new();
    for thread in profile["threads"].as_array().unwrap() {
        let index = |value: &serde_json::Value| value.as_u64().map(|index| index as usize);
        let name = |stack: usize| {
            let frame = index(&thread["stackTable"]["frame"][stack]).unwrap();
            let function = index(&thread["frameTable"]["func"][frame]).unwrap();
            let text = index(&thread["funcTable"]["name"][function]).unwrap();
            thread["stringArray"][text].as_str().unwrap().to_owned()
        };
        // `env` is in it, too, before it becomes the command.
        if thread["name"] == "env" {
            continue;
        }
        for leaf in thread["samples"]["stack"].as_array().unwrap() {
            let mut stack = Vec::new();
            let mut next = index(leaf);
            while let Some(at) = next {
                stack.push(name(at));
                next = index(&thread["stackTable"]["prefix"][at]);
            }
            if !stack.is_empty() {
                stacks.push(stack);
            }
        }
        remove_map(thread["pid"].as_str().unwrap_or_default());
    }
    Ok(stacks)
}

/// On PATH, or where `cargo install` puts it.
fn find(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let cargo = env::var_os("CARGO_HOME").map(PathBuf::from);
    let cargo = cargo.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo")));
    env::split_paths(&path)
        .chain(cargo.map(|home| home.join("bin")))
        .map(|folder| folder.join(program))
        .find(|file| file.is_file())
}
