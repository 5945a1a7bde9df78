//! `cargo xtask test`: everything from source, every test, one line of totals.
//!
//! The test programs are built by cargo and run from here, so that those which need
//! root (the integration tests named `kernel…`) can be run as root, and so that what
//! each of them skipped is counted and explained.

use std::{
    env,
    ffi::OsString,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, Result, bail};

use crate::{browser, command, host, package, pythons, setup, test_report::Report};

/// What is tested: all but the BPF crate, which has no tests of its own.
const PACKAGES: [&str; 3] = ["--workspace", "--exclude", "profiler-ebpf"];

/// One test program.
#[derive(Debug, PartialEq, Eq)]
struct Program {
    /// The target's name, such as `kernel_record`.
    name: String,
    executable: PathBuf,
    /// The folder that cargo would run it in.
    package: PathBuf,
}

impl Program {
    /// Must it run as root?
    fn needs_root(&self) -> bool {
        self.name.starts_with("kernel")
    }
}

/// Prepares, builds and runs all tests, or those whose names contain `filter`.
pub(crate) fn run(filter: Option<&str>) -> Result<()> {
    let toolchain = setup::ensure()?;
    println!("== BPF toolchain: {}", toolchain.name);
    let mut notes = Vec::new();
    let mut environment = test_environment(&mut notes);
    let mut report = Report::default();
    // Who chooses other tests need not wait for it.
    if filter.is_none_or(|filter| filter.contains("wheel")) {
        println!("== The wheel");
        match wheel(&mut notes) {
            Ok(wheel) => environment.extend(wheel.map(|path| ("PYPROF_TEST_WHEEL", path.into()))),
            Err(err) => report.fail("the wheel", &format!("{err:#}")),
        }
    }

    println!("== Building, the BPF object from source");
    let mut programs = build()?;
    programs.sort_by_key(Program::needs_root); // stable: cargo's order otherwise

    for program in &programs {
        println!("== {} ({})", program.name, program.package.display());
        let mut tests = Command::new(&program.executable);
        tests
            .args(filter)
            .current_dir(&program.package)
            .env("CARGO_MANIFEST_DIR", &program.package)
            .envs(environment.iter().map(|(name, value)| (name, value)));
        if program.needs_root() {
            match command::as_root(&tests) {
                Ok(rooted) => tests = rooted,
                Err(err) => {
                    report.skip(&program.name, &format!("{err:#}").replace('\n', " "));
                    continue;
                }
            }
        }
        observe(&mut tests, &program.name, &mut report)?;
    }

    println!("== Documentation examples");
    let mut doc = Command::new("cargo");
    doc.args(["test", "--quiet", "--doc"])
        .args(PACKAGES)
        .arg("--")
        .args(filter)
        .env("PYPROF_BPF_BUILD", "1")
        .current_dir(host::workspace());
    observe(&mut doc, "documentation examples", &mut report)?;

    for note in notes {
        println!("note: {note}");
    }
    print!("{report}");
    if report.failed > 0 {
        bail!("{} tests failed", report.failed);
    }
    if report.passed == 0 {
        bail!("no test was run");
    }
    Ok(())
}

/// Variables that tell the tests what they may use; reasons for what is missing go to
/// `notes`.
fn test_environment(notes: &mut Vec<String>) -> Vec<(&'static str, OsString)> {
    println!("== Python interpreters");
    let mut environment = Vec::new();
    let pythons = pythons::with_numpy(notes);
    for python in &pythons {
        println!("{}", python.display());
    }
    match env::join_paths(&pythons) {
        Ok(list) => environment.push(("PYPROF_TEST_PYTHONS", list)),
        Err(err) => notes.push(format!("an interpreter cannot be passed on: {err}")),
    }
    // Those that get their trampolines from profiler-trampoline.
    let old: Vec<PathBuf> = pythons::find_old()
        .into_iter()
        .map(|python| python.path)
        .collect();
    for python in &old {
        println!("{}", python.display());
    }
    match env::join_paths(&old) {
        Ok(list) => environment.push(("PYPROF_TEST_OLD_PYTHONS", list)),
        Err(err) => notes.push(format!("an interpreter cannot be passed on: {err}")),
    }
    // Those whose frames are read; sudo has no pyenv in which to look for them.
    let read: Vec<PathBuf> = pythons::find_read()
        .into_iter()
        .map(|python| python.path)
        .collect();
    match env::join_paths(&read) {
        Ok(list) => environment.push(("PYPROF_TEST_INTERPRETERS", list)),
        Err(err) => notes.push(format!("an interpreter cannot be passed on: {err}")),
    }
    // Other profilers that show what profiler-trampoline writes, a witness of its system calls, another C library.
    for (program, package) in [
        ("perf", "linux-perf"),
        ("strace", "strace"),
        ("musl-gcc", "musl-tools"),
    ] {
        if host::which(program).is_none()
            && let Err(err) = command::apt_install(&[package])
        {
            notes.push(format!("tests that need {program} are skipped: {err:#}"));
        }
    }
    match browser::prepare() {
        Ok(Some(browser)) => {
            println!("== Browser: {}", browser.display());
            environment.push(("PYPROF_TEST_BROWSER", browser.into()));
        }
        Ok(None) => {}
        Err(err) => notes.push(format!("the browser test is skipped: {err:#}")),
    }
    // sudo sets its own.
    environment.push(("PATH", env::var_os("PATH").unwrap_or_default()));
    environment
}

