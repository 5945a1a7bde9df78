//! Which kernels Debian serves, and one of them as a file.
//!
//! apt is asked, with lists and files of its own: what this machine has installed, and from which release, is neither
//! looked at nor changed.

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result, bail};

use super::folder;
use crate::{
    command::{self, Patience},
    host,
};

/// Releases, the oldest first. One that is no longer served is passed over with a note.
const SUITES: [&str; 6] = [
    "bullseye",
    "bookworm",
    "bookworm-backports",
    "trixie",
    "trixie-backports",
    "sid",
];
/// Names another mirror than the one in this machine's own configuration.
const MIRROR_VARIABLE: &str = "PYPROF_DEBIAN_MIRROR";
/// What the releases are signed with.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Its package.
const KEYRING_PACKAGE: &str = "debian-archive-keyring";
/// Depends on the kernel that a release installs.
const DEFAULT_KERNEL: &str = "linux-image-amd64";

/// A kernel that is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// As in its package: `5.10.0-32`, `6.12.117+deb13`.
    pub(super) name: String,
    /// The release that has it.
    pub(super) suite: &'static str,
    /// It is the one that the release installs.
    pub(super) is_default: bool,
}

impl fmt::Display for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.suite)
    }
}

impl Kernel {
    /// Out of `linux-image-6.12.117+deb13-amd64`. Variants for clouds and real time are left alone.
    fn of(package: &str, suite: &'static str, default: Option<&str>) -> Option<Self> {
        let name = package
            .strip_prefix("linux-image-")?
            .strip_suffix("-amd64")?;
        let plain = name.starts_with(|c: char| c.is_ascii_digit())
            && !name.ends_with("-rt")
            && !name.ends_with("-cloud");
        plain.then(|| Self {
            name: name.to_owned(),
            suite,
            is_default: default == Some(package),
        })
    }

    /// Every number in its name, for comparison.
    fn numbers(&self) -> Vec<u32> {
        let numbers = self.name.split(|c: char| !c.is_ascii_digit());
        numbers.filter_map(|number| number.parse().ok()).collect()
    }

    /// Such as (6, 12).
    fn series(&self) -> (u32, u32) {
        let numbers = self.numbers();
        let number = |n: usize| numbers.get(n).copied().unwrap_or(0);
        (number(0), number(1))
    }

    /// `6`, `6.12` and `6.12.117` mean it, `6.1` does not.
    fn is_meant_by(&self, words: &str) -> bool {
        let rest = self.name.strip_prefix(words);
        rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
    }
}

/// Every kernel that is served, the oldest first.
pub(super) fn served() -> Result<Vec<Kernel>> {
    let mirror = mirror()?;
    if !Path::new(KEYRING).exists() {
        command::apt_install(&[KEYRING_PACKAGE])?;
    }
    let mut kernels = Vec::new();
    for suite in SUITES {
        match served_by(suite, &mirror) {
            Ok(more) => kernels.extend(more),
            Err(err) => println!("note: no kernels of {suite}: {err:#}"),
        }
    }
    if kernels.is_empty() {
        bail!(
            "{mirror} serves no kernels.\nName a mirror of Debian that does: {MIRROR_VARIABLE}=…"
        );
    }
    kernels.sort_by_key(Kernel::numbers);
    Ok(kernels)
}

/// The newest ones that fit the words, at most one of each series.
pub(super) fn chosen<'k>(served: &'k [Kernel], wanted: &[&str]) -> Result<Vec<&'k Kernel>> {
    let mut chosen: Vec<&Kernel> = Vec::new();
    let mut words = wanted.iter();
    if wanted.is_empty() {
        chosen.extend(served.iter().filter(|kernel| kernel.is_default));
    } else if wanted == ["all"] {
        chosen.extend(served);
    } else if let Some(unknown) = words.find(|words| !served.iter().any(|it| it.is_meant_by(words)))
    {
        let mut series: Vec<String> = served
            .iter()
            .map(|kernel| format!("{}.{}", kernel.series().0, kernel.series().1))
            .collect();
        series.dedup();
        bail!(
            "no kernel {unknown} is served; there are {}",
            series.join(", ")
        );
    } else {
        let is_meant = |kernel: &Kernel| wanted.iter().any(|words| kernel.is_meant_by(words));
        chosen.extend(served.iter().filter(|kernel| is_meant(kernel)));
    }
    // The last one of each series is its newest.
    chosen.reverse();
    chosen.dedup_by_key(|kernel| kernel.series());
    chosen.reverse();
    Ok(chosen)
}

