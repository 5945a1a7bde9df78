//! The command line exactly as typed. Help, completions and the man page all come from these definitions; what the
//! words mean is decided in `settings`.

use std::{ffi::OsString, ops::RangeInclusive, path::PathBuf};

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint, builder::BoolishValueParser};
use clap_complete::Shell;

use super::help;
use crate::privilege::PRIORITIES;

/// `pyprof-bpf` as typed.
#[derive(Debug, Parser)]
#[command(
    name = "pyprof-bpf",
    bin_name = "pyprof-bpf",
    version = help::VERSION,
    long_version = help::LONG_VERSION.as_str(),
    about = help::ABOUT,
    long_about = help::LONG_ABOUT,
    after_help = help::EXAMPLES,
    after_long_help = help::AFTER_LONG_HELP,
    override_usage = help::USAGE,
    args_conflicts_with_subcommands = true,
    disable_help_subcommand = true,
    max_term_width = 100
)]
pub(crate) struct Cli {
    /// What to do; nothing means `record`.
    #[command(subcommand)]
    pub(crate) command: Option<Command>,
    /// `record`'s options, so that `pyprof-bpf --pid 4242` is enough.
    #[command(flatten)]
    pub(crate) record: RecordArgs,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Record a running process, or a command from its start (the default)
    #[command(
        after_help = help::EXAMPLES,
        after_long_help = help::AFTER_LONG_HELP,
        override_usage = help::RECORD_USAGE
    )]
    Record(RecordArgs),
    /// Say what recording needs, what of it is here, and what to do about the rest
    ///
    /// Looks at the kernel and its settings, at the rights of whoever asks, and at a process, and changes nothing. Needs
    /// no rights: without them it says which are missing. With them, the BPF program is loaded for a moment.
    #[command(after_help = help::DOCTOR_EXAMPLES, after_long_help = help::AFTER_DOCTOR_HELP)]
    Doctor(DoctorArgs),
    /// Switch perf trampolines on in a running Python, for whoever wants a perf map of it
    ///
    /// Recording does not need this: it reads the frames of the interpreter. It is for other tools, which find Python
    /// functions by /tmp/perf-PID.map alone, and is `sys.activate_stack_trampoline("perf")` in a process that cannot be
    /// restarted with `python -X perf`. CPython 3.14 and later take such requests from outside (PEP 768), earlier ones do not.
    #[command(after_help = help::ACTIVATE_EXAMPLES, after_long_help = help::AFTER_ACTIVATE_HELP)]
    Activate(ActivateArgs),
    /// Print the completion script for a shell
    ///
    /// For example: pyprof-bpf completions bash > ~/.local/share/bash-completion/completions/pyprof-bpf
    Completions {
        /// The shell
        shell: Shell,
    },
    /// Print the manual page
    Man,
}

/// What `doctor` can be told.
#[derive(Args, Clone, Debug)]
pub(crate) struct DoctorArgs {
    /// Process to look at, too: can it be recorded, and will its Python functions have names?
    #[arg(short, long, env = "PYPROF_PID", hide_env = true, value_name = "PID")]
    #[arg(value_parser = pid, allow_negative_numbers = true)]
    pub(crate) pid: Option<u32>,
}

/// What `activate` can be told.
#[derive(Args, Clone, Debug)]
pub(crate) struct ActivateArgs {
    /// Process to switch them on in
    #[arg(short, long, env = "PYPROF_PID", hide_env = true, value_name = "PID")]
    #[arg(value_parser = pid, allow_negative_numbers = true)]
    pub(crate) pid: u32,

    /// Switch them off instead
    #[arg(long)]
    pub(crate) off: bool,

    /// Give up after this long: 10, 2.5s, 500ms, 2m or 1h
    ///
    /// The process does it when its main thread comes back to Python code from C code or from waiting. When the time is over, the
    /// request is withdrawn.
    #[arg(long, value_name = "SECONDS", default_value = super::activate::DEFAULT_TIMEOUT, allow_negative_numbers = true)]
    pub(crate) timeout: String,
}