/// The wheel for the test that installs it. A machine that cannot have the tools for it is no fault of the wheel.
fn wheel(notes: &mut Vec<String>) -> Result<Option<PathBuf>> {
    match package::tools::ensure() {
        Ok(tools) => package::build(&tools, package::Grade::Check).map(Some),
        Err(err) => {
            notes.push(format!("no wheel is built and installed: {err:#}"));
            Ok(None)
        }
    }
}

/// Builds all test programs and lists them.
fn build() -> Result<Vec<Program>> {
    let mut cargo = Command::new("cargo");
    cargo
        .args([
            "test",
            "--no-run",
            "--message-format=json-render-diagnostics",
        ])
        .args(PACKAGES)
        .env("PYPROF_BPF_BUILD", "1")
        .current_dir(host::workspace())
        .stderr(Stdio::inherit());
    let done = cargo.output().context("cannot start cargo")?;
    if !done.status.success() {
        bail!("the tests do not build: {}", done.status);
    }
    let text = String::from_utf8_lossy(&done.stdout);
    Ok(text.lines().filter_map(test_program).collect())
}

/// Builds the test programs; gives the path of the one with this name.
pub(crate) fn program(name: &str) -> Result<PathBuf> {
    setup::ensure()?;
    let found = build()?.into_iter().find(|program| program.name == name);
    found
        .map(|program| program.executable)
        .with_context(|| format!("there is no test program `{name}`"))
}

/// The test program that one of cargo's messages announces.
fn test_program(message: &str) -> Option<Program> {
    if !message.contains(r#""reason":"compiler-artifact""#) {
        return None;
    }
    // The target says "test", too: that it has tests, not that this is them.
    let profile = &message[message.find(r#""profile":{"#)?..];
    if !profile.contains(r#""test":true},"#) {
        return None;
    }
    let target = &message[message.find(r#""target":{"#)?..];
    let manifest = PathBuf::from(json_string(message, "manifest_path")?);
    Some(Program {
        name: json_string(target, "name")?,
        executable: json_string(message, "executable")?.into(),
        package: manifest.parent().map(Path::to_owned)?,
    })
}

/// The first value of `key` in a line of JSON, when it is a string. Cargo's messages
/// are regular enough for that: no blanks around the colon, escapes only of `\` and `"`.
fn json_string(line: &str, key: &str) -> Option<String> {
    let start = format!("\"{key}\":\"");
    let mut rest = line[line.find(&start)? + start.len()..].chars();
    let mut value = String::new();
    loop {
        match rest.next()? {
            '"' => return Some(value),
            '\\' => value.push(rest.next()?),
            other => value.push(other),
        }
    }
}

/// Runs a test program, shows what it prints and enters it into the report.
fn observe(tests: &mut Command, name: &str, report: &mut Report) -> Result<()> {
    let mut child = tests
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("cannot start `{}`", command::shown(tests)))?;
    let stdout = child.stdout.take().context("its output is piped")?;
    let failed_before = report.failed;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.context("cannot read the tests' output")?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        report.read(&line);
    }
    let status = child.wait().context("cannot wait for the tests")?;
    if !status.success() && report.failed == failed_before {
        report.fail(name, &status.to_string());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As cargo writes it, shortened.
    const MESSAGE: &str = r#"{"reason":"compiler-artifact","package_id":"p","manifest_path":"/w/profiler/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"kernel_record","src_path":"/w/k.rs","doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":1,"test":true},"features":[],"executable":"/w/target/debug/deps/kernel_record-1","fresh":true}"#;

    #[test]
    fn finds_a_test_program_in_cargos_message() {
        let program = test_program(MESSAGE).unwrap();
        assert_eq!(
            program,
            Program {
                name: "kernel_record".into(),
                executable: "/w/target/debug/deps/kernel_record-1".into(),
                package: "/w/profiler".into(),
            }
        );
        assert!(program.needs_root());
    }

    /// The program that the tests start is built along with them, and its target says "test":true as well.
    #[test]
    fn a_program_that_tests_start_is_not_one_of_them() {
        let program = MESSAGE.replace(
            r#""debuginfo":1,"test":true"#,
            r#""debuginfo":1,"test":false"#,
        );
        assert_ne!(program, MESSAGE);
        assert_eq!(test_program(&program), None);
    }
}
