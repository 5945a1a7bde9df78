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

Shows where a running CPython 3.8 to 3.15 spends its CPU time, as a flame graph of Python functions, with their lines, and \
the native code they call. The process is not stopped, not changed and need not be restarted or prepared: the \
interpreter's own frames are read. A build whose frames are not known is refused, and its functions come from its perf \
map, if it has one (`python -X perf`); without, its native stacks are there.

Needs Linux 5.8 or later on x86-64, and root or the capabilities that the error message lists.";

/// Usage of the program. Errors show it too, and are five lines at most: other commands are in the list of commands.
pub(crate) const USAGE: &str = "\
pyprof-bpf [OPTIONS] <--pid PID... | --all-python | --cgroup PATH | --container ID>
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

/// End of `activate -h`.
pub(crate) const ACTIVATE_EXAMPLES: &str = "\
Examples:
  sudo pyprof-bpf activate --pid 4242                 perf trampolines on, in CPython 3.14 and later
  sudo pyprof-bpf activate --pid 4242 --off           and off again";

/// End of `activate --help`.
pub(crate) const AFTER_ACTIVATE_HELP: &str = "\
The process is asked to run a few lines of Python, out of a file in its own /tmp that it removes. Functions
that are called from then on get trampolines; those that are running do when they are called again, and the
main module never does. Calls take up to twice as long meanwhile. Some versions of CPython crash when
trampolines are switched on a second time, which is refused.

Exit status:
  0    done, or it was so already
  1    it was not done: the error says why
  2    wrong usage
  4    a privilege is missing

Examples:
  sudo pyprof-bpf activate --pid 4242                 perf trampolines on, in CPython 3.14 and later
  sudo pyprof-bpf activate --pid 4242 --off           and off again";

/// Usage line of `record`.
pub(crate) const RECORD_USAGE: &str = "\
pyprof-bpf record [OPTIONS] <--pid PID... | --all-python | --cgroup PATH | --container ID>
       pyprof-bpf record [OPTIONS] -- <COMMAND> [ARGS]...";

/// End of `-h`.
pub(crate) const EXAMPLES: &str = "\
Examples:
  sudo pyprof-bpf --pid 4242                          record until Ctrl-C, write a flame graph
  sudo pyprof-bpf -p 4242 -d 30 -o app.svg            record for 30 seconds into app.svg
  sudo pyprof-bpf record -- python app.py             start a program and record all of it
  sudo pyprof-bpf -p 4242 -s                          its child processes, too
  sudo pyprof-bpf --container 3f2a9c0b -d 30          all that runs in a container
  sudo pyprof-bpf -p 4242 -n -d 10 -f folded -o -     native frames too, as text for other tools";

/// End of `--help`.
pub(crate) const AFTER_LONG_HELP: &str = "\
Examples:
  sudo pyprof-bpf --pid 4242                          record until Ctrl-C, write a flame graph
  sudo pyprof-bpf -p 4242 -d 30 -o app.svg            record for 30 seconds into app.svg
  sudo pyprof-bpf record -- python app.py             start a program and record all of it
  sudo pyprof-bpf -p 4242 -s                          its child processes, too
  sudo pyprof-bpf --container 3f2a9c0b -d 30          all that runs in a container
  sudo pyprof-bpf -p 4242 -n -d 10 -f folded -o -     native frames too, as text for other tools

Exit status:
  0    done, also after Ctrl-C, which is the normal way to stop
  1    recording failed, or its result is not where it was to go: the error says where it is
  2    wrong usage
  3    nothing to draw: the target ran no code while it was watched
  4    a privilege or a kernel feature is missing
  130  a second Ctrl-C, or the first one while the result waits for a reader: stopped at once; 143 and 129: SIGTERM and SIGHUP while the result is written
  With `-- COMMAND`, a command that fails hands its own status on: its code, 128 + the signal that
  killed it, 127 when it was not found, 126 when it could not be run.

Signals:
  Ctrl-C, SIGTERM and SIGHUP end the recording and write the result. With `-- COMMAND`, Ctrl-C goes
  to the command and recording lasts until it ends; SIGTERM and SIGHUP are passed on to it.

Environment:
  Every option can be given as PYPROF_ and its name, such as PYPROF_FREQUENCY=199 or
  PYPROF_KERNEL=1; what is typed wins. RUST_LOG sets what is logged (default: warn), NO_COLOR
  turns colours off.";
