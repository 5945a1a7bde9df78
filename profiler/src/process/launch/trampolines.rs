//! Trampolines for the CPythons that have none of their own, 3.9 to 3.11: a folder for `PYTHONPATH`.
//!
//! Python imports a module `sitecustomize` before anything of the program, wherever on its path it finds one. Ours
//! switches trampolines on and gives way to the user's. A variable reaches child processes too, whatever starts them.

use std::{
    collections::hash_map::RandomState,
    env,
    ffi::{OsStr, OsString},
    fs::{self, DirBuilder, File, Permissions},
    hash::{BuildHasher as _, Hasher as _},
    io::{self, Write as _},
    os::unix::{
        ffi::OsStrExt as _,
        fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _},
    },
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use rustix::fs::{FlockOperation, StatVfsMountFlags, flock, statvfs};

use super::{caller::sudo_caller, program::Program};

/// The variable that Python's module path begins with.
pub(super) const PYTHON_PATH: &str = "PYTHONPATH";

/// A name in the folder, and what the file holds.
type Content = (&'static str, &'static [u8]);

/// The package in the folder.
const PACKAGE: &str = "pyprof_trampoline";

macro_rules! python_source {
    ($name:literal) => {
        include_bytes!(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../profiler-trampoline/python/",
            $name
        ))
    };
}

/// What every folder's name begins with.
const NAME: &str = "pyprof-trampolines-";

/// A folder that is older than this is locked, unless its maker is gone.
const LOCKED_AFTER: Duration = Duration::from_mins(1);

/// What is in the folder: made by the build script, or taken as it is.
const FILES: [Content; 4] = [
    (
        "pyprof_trampoline/_native.so",
        include_bytes!(concat!(env!("OUT_DIR"), "/libpyprof_trampoline.so")),
    ),
    (
        "pyprof_trampoline/__init__.py",
        python_source!("pyprof_trampoline/__init__.py"),
    ),
    (
        "pyprof_trampoline/__main__.py",
        python_source!("pyprof_trampoline/__main__.py"),
    ),
    (
        "sitecustomize.py",
        python_source!("launch/sitecustomize.py"),
    ),
];

/// A folder with trampolines for a command and its children, removed when this is dropped. Pythons that run keep what
/// they have loaded; those that start later get no names.
///
/// A daemon that the command left behind still has the path in its environment, and its Pythons look there. So where
/// others could make a folder of the same name, ours stays, empty.
#[derive(Debug)]
pub struct TrampolineFolder {
    path: PathBuf,
    /// Others may make files beside it.
    is_shared: bool,
    /// The folder itself, locked for as long as this process lives: how others see that it is in use.
    lock: Option<File>,
}

/// There is no place for such a folder.
#[derive(Debug, thiserror::Error)]
#[error(
    "no Python names from CPython 3.9 to 3.11: there is no place for their trampolines. Set TMPDIR to a directory that \
     can be written to, only by you or with its sticky bit set, and is not mounted noexec; not fit are{}",
    list(refused)
)]
pub struct NoPlace {
    refused: Vec<(PathBuf, String)>,
}

fn list(refused: &[(PathBuf, String)]) -> String {
    refused
        .iter()
        .map(|(path, why)| format!(" {} ({why})", path.display()))
        .collect::<Vec<_>>()
        .join(",")
}

impl TrampolineFolder {
    /// Makes one if `command` may run a Python that needs it; `None` if it surely does not: it is a CPython of another
    /// version, or cannot be run at all.
    pub fn for_command(command: &[OsString]) -> Result<Option<Self>, NoPlace> {
        let Some(program) = command.first() else {
            return Ok(None);
        };
        match Program::find(program, env::var_os("PATH").as_deref()) {
            Program::Unknown | Program::Python(3, 9..=11) => {
                let places = places();
                remove_leftovers(&places, LOCKED_AFTER);
                Self::make(&places).map(Some)
            }
            Program::Python(..) | Program::Missing => Ok(None),
        }
    }

    /// Makes one in the first of these places that is fit, rather in one that is not shared with others.
    fn make(places: &[PathBuf]) -> Result<Self, NoPlace> {
        let mut refused = Vec::new();
        let mut shared = Vec::new();
        for place in places {
            match fit(place) {
                Ok(fit) if fit.is_shared => shared.push((place, fit)),
                Ok(fit) => match Self::make_in(&fit) {
                    Ok(folder) => return Ok(folder),
                    Err(err) => refused.push((place.clone(), err.to_string())),
                },
                Err(why) => refused.push((place.clone(), why)),
            }
        }
        for (place, fit) in shared {
            match Self::make_in(&fit) {
                Ok(folder) => return Ok(folder),
                Err(err) => refused.push((place.clone(), err.to_string())),
            }
        }
        Err(NoPlace { refused })
    }

