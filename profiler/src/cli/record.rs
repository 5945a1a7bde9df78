//! `pyprof-bpf record`: checks, records, writes, reports.

use std::{env, path::Path, process::ExitStatus, sync::Arc};

use anyhow::Context as _;
use tokio::{
    runtime,
    sync::{oneshot, watch},
};

use super::{
    exit,
    files::{Prepared, Stored},
    follow::{begin, follow},
    report,
    settings::{Settings, Target},
    shortened,
    signals::{Signals, Writing, code_of},
    status::StatusLine,
    writer::Writer,
};
use crate::{
    model::Pid,
    privilege::{self, Facts, Wish, Work},
    process::{
        Cgroup, Container, Selector,
        launch::{Launched, TrampolineFolder, Trampolines, sudo_caller},
    },
    session::{self, Progress, PythonFrom, RecordSettings, StopReason, SymbolProcess, Window},
};

/// What is set up while this process has all of its rights.
enum Job {
    /// Processes that run already.
    Running {
        selector: Selector,
        outputs: Writer<Prepared>,
    },
    /// A command that waits to begin.
    Command {
        launched: Launched,
        /// Here until the command has ended, and gone also where recording ends early.
        trampolines: Option<TrampolineFolder>,
        outputs: Writer<Prepared>,
    },
}

/// Runs it to its exit code.
pub(crate) fn run(settings: &Settings) -> anyhow::Result<u8> {
    check_privileges(&settings.target)?;
    // Before there is anything that would have to be taken away again.
    let signals = catch_signals()?;
    let job = set_up(settings)?;
    if let Some(priority) = settings.realtime {
        // After the command was started, which keeps its own priority, and before there are other threads.
        privilege::run_in_real_time(priority)?;
    }
    // With the rights of now: it becomes another user.
    let symbols = SymbolProcess::start();
    privilege::raise_limits();
    // Before the event loop, whose threads begin with the rights of this one.
    give_up_rights(settings).context("cannot give up the rights that are not needed")?;
    // Two threads: a signal is seen and the status line drawn even while a long table is being made.
    let runtime = runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    let code = runtime.block_on(async {
        match job {
            Job::Running { selector, outputs } => {
                record_running(settings, selector, symbols, outputs, signals).await
            }
            Job::Command {
                launched,
                trampolines,
                outputs,
            } => {
                let code = record_command(settings, launched, symbols, outputs, signals).await;
                drop(trampolines);
                code
            }
        }
    });
    // Whatever still runs has nothing more to say.
    runtime.shutdown_background();
    code
}

/// Begins to catch signals, with an event loop that has no thread of its own: those of the other one begin later. Tokio
/// has one handler for the process, and what it has caught is there for any loop (`tokio::signal`).
fn catch_signals() -> anyhow::Result<Signals> {
    let no_threads = runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .context("cannot start the event loop")?;
    let _within = no_threads.enter();
    Signals::catch()
}

/// Does what takes more rights than recording: starts the command, which is to have them all, and finds the places for
/// the result.
fn set_up(settings: &Settings) -> anyhow::Result<Job> {
    let selector = match &settings.target {
        Target::Pids(pids) => Selector::Pids(pids.clone()),
        Target::AllPython => Selector::AllPython,
        Target::Cgroup(path) => Selector::Cgroup(Cgroup::new(path)?),
        Target::Container(id) => Selector::Container(Container::new(id)?),
        Target::Command(command) => {
            let wants_trampolines =
                settings.cross_check || settings.python_from == PythonFrom::PerfMap;
            let trampolines = wants_trampolines.then(|| {
                TrampolineFolder::for_command(command).unwrap_or_else(|none| {
                    tracing::warn!("{none}");
                    None
                })
            });
            let trampolines = trampolines.flatten();
            let with = match &trampolines {
                Some(folder) => Trampolines::Given(folder),
                None if wants_trampolines => Trampolines::Own,
                None => Trampolines::Off,
            };
            let launched = Launched::spawn(command, with)?;
            let outputs = prepared(settings, Some(launched.pid()))?;
            return Ok(Job::Command {
                launched,
                trampolines,
                outputs,
            });
        }
    };
    let only = match &selector {
        Selector::Pids(pids) if let [pid] = pids.as_slice() => Some(*pid),
        _ => None,
    };
    let outputs = prepared(settings, only)?;
    Ok(Job::Running { selector, outputs })
}

