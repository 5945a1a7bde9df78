#![expect(clippy::print_stderr, reason = "a skipped test says why")]

use std::{
    process::{Child, Command, Stdio},
    time::Duration,
};

use proptest::prelude::*;

use super::*;
use crate::process::{interpreter::locate, read_executable_mappings};

#[test]
fn names_of_libraries_and_programs_give_the_version() {
    let library = [
        ("libpython3.12.so.1.0", Some((3, 12))),
        ("libpython3.13t.so.1.0", Some((3, 13))),
        ("libpython3.6m.so.1.0", Some((3, 6))),
        ("libpython2.7.so.1.0", Some((2, 7))),
        ("libpython3.11.so", Some((3, 11))),
        ("libpython3.so", None),
        ("libpython3.12.a", None),
        ("libpythonic3.12.so", None),
        ("libpython3.999.so", None),
    ];
    for (name, version) in library {
        assert_eq!(version_in_library_name(name), version, "{name}");
    }
    let program = [
        ("python3.12", Some((3, 12))),
        ("python3.11-dbg", Some((3, 11))),
        ("python3", None),
        ("python", None),
        ("bash", None),
    ];
    for (name, version) in program {
        assert_eq!(version_in_program_name(name), version, "{name}");
    }
}

#[test]
fn constants_give_the_version_where_there_are_no_symbols() {
    assert_eq!(
        version_in_constants(b"\0x\0lib/python3.8\0/usr\0"),
        Some((3, 8))
    );
    assert_eq!(version_in_constants(b"\0python3.10\0"), Some((3, 10)));
    assert_eq!(
        version_in_constants(b"\x003.2.0\x003.12.1\x003.45.1\0"),
        Some((3, 12)),
        "other libraries' versions"
    );
    assert_eq!(
        version_in_constants(b"\x003.12.1\x003.13.0\0"),
        None,
        "which of them?"
    );
    assert_eq!(
        version_in_constants(b"\0python3.x\0python3.10/site\0\xff\0"),
        None
    );
}

/// A Python that runs until it goes out of scope.
pub(in crate::process) struct Running(pub(in crate::process) Child);

impl Running {
    /// Starts `program`, with options and variables, and waits until it executes Python code.
    fn start(program: &Path, options: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let code = "import sys, time\nprint(flush=True)\ntime.sleep(60)";
        Self::run(program, code, options, variables)
    }

    /// The same for code that prints a line when it has come to where it stays.
    pub(in crate::process) fn run(
        program: &Path,
        code: &str,
        options: &[&str],
        variables: &[(&str, &str)],
    ) -> Option<Self> {
        Self::run_with(program, &[options, &["-c", code]].concat(), variables)
    }

    /// The same with any arguments.
    fn run_with(program: &Path, arguments: &[&str], variables: &[(&str, &str)]) -> Option<Self> {
        let mut command = Command::new(program);
        command.args(arguments).envs(variables.iter().copied());
        command.stdout(Stdio::piped()).stderr(Stdio::null());
        let mut running = Self(command.spawn().ok()?);
        let mut line = [0; 1];
        running.0.stdout.as_mut()?.read_exact(&mut line).ok()?;
        Some(running)
    }

    fn inspect(&self) -> (Target, PythonInfo) {
        let (target, _, info) = self.look_into();
        (target, info)
    }

