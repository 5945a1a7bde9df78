//! `cargo xtask fuzz`: builds the fuzz targets and runs each for some seconds, on the corpus in `fuzz/corpus/` and on
//! what earlier runs added to it below `target/`.
//!
//! libFuzzer needs a compiler that takes unstable flags. The one that is in use does, if it is told to be a bootstrap
//! compiler: no nightly is needed, and what is tested is what is shipped.

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};

use crate::{
    command::{self, Patience},
    host,
};

const CARGO_FUZZ: &str = "cargo-fuzz@0.13.2";
/// How long each target runs, unless told otherwise.
const SECONDS: u64 = 10;
/// One input that takes longer, or makes the target use more memory, has found something.
const INPUT_SECONDS_MAX: u64 = 20;
const MEMORY_MIB_MAX: u64 = 1500;

/// Longest input that is made up. Files that attack by their size have some hundred KiB; libFuzzer begins with short ones,
/// and tries longer ones as these find nothing new.
const INPUT_BYTES_MAX: u64 = 1 << 20;

/// What was asked for.
struct Wanted<'a> {
    target: Option<&'a str>,
    seconds: u64,
}

impl<'a> Wanted<'a> {
    fn parse(words: &[&'a str]) -> Result<Self> {
        let mut wanted = Self {
            target: None,
            seconds: SECONDS,
        };
        let mut words = words.iter();
        while let Some(&word) = words.next() {
            match word {
                "--seconds" => {
                    let number = words.next().and_then(|number| number.parse().ok());
                    wanted.seconds = number.context("`--seconds` takes a number")?;
                }
                target if !target.starts_with('-') && wanted.target.is_none() => {
                    wanted.target = Some(target);
                }
                _ => bail!("`fuzz` takes one target and `--seconds N`, not `{word}`"),
            }
        }
        Ok(wanted)
    }
}

/// Where things are.
struct Folders {
    fuzz: PathBuf,
    target: PathBuf,
}

/// Runs all targets, or one.
pub(crate) fn run(words: &[&str]) -> Result<()> {
    let wanted = Wanted::parse(words)?;
    let folders = Folders {
        fuzz: host::workspace().join("fuzz"),
        target: host::target_dir().join("fuzz"),
    };
    let all = targets(&folders.fuzz)?;
    let chosen: Vec<&String> = match wanted.target {
        None => all.iter().collect(),
        Some(name) => all.iter().filter(|target| *target == name).collect(),
    };
    if chosen.is_empty() {
        bail!("there is no such target; there are {}", all.join(", "));
    }
    if let Err(why) = prepare() {
        println!(
            "fuzz: 0 targets run, {} skipped: {}",
            chosen.len(),
            format!("{why:#}").replace('\n', " ")
        );
        return Ok(());
    }
    build(&folders, wanted.target)?;
    for target in &chosen {
        run_target(&folders, target, wanted.seconds)?;
    }
    println!("fuzz: {} targets run, 0 skipped", chosen.len());
    Ok(())
}

/// The targets' names, from their files.
fn targets(fuzz: &Path) -> Result<Vec<String>> {
    let folder = fuzz.join("fuzz_targets");
    let entries =
        fs::read_dir(&folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut names: Vec<String> = entries
        .flatten()
        .filter_map(|entry| Some(entry.path().file_stem()?.to_str()?.to_owned()))
        .collect();
    names.sort();
    Ok(names)
}

/// Sees to the tools. An error says why there can be no fuzzing here.
fn prepare() -> Result<()> {
    if !["c++", "clang++", "g++"]
        .into_iter()
        .any(|compiler| host::which(compiler).is_some())
    {
        bail!("libFuzzer is compiled from C++, and there is no compiler for it");
    }
    if host::which("cargo-fuzz").is_some() {
        return Ok(());
    }
    let mut install = Command::new("cargo");
    install.args(["install", "--locked", CARGO_FUZZ]);
    eprintln!("Installing {CARGO_FUZZ}");
    command::run_patiently(&mut install, Patience::seconds(600))
        .context("cargo-fuzz can be neither found nor installed")
}

fn build(folders: &Folders, target: Option<&str>) -> Result<()> {
    println!("== Building the fuzz targets");
    let mut cargo = Command::new("cargo");
    cargo
        .args(["fuzz", "build", "--release", "--debug-assertions"])
        .args(["--sanitizer", sanitizer()])
        .arg("--fuzz-dir")
        .arg(&folders.fuzz)
        .arg("--target-dir")
        .arg(&folders.target)
        .args(target)
        .env("RUSTC_BOOTSTRAP", "1")
        // What is fuzzed runs in user space: the bundled object does.
        .env_remove("PYPROF_BPF_BUILD")
        .current_dir(host::workspace());
    command::run(&mut cargo)
}

/// Compilers of distributions come without the address sanitizer's library.
fn sanitizer() -> &'static str {
    let lib = command::output(Command::new("rustc").args(["--print", "target-libdir"]));
    let files = lib.ok().and_then(|lib| fs::read_dir(lib.trim()).ok());
    let has_library = files.into_iter().flatten().flatten().any(|file| {
        let name = file.file_name();
        name.to_string_lossy().ends_with("_rt.asan.a")
    });
    if has_library { "address" } else { "none" }
}

fn run_target(folders: &Folders, target: &str, seconds: u64) -> Result<()> {
    let program = program(&folders.target, target)?;
    let grown = folders.target.join("corpus").join(target);
    let artifacts = folders.target.join("artifacts");
    for folder in [&grown, &artifacts] {
        fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    }
    let prefix = artifacts.join(format!("{target}-"));
    let log = folders.target.join(format!("{target}.log"));
    let output =
        fs::File::create(&log).with_context(|| format!("cannot write {}", log.display()))?;
    let mut fuzzer = Command::new(&program);
    fuzzer
        .arg(&grown)
        .arg(folders.fuzz.join("corpus").join(target))
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={INPUT_BYTES_MAX}"))
        .arg(format!("-timeout={INPUT_SECONDS_MAX}"))
        .arg(format!("-rss_limit_mb={MEMORY_MIB_MAX}"))
        .arg(format!("-artifact_prefix={}", prefix.display()))
        .arg("-print_final_stats=1")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(output);
    let dictionary = folders.fuzz.join("dictionaries").join(target);
    let dictionary = dictionary.with_extension("dict");
    if dictionary.is_file() {
        fuzzer.arg(format!("-dict={}", dictionary.display()));
    }
    // Targets that need files make and remove many.
    if Path::new("/dev/shm").is_dir() {
        fuzzer.env("TMPDIR", "/dev/shm");
    }
    let began = std::time::Instant::now();
    let status = command::status(&mut fuzzer)?;
    let text = fs::read_to_string(&log).unwrap_or_default();
    if !status.success() {
        let tail: Vec<&str> = text.lines().rev().take(30).collect();
        for line in tail.iter().rev() {
            eprintln!("  {line}");
        }
        bail!(
            "the target {target} ended with {status}.\nThe input is in {}; once it is understood, it belongs into fuzz/corpus/{target}/.",
            artifacts.display()
        );
    }
    println!("{}", summary(target, &text, began.elapsed()));
    Ok(())
}

/// `perf_map: 12345 executions in 10 s`
fn summary(target: &str, log: &str, took: Duration) -> String {
    let executed = log
        .lines()
        .find_map(|line| line.strip_prefix("stat::number_of_executed_units:"))
        .map_or("?", str::trim);
    format!("{target}: {executed} executions in {} s", took.as_secs())
}

/// The compiled target: cargo-fuzz names the architecture itself.
fn program(folder: &Path, target: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(folder).with_context(|| format!("cannot list {}", folder.display()))?;
    let mut programs = entries
        .flatten()
        .map(|entry| entry.path().join("release").join(target))
        .filter(|path| path.is_file());
    programs
        .next()
        .with_context(|| format!("cargo-fuzz made no program `{target}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_understood_or_refused() {
        let wanted = Wanted::parse(&["elf", "--seconds", "600"]).unwrap();
        assert_eq!((wanted.target, wanted.seconds), (Some("elf"), 600));
        let wanted = Wanted::parse(&[]).unwrap();
        assert_eq!((wanted.target, wanted.seconds), (None, SECONDS));
        for wrong in [
            &["--seconds"][..],
            &["--seconds", "x"],
            &["a", "b"],
            &["-x"],
        ] {
            assert!(Wanted::parse(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn every_target_has_a_program_and_a_corpus() {
        let fuzz = host::workspace().join("fuzz");
        let manifest = fs::read_to_string(fuzz.join("Cargo.toml")).unwrap();
        let targets = targets(&fuzz).unwrap();
        assert!(targets.len() >= 6, "{targets:?}");
        for target in targets {
            assert!(
                manifest.contains(&format!("name = \"{target}\"")),
                "{target}"
            );
            assert!(fuzz.join("corpus").join(&target).is_dir(), "{target}");
        }
    }

    #[test]
    fn executions_are_read_from_the_log() {
        let log = "INFO\nstat::number_of_executed_units: 4711\nstat::x: 1\n";
        let line = summary("elf", log, Duration::from_secs(10));
        assert_eq!(line, "elf: 4711 executions in 10 s");
    }
}