/// The thread that writes the result; `pid` is the process that is recorded, if it is one.
fn prepared(settings: &Settings, pid: Option<Pid>) -> anyhow::Result<Writer<Prepared>> {
    let outputs = settings.outputs.clone();
    Writer::start(move |owner| Prepared::new(&outputs, pid, owner))
}

fn give_up_rights(settings: &Settings) -> rustix::io::Result<()> {
    let work = Work {
        kernel_names: settings.kernel_stacks,
        bpf_stats: settings.bpf_stats,
        signals_others: matches!(settings.target, Target::Command(_)) && sudo_caller().is_some(),
    };
    let held = privilege::held()?;
    privilege::keep_only(privilege::needed(&Facts::read(), held, work))
}

fn check_privileges(target: &Target) -> Result<(), privilege::Obstacle> {
    let facts = Facts::read();
    let target_uid = match target {
        Target::Pids(pids) => {
            let mut users = pids.iter().filter_map(|pid| privilege::user_of(*pid));
            users.find(|uid| *uid != facts.euid)
        }
        // Those that may not be looked into are left out.
        Target::AllPython | Target::Cgroup(_) | Target::Container(_) => None,
        // It will run as the user who called sudo, or as ourselves.
        Target::Command(_) => sudo_caller().map(|(uid, _)| uid),
    };
    privilege::check(&facts, Wish { target_uid }, &command_line())
}

/// This command line, to be repeated with `sudo`; short, and harmless to a terminal.
fn command_line() -> String {
    let words = env::args_os().skip(1).map(|word| {
        let word = word.to_string_lossy();
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
        if !word.is_empty() && word.chars().all(plain) {
            word.into_owned()
        } else {
            format!("'{}'", super::text::visible(&word).replace('\'', r"'\''"))
        }
    });
    let words: Vec<String> = std::iter::once(program_for_sudo()).chain(words).collect();
    super::text::clip(&words.join(" "), 110)
}

/// How sudo finds this program: it searches directories of its own, which ~/.cargo/bin is not among.
fn program_for_sudo() -> String {
    const NAME: &str = "pyprof-bpf";
    const SEARCHED: [&str; 4] = ["/usr/local/bin", "/usr/bin", "/bin", "/usr/local/sbin"];
    match env::current_exe() {
        Ok(path)
            if !SEARCHED
                .iter()
                .any(|dir| path.parent() == Some(Path::new(dir))) =>
        {
            path.display().to_string()
        }
        _ => NAME.to_owned(),
    }
}

/// Records processes that run already.
async fn record_running(
    settings: &Settings,
    selector: Selector,
    symbols: SymbolProcess,
    outputs: Writer<Prepared>,
    signals: Signals,
) -> anyhow::Result<u8> {
    let (progress, watched) = watch::channel(Progress::default());
    // Nobody who watches: then there is nothing to tell.
    let status = if settings.quiet {
        drop(watched);
        StatusLine::none()
    } else {
        StatusLine::start(watched)
    };
    let (stopped, stop) = oneshot::channel();
    let (aborting, aborted) = oneshot::channel();
    let writing = Arc::new(Writing::new(settings.quiet));
    let state = writing.clone();
    // On its own, to be there when the recording is busy.
    tokio::spawn(async move {
        let stop = || {
            let _ = stopped.send(StopReason::Interrupted);
        };
        let _ = aborting.send(signals.stop_and_abort(&state, stop).await);
    });
    let finished = async {
        let recording = sample(settings, selector, symbols, stop, progress).await?;
        drop(status);
        finish(settings, recording, outputs, writing.clone()).await
    };
    writing.finish_or_abort(finished, sent(aborted)).await
}

/// What is sent, if it ever is.
async fn sent<T>(receiver: oneshot::Receiver<T>) -> T {
    match receiver.await {
        Ok(value) => value,
        Err(_) => std::future::pending().await,
    }
}