    pub(in crate::process) fn look_into(&self) -> (Target, Vec<Mapping>, PythonInfo) {
        let pid = Pid(self.0.id());
        let target = Target::check(pid).expect("a target");
        let mappings = read_executable_mappings(pid).expect("maps").mappings;
        let info = inspect(&target, &mappings);
        (target, mappings, info)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Interpreters of this machine: those on the path, and pyenv's.
pub(in crate::process) fn interpreters() -> Vec<(PathBuf, (u8, u8))> {
    let mut directories: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    if let Some(home) = std::env::var_os("HOME") {
        let versions = fs::read_dir(Path::new(&home).join(".pyenv/versions"));
        directories.extend(
            versions
                .into_iter()
                .flatten()
                .flatten()
                .map(|version| version.path().join("bin")),
        );
    }
    directories.retain(|directory| !directory.ends_with("shims"));
    let named = |directory: &PathBuf| {
        (6..16)
            .map(|minor| (directory.join(format!("python3.{minor}")), (3, minor)))
            .collect::<Vec<_>>()
    };
    directories
        .iter()
        .flat_map(named)
        .filter(|(path, _)| path.is_file())
        .collect()
}

/// A `python` that has its interpreter in it, not in a libpython.
fn interpreter_in_program() -> Option<(PathBuf, (u8, u8))> {
    interpreters().into_iter().find(|(path, _)| {
        let built_in = |file: File| {
            version_in_file(&file, false, &mut Budget::new(SEARCHED_BYTES_MAX)).is_some()
        };
        File::open(path).is_ok_and(built_in)
    })
}

#[test]
fn finds_the_version_of_every_interpreter_here() {
    let all = interpreters();
    if all.is_empty() {
        eprintln!("skipped: no python3.N here");
    }
    for (path, version) in all {
        let Some(running) = Running::start(&path, &[], &[]) else {
            continue;
        };
        let (_, info) = running.inspect();
        assert_eq!(info.version, Some(version), "{}", path.display());
        assert!(!info.interpreter_files.is_empty());
        assert!(!info.trampolines_asked && !info.jitdump);
    }
}

#[test]
fn a_program_of_another_name_is_recognised_by_its_symbols() {
    let Some((path, version)) = interpreter_in_program() else {
        return eprintln!("skipped: no python with the interpreter inside here");
    };
    let directory = tempfile::tempdir().expect("temporary directory");
    let renamed = directory.path().join("service");
    fs::copy(&path, &renamed).expect("copy");
    let Some(running) = Running::start(&renamed, &[], &[]) else {
        return;
    };
    let (_, info) = running.inspect();
    assert_eq!(info.version, Some(version));
    assert_eq!(info.interpreter_files, [renamed.to_string_lossy()]);
}

#[test]
fn a_library_called_libpython_hides_no_interpreter_in_the_program() {
    let code = r#"
import mmap, sys, time
with open(sys.argv[1], "rb") as file:
    mapped = mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_EXEC)
print(flush=True)
time.sleep(60)
"#;
    let Some((path, version)) = interpreter_in_program() else {
        return eprintln!("skipped: no python with the interpreter inside here");
    };
    let directory = tempfile::tempdir().expect("temporary directory");
    for (name, other) in [("python", "/proc/self/exe"), ("service", "/bin/true")] {
        let (program, library) = (
            directory.path().join(name),
            directory.path().join("libpython3.9.so.1.0"),
        );
        fs::copy(&path, &program).expect("copy");
        fs::copy(other, &library).expect("copy");
        let arguments = ["-c", code, library.to_str().expect("text")];
        let running = Running::run_with(&program, &arguments, &[]).expect("it starts");
        let (target, mappings, info) = running.look_into();
        assert_eq!(info.version, Some(version));
        let files = [program.to_string_lossy(), library.to_string_lossy()];
        assert_eq!(info.interpreter_files, files);
        let located = locate(target.pid, &mappings, &info).expect("located");
        let versions: Vec<_> = located.iter().map(|it| (&*it.path, it.version)).collect();
        assert_eq!(versions, [(&*program, version)]);
    }
}

#[test]
fn what_is_searched_of_a_processs_files_is_bounded_in_all() {
    let program = File::open(std::env::current_exe().expect("own path")).expect("open");
    let elf = ElfFile::parse(&program).expect("parses");
    let cost = elf.symbol_bytes(SymbolTable::Dynamic) + elf.symbol_bytes(SymbolTable::Full);
    let mut budget = Budget::new(3 * cost);
    for _ in 0..5 {
        assert_eq!(version_in_file(&program, false, &mut budget), None);
    }
    assert!(
        cost > 0 && budget.left < cost,
        "{} of {cost} left",
        budget.left
    );
    assert!(!budget.take(u64::MAX) && budget.take(budget.left));
}

#[test]
fn trampolines_asked_for_are_noticed() {
    let Some((path, _)) = interpreters()
        .into_iter()
        .find(|(_, version)| *version >= (3, 12))
    else {
        return eprintln!("skipped: no python3.12 or later here");
    };
    let own_file = |running: &Running| PathBuf::from(format!("/tmp/perf-{}.map", running.0.id()));
    let by_option = Running::start(&path, &["-X", "perf"], &[]).expect("starts");
    let (target, info) = by_option.inspect();
    assert!(info.trampolines_asked && !info.jitdump);
    assert!(perf_map_handle(&target).is_some());
    let _ = fs::remove_file(own_file(&by_option));

    let by_variable = Running::start(&path, &[], &[("PYTHONPERFSUPPORT", "1")]).expect("starts");
    assert!(by_variable.inspect().1.trampolines_asked);
    let _ = fs::remove_file(own_file(&by_variable));

    let isolated = Running::start(&path, &["-I"], &[("PYTHONPERFSUPPORT", "1")]).expect("starts");
    let (target, info) = isolated.inspect();
    assert!(!info.trampolines_asked);
    assert!(perf_map_handle(&target).is_none());
}

#[test]
fn the_marker_of_a_jitdump_is_noticed() {
    let Some((path, _)) = interpreters()
        .into_iter()
        .find(|(_, version)| *version >= (3, 13))
    else {
        return eprintln!("skipped: no python3.13 or later here");
    };
    let running = Running::start(&path, &["-Xperf_jit"], &[]).expect("starts");
    let (_, info) = running.inspect();
    assert!(info.jitdump && info.trampolines_asked);
    let _ = fs::remove_file(format!("/tmp/jit-{}.dump", running.0.id()));
}

#[test]
fn a_process_without_python_has_no_version() {
    let sleeping = Running(
        Command::new("sleep")
            .arg("60")
            .spawn()
            .expect("sleep starts"),
    );
    for _ in 0..500 {
        if fs::read(format!("/proc/{}/comm", sleeping.0.id())).is_ok_and(|comm| comm == b"sleep\n")
        {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let (_, info) = sleeping.inspect();
    assert_eq!(
        info,
        PythonInfo {
            version: None,
            interpreter_files: vec![],
            trampolines_asked: false,
            jitdump: false
        }
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_damaged_file_has_no_version_or_some_but_is_never_a_panic(damage in proptest::collection::vec((0_usize..12_000, any::<u8>()), 1..60), cut in 0_usize..20_000) {
        let file = crate::process::damaged_vdso(damage, cut);
        let _ = version_in_file(&file, true, &mut Budget::new(1 << 20));
    }

    #[test]
    fn any_constants_can_be_searched(constants in proptest::collection::vec(prop_oneof![Just(b"3.12.1".to_vec()), Just(b"\0".to_vec()), Just(b"python3.".to_vec()), proptest::collection::vec(any::<u8>(), 0..8)], 0..40)) {
        let _ = version_in_constants(&constants.concat());
    }
}
