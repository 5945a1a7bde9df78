//! What the name of a program says of it.

/// The name, without its folder, is one of a Python interpreter: `python`, `python3.12`, `python3.13t`, `python3.11-dbg`;
/// not `python3.12-config`, nor `ipython`.
///
/// Only how its command line is to be read depends on that. Whether a process runs a Python is for
/// [`runs_python`](super::runs_python) to say: interpreters have other names as well, and are part of other programs.
pub(super) fn is_python_program(name: &[u8]) -> bool {
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    name.strip_prefix(b"python").is_some_and(|version| {
        let version = version.strip_suffix(b"-dbg").unwrap_or(version);
        // Free-threaded and debug builds: `python3.13t`, `python3.12d`.
        let flags = |byte: &u8| b"tdm".contains(byte);
        let digits = version.iter().rposition(|byte| !flags(byte));
        let version = &version[..digits.map_or(0, |last| last + 1)];
        version
            .iter()
            .all(|byte| byte.is_ascii_digit() || *byte == b'.')
    })
}

/// The dynamic loader of glibc or musl, which can be given a program to run: `ld-linux-x86-64.so.2`, `ld-musl-x86_64.so.1`,
/// `ld-2.31.so`, `ld.so`.
pub(super) fn is_loader(name: &[u8]) -> bool {
    let contains = |part: &[u8]| name.windows(part.len()).any(|window| window == part);
    (name.starts_with(b"ld-") || name.starts_with(b"ld.")) && contains(b".so") || name == b"ld.so"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interpreter_is_told_from_what_is_called_after_it() {
        for name in [
            "python",
            "python3",
            "python3.12",
            "python3.13t",
            "python3.8dm",
            "python3.11-dbg",
            "python3.14 (deleted)",
        ] {
            assert!(is_python_program(name.as_bytes()), "{name}");
        }
        for name in [
            "ipython",
            "python-config",
            "python3.12-config",
            "python3.12-gdb",
            "pythonic",
            "bpython",
            "pythond3",
            "",
        ] {
            assert!(!is_python_program(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn loaders_are_known_by_their_names() {
        for name in [
            "ld-linux-x86-64.so.2",
            "ld-musl-x86_64.so.1",
            "ld-2.31.so",
            "ld.so",
        ] {
            assert!(is_loader(name.as_bytes()), "{name}");
        }
        for name in ["ld", "ld.bfd", "ldd", "libld-1.so", "python3"] {
            assert!(!is_loader(name.as_bytes()), "{name}");
        }
    }
}