/// What `record` can be told.
#[derive(Args, Clone, Debug, Default)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(crate) struct RecordArgs {
    /// Process to record; several with commas or spaces between them, or each with its own --pid
    ///
    /// All threads of the process are sampled. The process is neither stopped nor changed. Lines are as good as spaces,
    /// and a pid that is there twice counts once: --pid "$(pgrep -f app.py)" records all that are found.
    #[arg(short, long, env = "PYPROF_PID", hide_env = true, value_name = "PID", help_heading = help::TARGET)]
    #[arg(value_parser = pids, allow_negative_numbers = true)]
    pub(crate) pid: Vec<Pids>,

    /// Record every Python process, also those that start later
    ///
    /// A process counts as Python when its program is called python, or when it has a libpython loaded.
    #[arg(long, env = "PYPROF_ALL_PYTHON", hide_env = true, help_heading = help::TARGET, value_parser = BoolishValueParser::new())]
    pub(crate) all_python: bool,

    /// Record the processes in a control group and below it: a folder in /sys/fs/cgroup, or a path as in
    /// /proc/PID/cgroup
    #[arg(long, env = "PYPROF_CGROUP", hide_env = true, value_name = "PATH", help_heading = help::TARGET)]
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) cgroup: Option<PathBuf>,

    /// Record the processes of a container: the beginning of its id, as docker, podman and crictl show it
    ///
    /// For Docker, containerd, CRI-O and Podman, with and without Kubernetes; a pod's UID means all its containers.
    /// Names are not known, `docker inspect -f '{{.Id}}' NAME` tells the id.
    #[arg(long, env = "PYPROF_CONTAINER", hide_env = true, value_name = "ID", help_heading = help::TARGET)]
    pub(crate) container: Option<String>,

    /// Record child processes too, and theirs [default: for a command that is started]
    #[arg(short, long, env = "PYPROF_SUBPROCESSES", hide_env = true, help_heading = help::TARGET, value_parser = BoolishValueParser::new())]
    pub(crate) subprocesses: bool,

    /// Record no child processes, not even those of a command that is started
    #[arg(long, env = "PYPROF_NO_SUBPROCESSES", hide_env = true, help_heading = help::TARGET, value_parser = BoolishValueParser::new())]
    pub(crate) no_subprocesses: bool,

    /// Command to start and record, with its arguments
    ///
    /// It runs under sudo as the user who called sudo, and starts once sampling is on, so that its first instructions
    /// are recorded too. With --python-from perf-map, PYTHONPERFSUPPORT=1 is set, and unless it is surely a CPython 3.12 or
    /// later, a folder with trampolines for 3.9 to 3.11 comes first in PYTHONPATH, until the command has ended.
    #[arg(last = true, value_name = "COMMAND", help_heading = help::TARGET, value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,

    /// Stop after this long: 10, 2.5s, 500ms, 2m or 1h [default: until Ctrl-C or the target's exit]
    #[arg(short, long, env = "PYPROF_DURATION", hide_env = true, value_name = "SECONDS", help_heading = help::SAMPLING)]
    #[arg(allow_negative_numbers = true)]
    pub(crate) duration: Option<String>,

    /// Samples to take each second, on each CPU
    ///
    /// More samples show rarer functions, and cost more. 99 rather than 100, so that work which the target does at
    /// regular times, such as ten times a second, is not always met at the same point. The kernel's own limit is
    /// kernel.perf_event_max_sample_rate.
    #[arg(short = 'F', long, env = "PYPROF_FREQUENCY", hide_env = true, value_name = "HZ", help_heading = help::SAMPLING)]
    #[arg(
        visible_alias = "rate",
        visible_short_alias = 'r',
        default_value_t = 99
    )]
    #[arg(value_parser = frequency, allow_negative_numbers = true)]
    pub(crate) frequency: u32,

    /// Schedule the profiler before other programs, at a real-time priority from 1 to 99
    ///
    /// For a machine that has many more runnable threads than CPUs: there the profiler may get so little CPU time that it
    /// starts late and loses samples. The policy of its threads is then SCHED_RR (see sched(7)); that of a command
    /// that is started, and of the thread that writes the result, is not changed.
    /// Needs CAP_SYS_NICE.
    #[arg(long, env = "PYPROF_REALTIME", hide_env = true, value_name = "PRIORITY", help_heading = help::SAMPLING)]
    #[arg(value_parser = priority, allow_negative_numbers = true)]
    pub(crate) realtime: Option<u32>,

    /// Show kernel functions as frames: system calls, page faults, interrupts
    ///
    /// Their time is counted in any case; without this option it is that of the function that called the kernel.
    ///
    /// Naming their functions needs CAP_SYSLOG, or kernel.kptr_restrict = 0.
    #[arg(long, env = "PYPROF_KERNEL", hide_env = true, help_heading = help::SAMPLING, value_parser = BoolishValueParser::new())]
    pub(crate) kernel: bool,

    /// Where Python functions come from
    #[arg(long, env = "PYPROF_PYTHON_FROM", hide_env = true, value_name = "WHERE", default_value = "auto", help_heading = help::SAMPLING)]
    pub(crate) python_from: PythonFromArg,

    /// Keep threads apart: each thread's name is the root of its stacks
    #[arg(short, long, env = "PYPROF_THREADS", hide_env = true, help_heading = help::SAMPLING, value_parser = BoolishValueParser::new())]
    pub(crate) threads: bool,

    /// Show several processes as one: without it, each is the root of its stacks
    #[arg(long, env = "PYPROF_MERGE_PROCESSES", hide_env = true, help_heading = help::OUTPUT, value_parser = BoolishValueParser::new())]
    pub(crate) merge_processes: bool,

    /// File to write, once per file; its extension gives the format, `-` is standard output
    ///
    /// Known extensions: .svg, .folded, .collapsed and .txt. Standard output, other descriptors (/dev/stderr, /dev/fd/3),
    /// pipes and devices get svg unless --format or the extension says otherwise, and a terminal gets no svg. Without this option the file is `pyprof-PID-TIME.svg` in
    /// the current directory, TIME in UTC; without the pid where several processes are asked for. A file that exists is never replaced.
    /// With `-o - -- COMMAND`, what the command prints to standard output is mixed into the result: use `-o FILE`, or
    /// `-o /dev/fd/3 3>FILE` in a root shell (sudo closes descriptor 3).
    #[arg(short, long, env = "PYPROF_OUTPUT", hide_env = true, value_name = "FILE", help_heading = help::OUTPUT)]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) output: Vec<PathBuf>,

    /// Format of the output, whatever the file is called
    #[arg(short, long, env = "PYPROF_FORMAT", hide_env = true, help_heading = help::OUTPUT)]
    pub(crate) format: Option<FormatArg>,

    /// Which frames to show
    #[arg(long, env = "PYPROF_VIEW", hide_env = true, default_value = "python", help_heading = help::OUTPUT)]
    pub(crate) view: ViewArg,

    /// Show native frames of the interpreter and the C library too: short for --view mixed
    #[arg(short, long, env = "PYPROF_NATIVE", hide_env = true, help_heading = help::OUTPUT, value_parser = BoolishValueParser::new())]
    pub(crate) native: bool,

    /// Tell Python frames apart by the line that was executing, not by function alone
    ///
    /// A frame is then `work (app.py:146)`; one whose line is not known is shown by function, `work (app.py)`. Native
    /// frames are shown by function always.
    #[arg(long, env = "PYPROF_LINES", hide_env = true, help_heading = help::OUTPUT, value_parser = BoolishValueParser::new())]
    pub(crate) lines: bool,

    /// Say nothing but errors
    #[arg(short, long, env = "PYPROF_QUIET", hide_env = true, help_heading = help::DIAGNOSTICS, value_parser = BoolishValueParser::new())]
    pub(crate) quiet: bool,

    /// Log more: -v for progress, -vv for details, -vvv for everything (RUST_LOG says it more finely)
    #[arg(short, long, env = "PYPROF_VERBOSE", hide_env = true, help_heading = help::DIAGNOSTICS, action = clap::ArgAction::Count)]
    pub(crate) verbose: u8,

    /// Have the kernel measure the time its side of the profiler takes
    #[arg(long, env = "PYPROF_BPF_STATS", hide = true, help_heading = help::DIAGNOSTICS, value_parser = BoolishValueParser::new())]
    pub(crate) bpf_stats: bool,

    /// Read Python functions both ways, and report the share of samples in which they agree
    ///
    /// For a process that has trampolines. The result is made of the interpreter's own frames.
    #[arg(long, env = "PYPROF_CROSS_CHECK", hide_env = true, help_heading = help::DIAGNOSTICS, value_parser = BoolishValueParser::new())]
    pub(crate) cross_check: bool,

    /// Size of the buffer in which samples wait to be read, in bytes: a power of two
    #[arg(long, env = "PYPROF_RING_BYTES", hide = true, value_name = "BYTES", help_heading = help::DIAGNOSTICS, value_parser = ring_bytes)]
    pub(crate) ring_bytes: Option<u32>,
}

