//! Which CPython a command is, as far as its files tell before it runs.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::Read as _,
    os::unix::{ffi::OsStrExt as _, fs::PermissionsExt as _},
    path::{Path, PathBuf},
};

use crate::process::{file_name, python::version_of_program};

/// Bytes of a script's first line that the kernel reads (`BINPRM_BUF_SIZE`, include/uapi/linux/binfmts.h).
const FIRST_LINE_BYTES: u64 = 256;

/// Scripts that are the interpreters of scripts: the kernel gives up after five (`exec_binprm`, fs/exec.c), and `env`
/// begins anew.
const SCRIPTS_MAX: usize = 8;

/// Where `execvp` looks when there is no `PATH`.
const PATH_WITHOUT_ONE: &str = "/bin:/usr/bin";

/// What is known of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    /// Nothing of this name can be run.
    Missing,
    /// It is this CPython.
    Python(u8, u8),
    /// It is something else, or cannot be told: a shell script, `make`, a service, which may start a Python.
    Unknown,
}

impl Program {
    /// Finds it as `execvp` would: searched on `path`, scripts followed to their interpreters. Reads parts of files.
    pub(super) fn find(name: &OsStr, path: Option<&OsStr>) -> Self {
        let mut name = name.to_owned();
        for _ in 0..SCRIPTS_MAX {
            let Some(file) = search(&name, path) else {
                return Self::Missing;
            };
            let Some(opened) = open_program(&file) else {
                return Self::Unknown;
            };
            match interpreter_of(&opened) {
                Some(interpreter) => name = interpreter,
                None => return Self::of_file(&opened, &file),
            }
        }
        Self::Unknown
    }

    fn of_file(opened: &File, path: &Path) -> Self {
        // `python` may be a link: what it leads to has the longer name.
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match version_of_program(opened, &file_name(&path)) {
            Some((major, minor)) => Self::Python(major, minor),
            None => Self::Unknown,
        }
    }
}

/// A file that can be run. A name with a slash is a path already.
fn search(name: &OsStr, path: Option<&OsStr>) -> Option<PathBuf> {
    let is_program = |file: &PathBuf| {
        fs::metadata(file)
            .is_ok_and(|about| about.is_file() && about.permissions().mode() & 0o111 != 0)
    };
    if name.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(name)).filter(is_program);
    }
    if name.is_empty() {
        return None;
    }
    env::split_paths(path.unwrap_or(PATH_WITHOUT_ONE.as_ref()))
        .map(|folder| folder.join(name))
        .find(is_program)
}

/// Nothing else is opened: a FIFO would wait for its other end.
fn open_program(path: &Path) -> Option<File> {
    let file = File::open(path).ok()?;
    file.metadata()
        .is_ok_and(|about| about.is_file())
        .then_some(file)
}

/// The program that a script names in its first line, through `env` too; `None` if it is no script.
fn interpreter_of(file: &File) -> Option<OsString> {
    let mut start = Vec::new();
    file.take(FIRST_LINE_BYTES).read_to_end(&mut start).ok()?;
    let line = start
        .strip_prefix(b"#!")?
        .split(|&byte| byte == b'\n')
        .next()?;
    let mut words = line
        .split(|&byte| byte == b' ' || byte == b'\t')
        .filter(|word| !word.is_empty())
        .map(OsStr::from_bytes);
    let interpreter = words.next()?;
    if file_name(Path::new(interpreter)) != "env" {
        return Some(interpreter.to_owned());
    }
    env_program(words).map(OsStr::to_owned)
}

/// What `env` will run: the first of its words that is neither an option nor a variable. The words after `-S` are as
/// if it had been called with them.
fn env_program<'w>(mut words: impl Iterator<Item = &'w OsStr>) -> Option<&'w OsStr> {
    while let Some(word) = words.next() {
        let bytes = word.as_bytes();
        match bytes {
            b"-u" | b"--unset" | b"-C" | b"--chdir" => drop(words.next()),
            [b'-', b'S', rest @ ..] if !rest.is_empty() => return Some(OsStr::from_bytes(rest)),
            [b'-', ..] => {}
            _ if bytes.contains(&b'=') => {}
            _ => return Some(word),
        }
    }
    None
}

#[cfg(test)]
#[path = "program_tests.rs"]
mod tests;
