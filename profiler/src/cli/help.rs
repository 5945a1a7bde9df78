//! The longer texts of `--help`.

/// Heading of the options that choose what is recorded.
pub(crate) const TARGET: &str = "Target";
/// Heading of the options that say how it is sampled.
pub(crate) const SAMPLING: &str = "Sampling";
/// Heading of the options about files.
pub(crate) const OUTPUT: &str = "Output";
/// Heading of the options about the profiler itself.
pub(crate) const DIAGNOSTICS: &str = "Diagnostics";

/// What `-V` says after the name.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Where the BPF object in this program came from; the build script knows.
const BPF_ORIGIN: &str = match option_env!("PYPROF_BPF_ORIGIN") {
    Some(origin) => origin,
    None => "unknown",
};

/// What `--version` says after the name.
pub(crate) static LONG_VERSION: std::sync::LazyLock<String> =
    std::sync::LazyLock::new(|| format!("{VERSION}\nBPF object: {BPF_ORIGIN}"));

/// First line of `-h`.
pub(crate) const ABOUT: &str = "Sampling profiler for live Python processes, based on eBPF";

/// First paragraphs of `--help`.
pub(crate) const LONG_ABOUT: &str = "\
Sampling profiler for live Python processes, based on eBPF.

Shows where a running CPython 3.9 or later spends its CPU time, as a flame graph of Python functions and the native \
code they call. The process is not stopped, not changed and need not be restarted, provided that it was started with \
trampolines: by `record -- COMMAND`, from CPython 3.12 on with `python -X perf` or PYTHONPERFSUPPORT=1, or else with \
`python -m pyprof_trampoline`. Processes without names for Python functions still give native stacks.

Needs Linux 5.8 or later on x86-64, and root or the capabilities that the error message lists.";

/// Usage line of the program.
pub(crate) const USAGE: &str = "\
pyprof-bpf [OPTIONS] --pid <PID>
       pyprof-bpf [record] [OPTIONS] -- <COMMAND> [ARGS]...";

/// End of `doctor -h`.
pub(crate) const DOCTOR_EXAMPLES: &str = "\
Examples:
  sudo pyprof-bpf doctor                              is everything here that recording needs?
  sudo pyprof-bpf doctor --pid 4242                   and will this process show its functions?";

/// End of `doctor --help`.
pub(crate) const AFTER_DOCTOR_HELP: &str = "\
Each line begins with a word:
  ok       it is as it should be
  limited  recording works, but shows less; the line below says what helps
  missing  recording does not work; the line below says what is needed

Exit status:
  0    recording works, be it with limits
  1    something is missing
  2    wrong usage

Examples:
  sudo pyprof-bpf doctor                              is everything here that recording needs?
  sudo pyprof-bpf doctor --pid 4242                   and will this process show its functions?
  pyprof-bpf doctor                                   what would have to be given to this user?";

/// Usage line of `record`.
pub(crate) const RECORD_USAGE: &str = "\
pyprof-bpf record [OPTIONS] --pid <PID>
       pyprof-bpf record [OPTIONS] -- <COMMAND> [ARGS]...";

/// End of `-h`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  sudo pyprof-bpf --pid 4242                          record until Ctrl-C, write a flame graph
  sudo pyprof-bpf -p 4242 -d 30 -o app.svg            record for 30 seconds into app.svg
  sudo pyprof-bpf record -- python app.py             start a program and record all of it
  sudo pyprof-bpf -p 4242 -n -d 10 -f folded -o -     native frames too, as text for other tools";

/// End of `--help`.
pub(crate) const AFTER_LONG_HELP: &str = "\
Examples:
  sudo pyprof-bpf --pid 4242                          record until Ctrl-C, write a flame graph
  sudo pyprof-bpf -p 4242 -d 30 -o app.svg            record for 30 seconds into app.svg
  sudo pyprof-bpf record -- python app.py             start a program and record all of it
  sudo pyprof-bpf -p 4242 -n -d 10 -f folded -o -     native frames too, as text for other tools

Exit status:
  0    done, also after Ctrl-C, which is the normal way to stop
  1    recording failed
  2    wrong usage
  3    nothing to draw: the target ran no code while it was watched
  4    a privilege or a kernel feature is missing
  130  a second Ctrl-C: stopped at once, nothing written
  With `-- COMMAND`, a command that fails hands its own status on: its code, 128 + the signal that
  killed it, 127 when it was not found, 126 when it could not be run.

Signals:
  Ctrl-C, SIGTERM and SIGHUP end the recording and write the result. With `-- COMMAND`, Ctrl-C goes
  to the command and recording lasts until it ends; SIGTERM and SIGHUP are passed on to it.

Environment:
  Every option can be given as PYPROF_ and its name, such as PYPROF_FREQUENCY=199 or
  PYPROF_KERNEL=1; what is typed wins. RUST_LOG sets what is logged (default: warn), NO_COLOR
  turns colours off.";