/// The value of one `--pid` of `record`. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pids(pub(crate) Vec<u32>);

/// `--format` as typed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FormatArg {
    /// Flame graph to open in a browser: search, zoom
    Svg,
    /// One line per stack: frames joined by semicolons, a space, the number of samples
    Folded,
}

/// `--python-from` as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PythonFromArg {
    /// The interpreter's own frames, where its build is known (CPython 3.8 to 3.15); else perf maps
    #[default]
    Auto,
    /// The interpreter's own frames, with lines; a process given by --pid whose frames cannot be read is refused
    Interpreter,
    /// Trampolines, named by perf maps (python -X perf); a command is started with them
    PerfMap,
}

/// `--view` as typed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum ViewArg {
    /// Python functions, and the functions of extension modules and libraries that they call; modules compiled into the
    /// interpreter count as the interpreter
    #[default]
    Python,
    /// Python and native functions, the interpreter's too; where frames are read from it, Python functions stand in the
    /// place of its evaluation loop
    Mixed,
    /// Native functions only, the interpreter's too; where frames are read from it, the evaluation loop's own time is that
    /// of its caller
    Native,
}

/// Reads `--pid`. The kernel's largest pid is `PID_MAX_LIMIT` (include/linux/threads.h).
fn pid(text: &str) -> Result<u32, String> {
    number(text, 1..=4_194_304)
}