/// The bootable file of a kernel, downloaded unless it was before.
pub(super) fn binary(kernel: &Kernel) -> Result<PathBuf> {
    let binary = folder().join(format!("vmlinuz-{}", kernel.name));
    if binary.exists() {
        return Ok(binary);
    }
    let suite = folder().join(kernel.suite);
    let mut depends = apt("apt-cache", &suite);
    depends.args(["depends", "--recurse", "--no-recommends", "--no-suggests"]);
    depends.args(["--no-conflicts", "--no-breaks", "--no-replaces"]);
    depends.arg(format!("linux-image-{}-amd64", kernel.name));
    let packages = command::output(&mut depends)?;
    // From 7.2 on, the package of a kernel holds nothing, and depends on the one that does.
    let files: Vec<&str> = ["linux-image-", "linux-binary-"]
        .into_iter()
        .flat_map(|kind| packages.lines().filter(move |it| it.starts_with(kind)))
        .collect();
    let unpacked = suite.join("packages");
    if unpacked.exists() {
        fs::remove_dir_all(&unpacked)
            .with_context(|| format!("cannot remove {}", unpacked.display()))?;
    }
    fs::create_dir_all(&unpacked).with_context(|| format!("cannot make {}", unpacked.display()))?;
    let mut download = apt("apt-get", &suite);
    download.arg("download").args(&files).current_dir(&unpacked);
    command::run_patiently(&mut download, Patience::seconds(900))?;
    let found = boot_file(&unpacked, &kernel.name)?;
    fs::rename(&found, &binary).with_context(|| format!("cannot move {}", found.display()))?;
    fs::remove_dir_all(&unpacked)
        .with_context(|| format!("cannot remove {}", unpacked.display()))?;
    Ok(binary)
}

/// Takes the bootable file out of the packages in a folder.
fn boot_file(packages: &Path, name: &str) -> Result<PathBuf> {
    let entries =
        fs::read_dir(packages).with_context(|| format!("cannot list {}", packages.display()))?;
    let mut packages_seen = Vec::new();
    for package in entries.flatten().map(|entry| entry.path()) {
        let contents = command::output(Command::new("dpkg-deb").arg("--contents").arg(&package))?;
        let path = contents
            .lines()
            .filter(|line| line.starts_with('-')) // as against links
            .filter_map(|line| line.split_whitespace().nth(5))
            .find(|path| {
                path.rsplit('/')
                    .next()
                    .is_some_and(|file| file.starts_with("vmlinuz"))
            });
        if let Some(path) = path {
            let whole = packages.join("data.tar");
            let file = fs::File::create(&whole)
                .with_context(|| format!("cannot make {}", whole.display()))?;
            let mut tar = Command::new("dpkg-deb");
            tar.arg("--fsys-tarfile").arg(&package).stdout(file);
            command::run(&mut tar)?;
            let mut extract = Command::new("tar");
            extract.arg("--extract").arg("--file").arg(&whole).arg(path);
            command::run(extract.current_dir(packages))?;
            return Ok(packages.join(path));
        }
        packages_seen.push(package.display().to_string());
    }
    bail!(
        "there is no bootable file of {name} in {}",
        packages_seen.join(", ")
    )
}

fn served_by(suite: &'static str, mirror: &str) -> Result<Vec<Kernel>> {
    let folder = folder().join(suite);
    for part in ["lists/partial", "cache/archives/partial"] {
        let part = folder.join(part);
        fs::create_dir_all(&part).with_context(|| format!("cannot make {}", part.display()))?;
    }
    let write = |name: &str, text: &str| {
        let file = folder.join(name);
        fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
    };
    write("status", "")?; // nothing is installed
    let source = format!("deb [signed-by={KEYRING}] {mirror} {suite} main\n");
    write("sources.list", &source)?;
    let mut update = apt("apt-get", &folder);
    // Without a network, the lists of the last time are used.
    command::run_patiently(update.arg("update"), Patience::seconds(300))?;
    let names = command::output(apt("apt-cache", &folder).args(["pkgnames", "linux-image-"]))?;
    let default = command::output(apt("apt-cache", &folder).args(["depends", DEFAULT_KERNEL]))?;
    let default = default.lines().find_map(dependency_on_image);
    Ok(names
        .lines()
        .filter_map(|package| Kernel::of(package, suite, default))
        .collect())
}