    fn make_in(place: &Place) -> io::Result<Self> {
        // The name cannot be known beforehand, and what exists is never taken.
        let random = RandomState::new().build_hasher().finish();
        let name = format!("{NAME}{}-{random:016x}", std::process::id());
        let private = 0o700;
        let path = place.path.join(name);
        DirBuilder::new().mode(private).create(&path)?;
        let lock = File::open(&path).ok();
        let lock = lock.filter(|it| flock(it, FlockOperation::NonBlockingLockExclusive).is_ok());
        let mut folder = Self {
            path,
            is_shared: false,
            lock,
        };
        make_folder(&folder.path.join(PACKAGE))?;
        for (name, content) in FILES {
            let mut file = File::create_new(folder.path.join(name))?;
            file.write_all(content)?;
            // Whatever the umask: the command may run as another user.
            file.set_permissions(Permissions::from_mode(0o644))?;
        }
        // Complete: now others may look into it.
        fs::set_permissions(&folder.path, Permissions::from_mode(0o755))?;
        folder.is_shared = place.is_shared;
        Ok(folder)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The value of `PYTHONPATH`: this folder, and behind it what the user had there.
    pub(super) fn python_path(&self, users: Option<&OsStr>) -> OsString {
        let mut value = self.path.clone().into_os_string();
        // An empty entry would be the current directory.
        if let Some(users) = users.filter(|users| !users.is_empty()) {
            value.push(":");
            value.push(users);
        }
        value
    }
}

impl Drop for TrampolineFolder {
    fn drop(&mut self) {
        remove(&self.path, self.is_shared);
        // Not before it is empty: nobody else need look into it.
        self.lock.take();
    }
}

/// Removes a folder of ours with all that is in it, or only the latter where the name must stay taken.
fn remove(folder: &Path, is_shared: bool) {
    // A Python that is just starting may add a compiled file to a folder that is being emptied.
    for _ in 0..3 {
        let removed = if is_shared {
            empty(folder)
        } else {
            fs::remove_dir_all(folder)
        };
        if removed.is_ok() {
            return;
        }
    }
}

/// Removes the folders of profilers that were killed: nobody holds their locks. Should a command of theirs still run,
/// Pythons that it starts from now on get no trampolines, as at the end of every recording.
fn remove_leftovers(places: &[PathBuf], older_than: Duration) {
    for place in places.iter().filter_map(|place| fit(place).ok()) {
        let entries = fs::read_dir(&place.path).into_iter().flatten().flatten();
        for entry in
            entries.filter(|entry| entry.file_name().as_bytes().starts_with(NAME.as_bytes()))
        {
            if is_leftover(&entry.path(), older_than) {
                remove(&entry.path(), place.is_shared);
            }
        }
    }
}

/// A folder of this user, old enough to be locked, and not locked.
fn is_leftover(folder: &Path, older_than: Duration) -> bool {
    let Ok(about) = fs::symlink_metadata(folder) else {
        return false;
    };
    let own = rustix::process::geteuid().as_raw();
    let age = |made| SystemTime::now().duration_since(made).ok();
    let is_old = about.modified().ok().and_then(age) >= Some(older_than);
    about.is_dir()
        && about.uid() == own
        && is_old
        && File::open(folder)
            .is_ok_and(|it| flock(&it, FlockOperation::NonBlockingLockExclusive).is_ok())
}

fn empty(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            fs::remove_dir_all(entry.path())?;
        } else {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

fn make_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().mode(0o755).create(path)?;
    fs::set_permissions(path, Permissions::from_mode(0o755))
}

/// Directories that may hold the folder, the preferred one first.
fn places() -> Vec<PathBuf> {
    let mut places = vec![env::temp_dir()];
    if rustix::process::geteuid().is_root() {
        places.push(PathBuf::from("/run"));
    } else {
        places.extend(env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from));
    }
    places.extend(env::home_dir());
    places.extend(["/tmp", "/var/tmp", "/dev/shm"].map(PathBuf::from));
    let mut seen = Vec::new();
    places.retain(|place| {
        let is_new = !seen.contains(place);
        seen.push(place.clone());
        is_new
    });
    places
}

/// A directory that is fit for the folder.
#[derive(Debug, PartialEq, Eq)]
struct Place {
    /// Its real path.
    path: PathBuf,
    /// Others can make files in it, such as in `/tmp`, but not replace ours.
    is_shared: bool,
}

/// A directory in which others can neither replace the folder nor are kept from it, and from which code can be loaded;
/// else why not. One of the user who called sudo is not fit: root would write where that user can lay links.
fn fit(place: &Path) -> Result<Place, String> {
    let place = fs::canonicalize(place).map_err(|err| err.to_string())?;
    if place.as_os_str().as_bytes().contains(&b':') {
        return Err("its name has a colon, which separates the entries of PYTHONPATH".to_owned());
    }
    let own = rustix::process::geteuid().as_raw();
    let mut is_shared = None;
    for directory in place.ancestors() {
        let about = fs::metadata(directory).map_err(|err| err.to_string())?;
        let (owner, mode) = (about.uid(), about.mode());
        if owner != 0 && owner != own {
            return Err(format!("{} is another user's", directory.display()));
        }
        if mode & 0o022 != 0 && mode & 0o1000 == 0 {
            return Err(format!("others can write to {}", directory.display()));
        }
        // The command is to find its way as whoever called sudo.
        if sudo_caller().is_some() && mode & 0o001 == 0 {
            return Err(format!("{} is closed to others", directory.display()));
        }
        is_shared.get_or_insert(mode & 0o022 != 0);
    }
    match statvfs(&place) {
        Ok(about) if about.f_flag.contains(StatVfsMountFlags::NOEXEC) => {
            Err("mounted noexec".to_owned())
        }
        Ok(_) => Ok(Place {
            path: place,
            is_shared: is_shared.unwrap_or(true),
        }),
        Err(err) => Err(err.to_string()),
    }
}

#[cfg(test)]
#[path = "trampolines_tests.rs"]
mod tests;