/// Reads a `--pid` that may mean several processes: what `pgrep` and `pidof` print.
fn pids(text: &str) -> Result<Pids, String> {
    let is_separator = |c: char| c == ',' || c.is_ascii_whitespace();
    let words: Vec<&str> = text
        .split(is_separator)
        .filter(|word| !word.is_empty())
        .collect();
    let pids = words.iter().map(|&word| {
        pid(word).map_err(|reason| match words.as_slice() {
            [only] if *only == text => reason,
            _ => format!("`{word}`: {reason}"),
        })
    });
    let pids = pids.collect::<Result<Vec<_>, _>>()?;
    if pids.is_empty() {
        return Err("there is no pid in it; does the program run?".to_owned());
    }
    Ok(Pids(pids))
}

/// Reads `--frequency`.
fn frequency(text: &str) -> Result<u32, String> {
    number(text, 1..=1_000_000)
}

/// Reads `--realtime`.
fn priority(text: &str) -> Result<u32, String> {
    number(text, PRIORITIES)
}

/// Reads `--ring-bytes`. The kernel wants whole pages, and a power of two (`ringbuf_map_alloc`, kernel/bpf/ringbuf.c).
fn ring_bytes(text: &str) -> Result<u32, String> {
    let bytes = number(text, 4096..=1 << 30)?;
    if bytes.is_power_of_two() {
        Ok(bytes)
    } else {
        Err("it must be a power of two".to_owned())
    }
}

/// Reads a number within a range. The error says what is wrong, to follow the value and the option.
fn number(text: &str, range: RangeInclusive<u32>) -> Result<u32, String> {
    if text.is_empty() || !text.bytes().all(|b| b.is_ascii_digit()) {
        return Err("it is not a whole number".to_owned());
    }
    // Too many digits are too large a number.
    match text.parse() {
        Ok(number) if range.contains(&number) => Ok(number),
        _ => Err(format!(
            "it must be from {} to {}",
            range.start(),
            range.end()
        )),
    }
}
