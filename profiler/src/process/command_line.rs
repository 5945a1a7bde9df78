//! Python's own command line and environment, as far as they switch trampolines on.

use std::{ffi::OsString, os::unix::ffi::OsStrExt};

use super::program_name::is_loader;

/// Options of the dynamic loaders of glibc that take a value (`_dl_start_args` in elf/rtld.c, glibc 2.41). Musl's have it
/// behind `=`.
const LOADER_OPTIONS: [&[u8]; 7] = [
    b"--library-path",
    b"--inhibit-rpath",
    b"--audit",
    b"--preload",
    b"--argv0",
    b"--glibc-hwcaps-prepend",
    b"--glibc-hwcaps-mask",
];

/// The arguments of the program: without the loader that was called to run it, as in
/// `/lib64/ld-linux-x86-64.so.2 --library-path /opt/lib /usr/bin/python3 app.py`.
pub(super) fn without_loader(arguments: &[OsString]) -> &[OsString] {
    let name = |path: &OsString| {
        let path = path.as_bytes();
        is_loader(path.rsplit(|&byte| byte == b'/').next().unwrap_or(path))
    };
    let [loader, rest @ ..] = arguments else {
        return arguments;
    };
    if !name(loader) {
        return arguments;
    }
    let mut program = rest;
    while let [option, others @ ..] = program
        && option.as_bytes().starts_with(b"--")
    {
        let takes_value = LOADER_OPTIONS.contains(&option.as_bytes());
        program = others.get(usize::from(takes_value)..).unwrap_or_default();
    }
    // It was called for something else, or this is no loader.
    if program.is_empty() {
        arguments
    } else {
        program
    }
}

/// What was asked of the interpreter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum PerfSupport {
    /// Nothing.
    #[default]
    Off,
    /// Trampolines named by a perf map.
    PerfMap,
    /// Trampolines named by a jitdump (CPython 3.13 and later).
    JitDump,
}

/// Options that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Options {
    /// `-X perf`, `-X perf_jit`.
    pub(super) perf: PerfSupport,
    /// `-E` or `-I`: no variable counts.
    pub(super) ignores_environment: bool,
}

/// What `python` is to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Runs<'a> {
    /// What is typed, or comes in by standard input.
    #[default]
    Input,
    /// A file, a folder or an archive.
    Script(&'a [u8]),
    /// `-m`.
    Module(&'a [u8]),
    /// `-c`.
    Code(&'a [u8]),
}

/// Reads `python`'s options, up to the script, `-c` or `-m`.
///
/// The options that take a value are `-c`, `-m`, `-W`, `-X` and `--check-hash-based-pycs` (`_PyOS_GetOpt` in
/// Python/getopt.c, CPython 3.12 to 3.15). `-X perf=0` is on: only the name is looked at (`config_init_perf_profiling`
/// in Python/initconfig.c, CPython 3.12).
pub(super) fn options(arguments: &[OsString]) -> Options {
    read(arguments).0
}

/// What `python` is to run, by its arguments.
pub(super) fn runs(arguments: &[OsString]) -> Runs<'_> {
    read(arguments).1
}

fn read(arguments: &[OsString]) -> (Options, Runs<'_>) {
    let mut found = Options::default();
    let mut rest = arguments.iter().skip(1).map(|argument| argument.as_bytes());
    while let Some(argument) = rest.next() {
        if argument == b"--check-hash-based-pycs" {
            rest.next();
            continue;
        }
        let Some(letters) = argument
            .strip_prefix(b"-")
            .filter(|letters| !letters.is_empty())
        else {
            return (found, script(argument));
        };
        if letters == b"-" {
            return (found, rest.next().map_or(Runs::Input, script));
        }
        if letters.starts_with(b"-") {
            continue;
        }
        for (at, letter) in letters.iter().enumerate() {
            match letter {
                b'c' | b'm' => {
                    let attached = &letters[at + 1..];
                    let value = if attached.is_empty() {
                        rest.next().unwrap_or_default()
                    } else {
                        attached
                    };
                    let runs = match letter {
                        b'c' => Runs::Code(value),
                        _ => Runs::Module(value),
                    };
                    return (found, runs);
                }
                b'E' | b'I' => found.ignores_environment = true,
                b'W' | b'X' => {
                    let attached = &letters[at + 1..];
                    let value = if attached.is_empty() {
                        rest.next().unwrap_or_default()
                    } else {
                        attached
                    };
                    if *letter == b'X' {
                        found.perf = extended_option(value).unwrap_or(found.perf);
                    }
                    break;
                }
                _ => {}
            }
        }
    }
    (found, Runs::Input)
}

fn script(argument: &[u8]) -> Runs<'_> {
    if argument.is_empty() || argument == b"-" {
        Runs::Input
    } else {
        Runs::Script(argument)
    }
}

fn extended_option(value: &[u8]) -> Option<PerfSupport> {
    match value.split(|&byte| byte == b'=').next()? {
        b"perf" => Some(PerfSupport::PerfMap),
        b"perf_jit" => Some(PerfSupport::JitDump),
        _ => None,
    }
}

