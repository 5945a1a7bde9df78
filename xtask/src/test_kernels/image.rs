//! The guest's whole file system, as the kernel unpacks it into memory.
//!
//! Everything in it is this machine's: the program, a Python with its standard library, busybox, and the shared
//! libraries of all three, each at the path that it has here.

use std::{
    collections::BTreeSet,
    fs,
    io::ErrorKind,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context as _, Result};

use super::checks::Check;
use crate::{command, host, pythons::Python};

/// The guest's first process.
const INIT: &str = include_str!("init.sh");

/// Where an interpreter and its standard library really are; a virtual environment has only links to them.
const ASK: &str = "import os, sys, sysconfig
print(os.path.realpath(sys.executable))
print(os.path.dirname(os.__file__))
print(sysconfig.get_config_var('DESTSHARED'))";

/// Compiles a tree for the place that it will have. What is compiled counts whatever the time of its source, which is
/// another one for a copy: an emulated CPU would compile for seconds at each start.
const COMPILE: [&str; 6] = [
    "-I",
    "-m",
    "compileall",
    "-q",
    "--invalidation-mode",
    "unchecked-hash",
];

/// Parts of a standard library that no workload imports, and what was installed beside it.
const LEFT_OUT: [&str; 11] = [
    "__pycache__",
    "dist-packages",
    "ensurepip",
    "idlelib",
    "lib2to3",
    "pydoc_data",
    "site-packages",
    "test",
    "tests",
    "tkinter",
    "turtledemo",
];

/// Makes the image anew; gives its file.
pub(super) fn build(
    folder: &Path,
    profiler: &Path,
    python: &Python,
    checks: &[Check],
) -> Result<PathBuf> {
    let root = Root::new(folder.join("root"))?;
    for folder in ["proc", "sys", "dev", "tmp", "etc"] {
        root.folder(Path::new(folder))?;
    }
    let busybox = host::which("busybox").context("busybox is not on PATH")?;
    root.program(&busybox, Path::new("/bin/busybox"))?;
    // Which not every busybox has.
    let nice = host::which("nice").context("nice is not on PATH")?;
    root.program(&nice, Path::new("/bin/nice"))?;
    root.program(profiler, Path::new("/bin/pyprof-bpf"))?;
    root.tree(
        &host::workspace().join("workloads"),
        Path::new("/workloads"),
    )?;
    let interpreter = python_files(&root, python)?;

    let mut script = format!("PYTHON={}\n", interpreter.display());
    for check in checks {
        script.push_str(&check.line());
        script.push('\n');
    }
    root.text("checks", &script)?;
    root.text("init", INIT)?;
    root.packed(&folder.join("image.cpio"))
}

/// The interpreter and its standard library; gives the interpreter's path.
fn python_files(root: &Root, python: &Python) -> Result<PathBuf> {
    let asked = command::output(Command::new(&python.path).args(["-I", "-c", ASK]))?;
    let mut lines = asked.lines().map(PathBuf::from);
    let mut path = || {
        lines
            .next()
            .context("the interpreter does not say where it is")
    };
    let (interpreter, library, extensions) = (path()?, path()?, path()?);
    root.program(&interpreter, &interpreter)?;
    root.tree(&library, &library)?;
    if !extensions.starts_with(&library) {
        root.tree(&extensions, &extensions)?;
    }
    let mut compile = Command::new(&python.path);
    compile.args(COMPILE).arg("-s").arg(&root.0);
    compile.args(["-p", "/"]).arg(root.inside(&library));
    command::run(&mut compile)?;
    let extensions = fs::read_dir(&extensions)
        .with_context(|| format!("cannot list {}", extensions.display()))?;
    for extension in extensions.flatten().map(|entry| entry.path()) {
        if extension.extension().is_some_and(|it| it == "so") {
            root.libraries_of(&extension)?;
        }
    }
    Ok(interpreter)
}

/// The folder that becomes the guest's file system.
struct Root(PathBuf);

impl Root {
    /// An empty one, in the place of what was there.
    fn new(path: PathBuf) -> Result<Self> {
        match fs::remove_dir_all(&path) {
            Err(err) if err.kind() != ErrorKind::NotFound => {
                Err(err).with_context(|| format!("cannot remove {}", path.display()))
            }
            _ => Ok(Self(path)),
        }
    }