/// Lets a command begin and records it. There is no status line: the terminal is the command's.
async fn record_command(
    settings: &Settings,
    launched: Launched,
    symbols: SymbolProcess,
    outputs: Writer<Prepared>,
    signals: Signals,
) -> anyhow::Result<u8> {
    let pid = launched.pid();
    let (progress, sampling) = watch::channel(Progress::default());
    let (stopped, stop) = oneshot::channel();
    let (aborting, aborted) = oneshot::channel();
    let (begun, has_begun) = oneshot::channel();
    let writing = Arc::new(Writing::new(settings.quiet));
    let state = writing.clone();
    // On its own, to be there when the recording is busy.
    let followed = tokio::spawn(async move {
        let launched = match begin(launched, sampling).await {
            Ok(Some(launched)) => launched,
            Ok(None) => return Ok(None),
            Err(err) => {
                let _ = begun.send(Err(err));
                let _ = stopped.send(StopReason::TargetExited);
                return Ok(None);
            }
        };
        let _ = begun.send(Ok(()));
        let (ended, signals) = follow(launched, signals).await;
        let _ = stopped.send(StopReason::TargetExited);
        tokio::spawn(async move {
            let _ = aborting.send(signals.abort(&state).await);
        });
        ended.map(Some).context("cannot wait for the command")
    });
    let finished = async {
        let command = Selector::Pids(vec![pid]);
        let recording = sample(settings, command, symbols, stop, progress).await?;
        // A command that could not be run is the news, not the empty recording.
        if let Ok(begun) = has_begun.await {
            begun?;
        }
        finish(settings, recording, outputs, writing.clone()).await
    };
    let finished = async {
        let finished = finished.await;
        // Even where recording fails, the command is seen to its end.
        if !followed.is_finished() && !settings.quiet {
            report::print(&[format!("waiting for pid {pid} to end")]);
        }
        let followed = followed.await;
        let ended = match followed.context("the command was lost sight of")?? {
            Some(mut launched) => Some(
                launched
                    .wait()
                    .await
                    .context("cannot wait for the command")?,
            ),
            None => None,
        };
        Ok(combined(finished?, ended))
    };
    writing.finish_or_abort(finished, sent(aborted)).await
}

/// The exit code of a recorded command: its own where it failed, else ours.
fn combined(ours: u8, ended: Option<ExitStatus>) -> u8 {
    match ended.map(code_of) {
        None | Some(0) => ours,
        Some(theirs) => theirs,
    }
}

/// The recording itself.
async fn sample(
    settings: &Settings,
    selector: Selector,
    symbols: SymbolProcess,
    stop: oneshot::Receiver<StopReason>,
    progress: watch::Sender<Progress>,
) -> anyhow::Result<Window> {
    // If nobody can ask any more, what ends it is the duration, or the target.
    let stop = sent(stop);
    let wanted = RecordSettings {
        selector,
        subprocesses: settings.subprocesses,
        frequency: settings.frequency,
        duration: settings.duration,
        kernel_stacks: settings.kernel_stacks,
        threads: settings.threads,
        python_from: settings.python_from,
        cross_check: settings.cross_check,
        granularity: settings.granularity,
        bpf_stats: settings.bpf_stats,
        ring_bytes: settings.ring_bytes,
    };
    // As a task, so that a panic in it is reported as an error.
    let recording = tokio::spawn(session::record(wanted, symbols, stop, progress));
    Ok(recording.await.context("the recording was cut short")??)
}

/// Writes and reports.
async fn finish(
    settings: &Settings,
    mut recording: Window,
    outputs: Writer<Prepared>,
    writing: Arc<Writing>,
) -> anyhow::Result<u8> {
    if let Some(bpf) = &recording.summary.bpf {
        report::print(&[report::bpf_line(bpf)]);
    }
    if recording.profile.quality.samples == 0 {
        report::print(&report::nothing_to_draw(&recording));
        return Ok(exit::NOTHING_TO_DRAW);
    }
    recording.profile.merge_processes = settings.merge_processes;
    let (view, granularity) = (settings.view, settings.granularity);
    // A large picture takes its time, and so may who reads it; a signal must be noticed meanwhile.
    writing.begin();
    let (recording, stored) = tokio::task::spawn_blocking(move || {
        outputs.run(move |prepared| {
            let stored = prepared.write(&recording, view, granularity, &writing);
            (recording, stored)
        })
    })
    .await
    .context("writing was cut short")??;
    let Stored {
        files,
        shortened,
        failures,
    } = stored;
    if !settings.quiet && !files.is_empty() {
        let lines = report::report_lines(&recording, &files);
        report::print(&shortened::with_lines(lines, &shortened));
    }
    let mut failures = failures.into_iter().map(anyhow::Error::from);
    let Some(first) = failures.next() else {
        return Ok(exit::DONE);
    };
    // The first one is told where all errors are, at the end.
    for other in failures.filter(|err| !exit::is_told(err)) {
        report::print(&[format!("error: {}", exit::message(&other))]);
    }
    Err(first)
}
