//! Runs other programs: says what is run, waits no longer than told, asks for root
//! only where it must.

use std::{
    io::{BufRead as _, BufReader, IsTerminal as _},
    process::{Command, ExitStatus, Stdio},
    sync::mpsc::{self, RecvTimeoutError},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

use crate::host;

/// How long a command may take.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    /// Until it has printed one of `signs`: a network that does not answer is found
    /// out here.
    pub(crate) first: Duration,
    /// What it prints once it is truly at work. Empty: `first` is all it gets.
    pub(crate) signs: &'static [&'static str],
    /// In all.
    pub(crate) whole: Duration,
}

impl Patience {
    /// So many seconds and no more.
    pub(crate) fn seconds(seconds: u64) -> Self {
        let whole = Duration::from_secs(seconds);
        Self {
            first: whole,
            signs: &[],
            whole,
        }
    }
}

/// The command as a user would type it, for messages.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Runs to the end, with the terminal as its own; anything but success is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = status(command)?;
    if !status.success() {
        bail!("`{}` ended with {status}", shown(command));
    }
    Ok(())
}

/// Runs to the end, with the terminal as its own.
pub(crate) fn status(command: &mut Command) -> Result<ExitStatus> {
    command
        .status()
        .with_context(|| format!("cannot start `{}`", shown(command)))
}

/// Standard output of a command that succeeds.
pub(crate) fn output(command: &mut Command) -> Result<String> {
    let done = command
        .output()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let last = said.lines().last().unwrap_or_default();
        bail!("`{}` ended with {}: {last}", shown(command), done.status);
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Runs without input, showing what it prints, and ends it when patience does. The
/// error holds its last line.
pub(crate) fn run_patiently(command: &mut Command, patience: Patience) -> Result<()> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .env("RUST_BACKTRACE", "0")
        .spawn()
        .with_context(|| format!("cannot start `{}`", shown(command)))?;
    let stderr = child.stderr.take().context("its standard error is piped")?;
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stderr).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                break;
            }
        }
    });

    let start = Instant::now();
    let mut deadline = start + patience.first;
    let mut last = String::new();
    loop {
        match lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                eprintln!("  {line}");
                if patience.signs.iter().any(|sign| line.contains(sign)) {
                    deadline = start + patience.whole;
                }
                last = line;
            }
            Err(RecvTimeoutError::Timeout) => {
                let _ = child.kill();
                let _ = child.wait();
                let waited = start.elapsed().as_secs();
                bail!("`{}` had not finished after {waited} s", shown(command));
            }
            Err(RecvTimeoutError::Disconnected) => break,
        }
    }
    let status = child.wait().context("cannot wait for a command")?;
    if !status.success() {
        bail!("`{}` ended with {status}: {last}", shown(command));
    }
    Ok(())
}

/// The same command as root: itself when this process is root, else through sudo,
/// which is announced. Variables set on `command` are handed over by name.
pub(crate) fn as_root(command: &Command) -> Result<Command> {
    let mut rooted = if host::is_root() {
        Command::new(command.get_program())
    } else if host::which("sudo").is_some() {
        eprintln!("This needs root, so sudo runs it: {}", shown(command));
        let mut sudo = Command::new("sudo");
        if !std::io::stdin().is_terminal() {
            sudo.arg("--non-interactive"); // nobody is there to type a password
        }
        sudo.arg("env");
        for (name, value) in command.get_envs() {
            let mut pair = name.to_owned();
            pair.push("=");
            pair.push(value.unwrap_or_default());
            sudo.arg(pair);
        }
        sudo.arg(command.get_program());
        sudo
    } else {
        bail!(
            "root is needed, this user is not root and there is no sudo.\nAs root, run: {}",
            shown(command)
        );
    };
    rooted.args(command.get_args());
    if host::is_root() {
        rooted.envs(
            command
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        );
    }
    if let Some(folder) = command.get_current_dir() {
        rooted.current_dir(folder);
    }
    Ok(rooted)
}

/// Installs Debian packages; the package lists are read anew only when the first try
/// fails.
pub(crate) fn apt_install(packages: &[&str]) -> Result<()> {
    if !host::has_apt() {
        bail!("this machine has no apt to install {}", packages.join(" "));
    }
    let install = || -> Result<Command> {
        let mut apt = Command::new("apt-get");
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        apt.args(["install", "--yes", "--no-install-recommends"]);
        as_root(apt.args(packages))
    };
    eprintln!("Installing with apt: {}", packages.join(" "));
    let patience = Patience::seconds(900);
    if run_patiently(&mut install()?, patience).is_ok() {
        return Ok(());
    }
    let mut update = Command::new("apt-get");
    update.arg("update");
    run_patiently(&mut as_root(&update)?, patience)?;
    run_patiently(&mut install()?, patience)
}
