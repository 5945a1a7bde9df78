//! Looks into a finished wheel: its files, what it says of itself, and what its compiled files need.

use std::{collections::BTreeSet, fs, path::Path, process::Command};

use anyhow::{Context as _, Result, bail, ensure};

use super::{GLIBC, elf::Needs, own_folders, tools::Tools};
use crate::command;

/// Prints each file with its mode in octal, and unpacks it.
const UNPACK: &str = "
import sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
broken = wheel.testzip()
if broken: sys.exit(broken + ' is broken')
for file in wheel.infolist(): print('%o %s' % (file.external_attr >> 16 & 0o777, file.filename))
wheel.extractall(sys.argv[2])
";

/// Every file; `{}` is the name with the version.
const FILES: [&str; 14] = [
    "644 pyprof_trampoline/__init__.py",
    "644 pyprof_trampoline/__main__.py",
    "644 pyprof_trampoline/_native.pyi",
    "755 pyprof_trampoline/_native.so",
    "644 pyprof_trampoline/py.typed",
    "755 {}.data/scripts/pyprof-bpf",
    "644 {}.dist-info/METADATA",
    "644 {}.dist-info/RECORD",
    "644 {}.dist-info/WHEEL",
    "644 {}.dist-info/licenses/DEPENDENCIES.txt",
    "644 {}.dist-info/licenses/LICENSE-APACHE",
    "644 {}.dist-info/licenses/LICENSE-GPL2",
    "644 {}.dist-info/licenses/LICENSE-MIT",
    "644 {}.dist-info/licenses/THIRD-PARTY.md",
];
/// Lines of `METADATA`, or their beginnings, that a wheel is not given away without.
const METADATA: [&str; 10] = [
    "Name: pyprof-bpf",
    "Version: ",
    "Summary: ",
    "Keywords: ",
    "Classifier: Typing :: Typed",
    "License-Expression: MIT OR Apache-2.0",
    "Requires-Python: >=3.9",
    "Description-Content-Type: text/markdown",
    "Project-URL: Repository, https://",
    "# pyprof-bpf", // the long description
];
/// Compiled files, and what must stand in them to be the right ones.
const COMPILED: [(&str, &str); 2] = [
    ("{}.data/scripts/pyprof-bpf", "pyprof-bpf"),
    ("pyprof_trampoline/_native.so", "PyInit__native"),
];

/// Checks the wheel; `unpacked` is made anew and holds what is in it.
pub(super) fn check(wheel: &Path, tools: &Tools, unpacked: &Path) -> Result<()> {
    check_files(wheel, tools, unpacked)
        .with_context(|| format!("{} is not as it should be", wheel.display()))
}

fn check_files(wheel: &Path, tools: &Tools, unpacked: &Path) -> Result<()> {
    let file_name = wheel.file_name().unwrap_or_default().to_string_lossy();
    let version = super::version()?;
    let name = format!("pyprof_bpf-{version}");
    let (major, minor) = GLIBC;
    ensure!(
        file_name == format!("{name}-py3-none-manylinux_{major}_{minor}_x86_64.whl"),
        "it has another name than expected"
    );
    if unpacked.exists() {
        fs::remove_dir_all(unpacked)
            .with_context(|| format!("cannot empty {}", unpacked.display()))?;
    }
    let mut unpack = Command::new(tools.program("python"));
    unpack.args(["-c", UNPACK]).arg(wheel).arg(unpacked);
    let listed = command::output(&mut unpack)?;
    compare(&listed, &name)?;

    let path = unpacked.join(format!("{name}.dist-info/METADATA"));
    let metadata = fs::read_to_string(&path).context("it has no METADATA")?;
    for line in METADATA {
        let found = metadata.lines().any(|found| found.starts_with(line));
        ensure!(found, "its METADATA has no line `{line}`");
    }
    for (path, sign) in COMPILED {
        let path = path.replace("{}", &name);
        let data = fs::read(unpacked.join(&path)).with_context(|| format!("no {path}"))?;
        check_compiled(&data, sign).with_context(|| format!("{path} in it"))?;
    }
    Ok(())
}

/// Is the list of files exactly the expected one?
fn compare(listed: &str, name: &str) -> Result<()> {
    let found: BTreeSet<String> = listed.lines().map(str::to_owned).collect();
    let wanted: BTreeSet<String> = FILES.iter().map(|file| file.replace("{}", name)).collect();
    let missing: Vec<_> = wanted.difference(&found).map(String::as_str).collect();
    let extra: Vec<_> = found.difference(&wanted).map(String::as_str).collect();
    if !missing.is_empty() || !extra.is_empty() {
        bail!(
            "missing: {}; not expected: {}",
            missing.join(", "),
            extra.join(", ")
        );
    }
    Ok(())
}

fn check_compiled(data: &[u8], sign: &str) -> Result<()> {
    let holds = |text: &[u8]| data.windows(text.len()).any(|part| part == text);
    ensure!(holds(sign.as_bytes()), "it does not hold `{sign}`");
    for (folder, _) in own_folders()? {
        let folder = folder.to_string_lossy();
        ensure!(
            !holds(folder.as_bytes()),
            "it tells of a folder of this machine, {folder}"
        );
    }
    let needs = Needs::of(data)?;
    needs.check(GLIBC)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_too_few_or_too_many_is_named() {
        let mut listed: Vec<String> = FILES.iter().map(|file| file.replace("{}", "x-1")).collect();
        compare(&listed.join("\n"), "x-1").unwrap();
        listed[3] = "644 pyprof_trampoline/_native.so".into();
        let refused = compare(&listed.join("\n"), "x-1").unwrap_err().to_string();
        assert_eq!(
            refused,
            "missing: 755 pyprof_trampoline/_native.so; not expected: 644 pyprof_trampoline/_native.so"
        );
    }
}
