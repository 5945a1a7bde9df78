//! What to call a process in a few words.

use std::{ffi::OsString, os::unix::ffi::OsStrExt as _};

use super::{
    command_line::{Runs, runs, without_loader},
    program_name::is_python_program,
};

/// Longest label, in characters.
const CHARS_MAX: usize = 48;

/// A short name for a process, from its arguments; `comm`, the kernel's name for it, where it has none.
///
/// * A title that the process gave itself stays as it is: `gunicorn: worker [app:app]`.
/// * A Python is called after what it runs: `app.py`, `python -m celery`, `python -c`; what `multiprocessing` starts,
///   after the module that does the work: `multiprocessing.spawn`.
/// * Any other program has its own name, without the folder.
///
/// May hold any character.
pub(super) fn process_label(arguments: &[OsString], comm: &str) -> String {
    // A title is written over the arguments; what is left of their room is zeros.
    let last = arguments
        .iter()
        .rposition(|argument| !argument.is_empty())
        .map_or(0, |last| last + 1);
    let arguments = without_loader(&arguments[..last]);
    let label = match arguments {
        [] => comm.to_owned(),
        [only] if is_title(only.as_bytes()) => text(only.as_bytes()).trim().to_owned(),
        [program, ..] => {
            let program = file_name(program.as_bytes());
            if is_python_program(program) {
                python_label(program, arguments)
            } else {
                // A login shell is called `-bash`.
                text(program.strip_prefix(b"-").unwrap_or(program))
            }
        }
    };
    if label.is_empty() {
        comm.to_owned()
    } else {
        clipped(&label)
    }
}

/// One argument of several words, and no path with spaces in it.
fn is_title(argument: &[u8]) -> bool {
    argument.trim_ascii().contains(&b' ') && !argument.starts_with(b"/")
}

fn python_label(program: &[u8], arguments: &[OsString]) -> String {
    match runs(arguments) {
        Runs::Script(path) => text(script_name(path)),
        Runs::Module(module) => format!("python -m {}", text(module)),
        Runs::Code(code) => starter(code).unwrap_or_else(|| "python -c".to_owned()),
        Runs::Input => text(program),
    }
}

/// The file's name; with its folder's, where all files of that name are alike.
fn script_name(path: &[u8]) -> &[u8] {
    let path = path.strip_suffix(b"/").unwrap_or(path);
    let name = file_name(path);
    if name != b"__main__.py" || name.len() == path.len() {
        return name;
    }
    let folder = file_name(&path[..path.len() - name.len() - 1]);
    &path[path.len() - name.len() - 1 - folder.len()..]
}

/// `multiprocessing` starts its processes by `-c 'from multiprocessing.spawn import spawn_main; …'`.
fn starter(code: &[u8]) -> Option<String> {
    let module = code.strip_prefix(b"from ")?;
    let end = module.iter().position(|&byte| byte == b' ')?;
    let module = &module[..end];
    module
        .starts_with(b"multiprocessing.")
        .then(|| text(module))
}

fn file_name(path: &[u8]) -> &[u8] {
    path.rsplit(|&byte| byte == b'/').next().unwrap_or(path)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn clipped(label: &str) -> String {
    match label.char_indices().nth(CHARS_MAX) {
        None => label.to_owned(),
        Some(_) => label.chars().take(CHARS_MAX - 1).chain(['…']).collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    /// Arguments as `/proc/PID/cmdline` has them.
    fn label(line: &[u8]) -> String {
        let arguments: Vec<OsString> = line
            .split(|&byte| byte == 0)
            .map(|argument| OsStr::from_bytes(argument).to_owned())
            .collect();
        process_label(&arguments, "comm")
    }

    #[test]
    fn a_title_stays_as_it_is() {
        for title in [
            "gunicorn: worker [app:app]",
            "celeryd: celery@web1:ForkPoolWorker-3 idle",
        ] {
            assert_eq!(label(title.as_bytes()), title);
        }
        assert_eq!(label(b"postgres: checkpointer "), "postgres: checkpointer");
        assert_eq!(
            label(b"gunicorn: master [app:app]\0\0\0\0"),
            "gunicorn: master [app:app]"
        );
    }

    #[test]
    fn a_python_is_called_after_what_it_runs() {
        for (line, expected) in [
            (&b"/usr/bin/python3.12\0-X\0perf\0/srv/app/serve.py\0--port\x0080"[..], "serve.py"),
            (b"python\0-u\0-m\0celery\0worker", "python -m celery"),
            (b"python3.13t\0-c\0while True: pass", "python -c"),
            (b"python3", "python3"),
            (b"/lib64/ld-linux-x86-64.so.2\0/usr/bin/python3\0app.py", "app.py"),
            (b"/lib64/ld-linux-x86-64.so.2\0--library-path\0/x\0/usr/bin/nginx", "nginx"),
            (b"/venv/bin/python\0/venv/bin/gunicorn\0app:app", "gunicorn"),
            (b"python\0tool/__main__.py", "tool/__main__.py"),
            (b"python\0/a/b/tool/__main__.py", "tool/__main__.py"),
            (b"python\0__main__.py", "__main__.py"),
            (b"python\0/a/tool/", "tool"),
            (
                b"/usr/bin/python3\0-c\0from multiprocessing.spawn import spawn_main; spawn_main(tracker_fd=5, pipe_handle=7)\0--multiprocessing-fork",
                "multiprocessing.spawn",
            ),
            (b"python\0-c\0from os import x", "python -c"),
        ] {
            assert_eq!(label(line), expected);
        }
    }

    #[test]
    fn other_programs_have_their_own_names() {
        assert_eq!(label(b"/usr/sbin/nginx\0-g\0daemon off;"), "nginx");
        assert_eq!(label(b"-bash"), "bash");
        assert_eq!(label(b"/opt/My App/run"), "run");
        assert_eq!(label(b"ipython\0x.py"), "ipython");
    }

    #[test]
    fn without_arguments_the_kernels_name_is_left() {
        assert_eq!(label(b""), "comm");
        assert_eq!(label(b"\0\0"), "comm");
        assert_eq!(label(b"/"), "comm");
        assert_eq!(process_label(&[], "python"), "python");
    }

    #[test]
    fn a_long_label_is_clipped_between_characters() {
        let long = "é".repeat(100);
        let clipped = label(format!("python\0/x/{long}.py").as_bytes());
        assert_eq!(clipped, "é".repeat(47) + "…");
        assert_eq!(label(b"\xff\xfe"), "\u{fffd}\u{fffd}");
    }
}