/// Reads the variables of `/proc/PID/environ`: those the process was started with. A number other than zero is on.
pub(super) fn from_environment(environment: &[u8]) -> PerfSupport {
    let is_on = |name: &[u8]| {
        let mut variables = environment.split(|&byte| byte == 0);
        let value = variables.find_map(|variable| variable.strip_prefix(name)?.strip_prefix(b"="));
        let number =
            value.and_then(|value| std::str::from_utf8(value).ok()?.trim().parse::<i64>().ok());
        number.is_some_and(|number| number != 0)
    };
    if is_on(b"PYTHON_PERF_JIT_SUPPORT") {
        PerfSupport::JitDump
    } else if is_on(b"PYTHONPERFSUPPORT") {
        PerfSupport::PerfMap
    } else {
        PerfSupport::Off
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn perf(line: &str) -> PerfSupport {
        options(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).perf
    }

    #[test]
    fn a_loader_is_no_part_of_the_command_it_runs() {
        let of = |line: &str| -> Vec<OsString> { line.split(' ').map(Into::into).collect() };
        let python = of("/usr/bin/python3 -X perf app.py");
        for loader in [
            "/lib64/ld-linux-x86-64.so.2",
            "ld.so --library-path /opt/lib --inhibit-cache --argv0 x",
            "/lib/ld-musl-x86_64.so.1 --library-path=/opt/lib --",
        ] {
            let whole = of(&format!("{loader} /usr/bin/python3 -X perf app.py"));
            assert_eq!(without_loader(&whole), python, "{loader}");
        }
        for line in [
            "/usr/bin/python3 -X perf app.py",
            "ld.so --help",
            "ld.so --argv0",
            "ld -o x",
        ] {
            assert_eq!(without_loader(&of(line)), of(line), "{line}");
        }
        assert_eq!(without_loader(&[]), [] as [OsString; 0]);
    }

    #[test]
    fn the_option_is_found_however_it_is_written() {
        for line in [
            "python -X perf x.py",
            "python -Xperf x.py",
            "python -uX perf -m x",
            "python -W error -X perf=1 -",
        ] {
            assert_eq!(perf(line), PerfSupport::PerfMap, "{line}");
        }
        assert_eq!(perf("python -X perf_jit x.py"), PerfSupport::JitDump);
        assert_eq!(
            perf("python --check-hash-based-pycs never -Xperf x.py"),
            PerfSupport::PerfMap
        );
    }

    #[test]
    fn arguments_of_the_script_are_not_options_of_python() {
        for line in [
            "python x.py -X perf",
            "python -m tool -Xperf",
            "python -c pass -X perf",
            "python - -X perf",
            "python -W -Xperf",
            "python -- -X perf",
            "python -X dev x.py",
            "python -cpass -Xperf",
            "python",
            "python -X",
        ] {
            assert_eq!(perf(line), PerfSupport::Off, "{line}");
        }
    }

    #[test]
    fn what_is_run_is_found_behind_the_options() {
        let of = |line: &'static str| {
            let arguments: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let text = |name: &[u8]| format!("{:?}", String::from_utf8_lossy(name));
            match runs(&arguments) {
                Runs::Input => "Input".to_owned(),
                Runs::Script(name) => format!("Script({})", text(name)),
                Runs::Module(name) => format!("Module({})", text(name)),
                Runs::Code(name) => format!("Code({})", text(name)),
            }
        };
        for (line, expected) in [
            ("python x.py -m y", "Script(\"x.py\")"),
            ("python -X perf -W error x.py", "Script(\"x.py\")"),
            ("python -u -m http.server 80", "Module(\"http.server\")"),
            ("python -umhttp.server", "Module(\"http.server\")"),
            ("python -c pass x.py", "Code(\"pass\")"),
            ("python -- -x.py", "Script(\"-x.py\")"),
            ("python -", "Input"),
            ("python -i", "Input"),
            ("python -m", "Module(\"\")"),
        ] {
            assert_eq!(of(line), expected, "{line}");
        }
    }

    #[test]
    fn isolated_interpreters_ignore_the_environment() {
        let ignores = |line: &str| {
            options(&line.split(' ').map(OsString::from).collect::<Vec<_>>()).ignores_environment
        };
        assert!(ignores("python -I x.py") && ignores("python -sE x.py"));
        assert!(!ignores("python x.py -E") && !ignores("python -s x.py"));
    }

    #[test]
    fn a_variable_counts_if_it_is_a_number_other_than_zero() {
        assert_eq!(
            from_environment(b"A=1\0PYTHONPERFSUPPORT=1\0B=2\0"),
            PerfSupport::PerfMap
        );
        assert_eq!(
            from_environment(b"PYTHON_PERF_JIT_SUPPORT=1\0PYTHONPERFSUPPORT=1\0"),
            PerfSupport::JitDump
        );
        for off in [
            &b""[..],
            b"PYTHONPERFSUPPORT=0\0",
            b"PYTHONPERFSUPPORT=\0",
            b"XPYTHONPERFSUPPORT=1\0",
            b"PYTHONPERFSUPPORT=yes",
        ] {
            assert_eq!(from_environment(off), PerfSupport::Off);
        }
    }
}
