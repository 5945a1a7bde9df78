//! What a compiled file needs of the system that it is installed on.

use anyhow::{Context as _, Result, bail};
use object::{
    Endianness,
    elf::{DT_NEEDED, DT_RPATH, DT_RUNPATH, FileHeader64},
    read::elf::{Dyn as _, FileHeader as _},
};

/// Libraries that every glibc system has.
const LIBRARIES: [&str; 6] = [
    "libc.so.6",
    "libdl.so.2",
    "libm.so.6",
    "libpthread.so.0",
    "librt.so.1",
    "ld-linux-x86-64.so.2",
];

/// What an ELF file asks for.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Libraries, by `DT_NEEDED`.
    libraries: Vec<String>,
    /// `GLIBC_2.17` and the like, each once.
    versions: Vec<String>,
    /// Folders to look for libraries in; of no use on another machine.
    search_paths: Vec<String>,
}

impl Needs {
    /// Reads them from the bytes of the file.
    pub(super) fn of(data: &[u8]) -> Result<Self> {
        let header = FileHeader64::<Endianness>::parse(data).context("it is no ELF file")?;
        let endian = header.endian()?;
        let sections = header.sections(endian, data)?;
        let mut needs = Self::default();
        if let Some((entries, link)) = sections.dynamic(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            for entry in entries {
                let list = match entry.tag(endian) {
                    DT_NEEDED => &mut needs.libraries,
                    DT_RPATH | DT_RUNPATH => &mut needs.search_paths,
                    _ => continue,
                };
                list.push(text(entry.string(endian, strings)?));
            }
        }
        if let Some((mut files, link)) = sections.gnu_verneed(endian, data)? {
            let strings = sections.strings(endian, data, link)?;
            while let Some((_, mut versions)) = files.next()? {
                while let Some(version) = versions.next()? {
                    needs.versions.push(text(version.name(endian, strings)?));
                }
            }
        }
        needs.versions.sort();
        needs.versions.dedup();
        Ok(needs)
    }

    /// Is a system with this glibc enough?
    pub(super) fn check(&self, glibc: (u32, u32)) -> Result<()> {
        if let Some(path) = self.search_paths.first() {
            bail!("it looks for libraries in {path}");
        }
        let other = |library: &&String| !LIBRARIES.contains(&library.as_str());
        if let Some(library) = self.libraries.iter().find(other) {
            bail!("it needs the library {library}");
        }
        let newer = |version: &&String| glibc_version(version).is_none_or(|needed| needed > glibc);
        if let Some(version) = self.versions.iter().find(newer) {
            bail!(
                "it needs {version}, and glibc {}.{} is to be enough",
                glibc.0,
                glibc.1
            );
        }
        if !self.libraries.is_empty() && self.versions.is_empty() {
            bail!("it says no version of the libraries that it needs");
        }
        Ok(())
    }
}

/// `GLIBC_2.17` and `GLIBC_2.2.5` as numbers; `None` for versions of anything else.
fn glibc_version(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.strip_prefix("GLIBC_")?.split('.');
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn needs(versions: &[&str]) -> Needs {
        Needs {
            libraries: vec!["libc.so.6".into()],
            versions: versions.iter().map(|&version| version.to_owned()).collect(),
            search_paths: Vec::new(),
        }
    }

    #[test]
    fn a_newer_glibc_is_refused_and_so_is_what_is_not_known() {
        assert!(needs(&["GLIBC_2.2.5", "GLIBC_2.31"]).check((2, 31)).is_ok());
        for version in ["GLIBC_2.32", "GLIBC_3.0", "GLIBC_ABI_DT_RELR", "GCC_3.0"] {
            let refused = needs(&["GLIBC_2.2.5", version]).check((2, 31));
            assert!(refused.unwrap_err().to_string().contains(version));
        }
    }

    #[test]
    fn folders_and_libraries_of_this_machine_are_refused() {
        let mut own = needs(&["GLIBC_2.2.5"]);
        own.libraries.push("libpython3.11.so.1.0".into());
        assert!(own.check((2, 31)).is_err());
        let mut own = needs(&["GLIBC_2.2.5"]);
        own.search_paths.push("/opt/lib".into());
        assert!(own.check((2, 31)).is_err());
    }

    /// This test program is linked as the machine links: some glibc is asked for.
    #[test]
    fn the_needs_of_a_real_file_are_read() {
        let own = fs::read("/proc/self/exe").unwrap();
        let needs = Needs::of(&own).unwrap();
        assert!(needs.libraries.contains(&"libc.so.6".to_owned()));
        assert!(
            needs
                .versions
                .iter()
                .any(|version| glibc_version(version) >= Some((2, 2)))
        );
    }
}