    /// Where a path of the guest is here.
    fn inside(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    fn folder(&self, path: &Path) -> Result<()> {
        let folder = self.inside(path);
        fs::create_dir_all(&folder).with_context(|| format!("cannot make {}", folder.display()))
    }

    fn text(&self, name: &str, text: &str) -> Result<()> {
        let file = self.0.join(name);
        fs::write(&file, text)
            .and_then(|()| fs::set_permissions(&file, fs::Permissions::from_mode(0o755)))
            .with_context(|| format!("cannot write {}", file.display()))
    }

    /// Copies a file; what is a link here is a file there.
    fn file(&self, from: &Path, to: &Path) -> Result<()> {
        if let Some(parent) = to.parent() {
            self.folder(parent)?;
        }
        let to = self.inside(to);
        fs::copy(from, &to)
            .with_context(|| format!("cannot copy {} to {}", from.display(), to.display()))?;
        Ok(())
    }

    /// Copies a program and the libraries that it is linked to.
    fn program(&self, from: &Path, to: &Path) -> Result<()> {
        self.file(from, to)?;
        self.libraries_of(from)
    }

    fn libraries_of(&self, program: &Path) -> Result<()> {
        for library in libraries(program)? {
            if !self.inside(&library).exists() {
                self.file(&library, &library)?;
            }
        }
        Ok(())
    }

    /// Copies a folder with all that is in it, but for what is left out.
    fn tree(&self, from: &Path, to: &Path) -> Result<()> {
        self.folder(to)?;
        let entries =
            fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))?;
        for entry in entries.flatten() {
            let name = entry.file_name();
            let text = name.to_string_lossy();
            let (from, to) = (entry.path(), to.join(&name));
            // Links count as what they lead to; one that leads nowhere is nothing.
            let Ok(kind) = fs::metadata(&from) else {
                continue;
            };
            if kind.is_dir() && !LEFT_OUT.contains(&text.as_ref()) && !text.starts_with("config-") {
                self.tree(&from, &to)?;
            } else if kind.is_file() && !text.ends_with(".a") {
                self.file(&from, &to)?;
            }
        }
        Ok(())
    }

    /// Packs it into an archive that the kernel can unpack. Not compressed: an emulated CPU would take long to undo it.
    fn packed(&self, archive: &Path) -> Result<PathBuf> {
        let mut pack = Command::new("sh");
        pack.args(["-c", PACK, "sh"]).arg(archive);
        command::run(pack.current_dir(&self.0))?;
        Ok(archive.to_owned())
    }
}

const PACK: &str =
    "find . -print0 | cpio --null --create --format=newc --owner=+0:+0 --quiet --file=\"$1\"";

/// The shared libraries of a program, and the loader that finds them, as `ldd` does.
fn libraries(program: &Path) -> Result<BTreeSet<PathBuf>> {
    let said = Command::new("ldd").arg(program).output();
    let said = said.context("cannot start ldd")?; // fails for programs without libraries
    Ok(paths_of(&String::from_utf8_lossy(&said.stdout)))
}

/// Paths in lines such as `libc.so.6 => /lib/libc.so.6 (0x…)` and `/lib64/ld-linux-x86-64.so.2 (0x…)`.
fn paths_of(said: &str) -> BTreeSet<PathBuf> {
    let words = said.lines().filter_map(|line| {
        let line = line.rsplit("=> ").next()?.trim();
        line.split(' ').next()
    });
    words
        .filter(|word| word.starts_with('/'))
        .map(PathBuf::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_found_by_their_paths() {
        let said = "\tlinux-vdso.so.1 (0x00007ffd)\n\tlibc.so.6 => /lib/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n\tlibgone.so => not found\n";
        let paths = [
            PathBuf::from("/lib/libc.so.6"),
            PathBuf::from("/lib64/ld-linux-x86-64.so.2"),
        ];
        assert_eq!(paths_of(said), BTreeSet::from(paths));
        assert!(paths_of("\tnot a dynamic executable\n").is_empty());
    }
}
