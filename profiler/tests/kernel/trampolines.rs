//! What gives trampolines to a CPython that has none, as an installation would lay it out.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tempfile::TempDir;

/// A folder that is removed with this value:
///
/// ```text
/// launch/sitecustomize.py      switches trampolines on in whatever starts with launch/ in PYTHONPATH
/// launch/pyprof_trampoline     a link to the package
/// package/pyprof_trampoline/   the package, with _native.so; with package/ in PYTHONPATH it can be imported
/// ```
#[derive(Debug)]
pub(super) struct Trampolines {
    pub(super) folder: TempDir,
}

impl Trampolines {
    /// Copied from the sources, and from where cargo has put the shared object: it builds `profiler-trampoline` for
    /// these tests because their package has it as a dev-dependency.
    pub(super) fn copied() -> Self {
        // Not in /tmp: some trials give their programs another one.
        let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR"))
            .expect("cargo has made a folder for temporary files");
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../profiler-trampoline/python");
        let package = folder.path().join("package/pyprof_trampoline");
        copy_files(&sources.join("pyprof_trampoline"), &package);
        fs::copy(shared_object(), package.join("_native.so")).unwrap();
        let launch = folder.path().join("launch");
        copy_files(&sources.join("launch"), &launch);
        std::os::unix::fs::symlink(&package, launch.join("pyprof_trampoline")).unwrap();
        Self { folder }
    }

    /// In PYTHONPATH, it switches trampolines on.
    pub(super) fn launch(&self) -> PathBuf {
        self.folder.path().join("launch")
    }
}

fn copy_files(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    let entries = fs::read_dir(from).unwrap_or_else(|err| panic!("{}: {err}", from.display()));
    for file in entries.map(|entry| entry.unwrap().path()) {
        if file.is_file() {
            fs::copy(&file, to.join(file.file_name().unwrap())).unwrap();
        }
    }
}

/// Beside this test program, which is where cargo puts what it was built with.
fn shared_object() -> PathBuf {
    let program = env::current_exe().unwrap();
    let file = program.with_file_name("libpyprof_trampoline.so");
    assert!(
        file.is_file(),
        "{} was not built with this test program",
        file.display()
    );
    file
}