/// `  Depends: linux-image-7.2.13+deb14-amd64`, which need not stand first.
fn dependency_on_image(line: &str) -> Option<&str> {
    let package = line.trim().strip_prefix("Depends: ")?;
    package.starts_with("linux-image-").then_some(package)
}

/// One of apt's programs, with lists and files below a folder.
fn apt(program: &str, folder: &Path) -> Command {
    let mut apt = Command::new(program);
    for (name, value) in [
        ("Dir::Etc::SourceList", "sources.list"),
        ("Dir::State::Lists", "lists"),
        ("Dir::State::Status", "status"),
        ("Dir::Cache", "cache"),
    ] {
        let setting = format!("{name}={}", folder.join(value).display());
        apt.args(["--option", &setting]);
    }
    for setting in [
        "Dir::Etc::SourceParts=/dev/null",
        "APT::Architecture=amd64",
        "APT::Sandbox::User=root", // which may not write below a home
        "Acquire::Languages=none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false",
    ] {
        apt.args(["--option", setting]);
    }
    apt
}

/// Where this machine gets Debian's packages from.
fn mirror() -> Result<String> {
    if let Ok(mirror) = env::var(MIRROR_VARIABLE)
        && !mirror.is_empty()
    {
        return Ok(mirror);
    }
    let no_mirror = format!(
        "this machine does not say where Debian's packages are.\nName a mirror: {MIRROR_VARIABLE}=…"
    );
    if !host::has_apt() {
        bail!("the kernels come through apt, which this machine does not have");
    }
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", "$(REPO_URI)"]);
    targets.arg("Created-By: Packages");
    let targets = command::output(&mut targets).context(no_mirror.clone())?;
    targets
        .lines()
        .find(|uri| uri.trim_end_matches('/').ends_with("/debian"))
        .map(str::to_owned)
        .context(no_mirror)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernels() -> Vec<Kernel> {
        let mut kernels: Vec<Kernel> = [
            ("linux-image-7.2.13+deb14-amd64", true),
            ("linux-image-6.1.0-50-amd64", true),
            ("linux-image-6.1.0-47-amd64", false),
            ("linux-image-6.12.9+deb13-amd64", false),
            ("linux-image-6.12.117+deb13-amd64", true),
            ("linux-image-6.12.117+deb13-cloud-amd64", false),
            ("linux-image-6.12.117+deb13-rt-amd64", false),
            ("linux-image-6.12.117+deb13-amd64-dbg", false),
            ("linux-image-amd64", false),
        ]
        .into_iter()
        .filter_map(|(package, default)| Kernel::of(package, "sid", default.then_some(package)))
        .collect();
        kernels.sort_by_key(Kernel::numbers);
        kernels
    }

    fn names(wanted: &[&str]) -> Vec<String> {
        let kernels = kernels();
        let chosen = chosen(&kernels, wanted).unwrap();
        chosen.iter().map(|kernel| kernel.name.clone()).collect()
    }

    #[test]
    fn the_newest_of_each_series_is_chosen() {
        assert_eq!(kernels().len(), 5);
        let all = ["6.1.0-50", "6.12.117+deb13", "7.2.13+deb14"];
        assert_eq!(names(&[]), all);
        assert_eq!(names(&["all"]), all);
    }

    #[test]
    fn a_version_is_meant_by_its_beginning() {
        assert_eq!(names(&["6.1"]), ["6.1.0-50"]);
        assert_eq!(names(&["6.12.9", "7"]), ["6.12.9+deb13", "7.2.13+deb14"]);
        let err = chosen(&kernels(), &["6.1", "5.8"]).unwrap_err();
        assert!(err.to_string().contains("no kernel 5.8 is served"), "{err}");
    }
}
