//! `pyprof-bpf activate`: switches perf trampolines in a running process, and says what came of it.

use std::{
    io::{self, Write as _},
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Context as _;
use clap::{CommandFactory as _, error::ErrorKind};
use tokio::{runtime, task};

use super::{
    args::{ActivateArgs, Cli},
    duration::parse_duration,
    exit,
    signals::Signals,
    text::{clip, visible},
};
use crate::{
    activate::{Order, Outcome, Ready, Switch},
    model::Pid,
    privilege,
};

/// Room for a command line in a sentence.
const COMMAND_COLUMNS: usize = 60;

/// Does it, and gives the exit code.
pub(crate) fn run(args: &ActivateArgs) -> anyhow::Result<u8> {
    let order = order(args)?;
    // Before there is a second thread.
    let kept = privilege::needed_to_activate(privilege::held()?);
    privilege::keep_only(kept).context("cannot give up the rights that are not needed")?;
    let ready = Ready::check(order)?;
    if let Some(warning) = warning(&ready) {
        // The work is done without anybody who reads it.
        let _ = writeln!(io::stderr(), "warning: {warning}");
    }
    let command = clip(&visible(&ready.target().command()), COMMAND_COLUMNS);
    let version = ready.version();
    let outcome = carry_out(ready)?;
    let lines = told(&order, &outcome, &format!("{command}, CPython {version}"));
    io::stdout()
        .write_all(lines.as_bytes())
        .context("cannot write to standard output")?;
    Ok(exit::DONE)
}

fn order(args: &ActivateArgs) -> Result<Order, clap::Error> {
    let timeout = parse_duration(&args.timeout).map_err(|reason| {
        let text = format!("--timeout {}: {reason}", visible(&args.timeout));
        Cli::command().error(ErrorKind::ValueValidation, text)
    })?;
    Ok(Order {
        pid: Pid(args.pid),
        switch: if args.off { Switch::Off } else { Switch::On },
        timeout,
    })
}

/// Does it on a thread of its own, while this one listens for signals: whoever loses patience leaves nothing behind.
fn carry_out(ready: Ready) -> anyhow::Result<Outcome> {
    static GIVES_UP: AtomicBool = AtomicBool::new(false);
    let runtime = runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the event loop")?;
    runtime.block_on(async {
        let mut signals = Signals::catch()?;
        let work =
            task::spawn_blocking(move || ready.carry_out(&|| GIVES_UP.load(Ordering::Relaxed)));
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Ok(done.context("the work ended early")??),
                _ = signals.next() => GIVES_UP.store(true, Ordering::Relaxed),
            }
        }
    })
}

/// What is going to be risked.
fn warning(ready: &Ready) -> Option<String> {
    let pid = ready.target().pid;
    let version = ready.version();
    ready.is_free_threaded().then(|| {
        format!(
            "CPython {version} of process {pid} is free-threaded, where trampolines are known to race (cpython issue \
             152330)"
        )
    })
}

/// What was done, and what to do with it.
fn told(order: &Order, outcome: &Outcome, process: &str) -> String {
    let Order { pid, switch, .. } = *order;
    let were = if outcome.was_so {
        "were already"
    } else {
        "are"
    };
    let mut lines = vec![format!(
        "trampolines {were} {switch} in process {pid} ({process})"
    )];
    match switch {
        Switch::On => {
            let map = outcome.map.to_string_lossy();
            let there = if map == outcome.map_there {
                String::new()
            } else {
                format!(", which is {} for the process", outcome.map_there)
            };
            lines.push(format!("its perf map: {}{there}", visible(&map)));
            lines.push(
                "functions that are running get one when they are called again, the main module never; calls take longer"
                    .to_owned(),
            );
            lines.push(format!(
                "record with them:  sudo pyprof-bpf --pid {pid} --python-from perf-map"
            ));
            lines.push(format!(
                "switch them off:   sudo pyprof-bpf activate --pid {pid} --off"
            ));
        }
        Switch::Off => {
            lines.push(
                "the names so far stay in its perf map, and its calls are as fast as before"
                    .to_owned(),
            );
        }
    }
    if outcome.only_once {
        lines.push(
            "once off, they cannot be switched on again in this process: its CPython would crash of it (issue 146522)"
                .to_owned(),
        );
    }
    lines.join("\n") + "\n"
}

/// How long a process has, as typed.
pub(crate) const DEFAULT_TIMEOUT: &str = "10";

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, time::Duration};

    use super::*;

    const ORDER: Order = Order {
        pid: Pid(42),
        switch: Switch::On,
        timeout: Duration::from_secs(10),
    };

    fn outcome(map: &str) -> Outcome {
        Outcome {
            was_so: false,
            map: PathBuf::from(map),
            map_there: "/tmp/perf-2.map".to_owned(),
            only_once: false,
        }
    }

    #[test]
    fn what_was_done_is_told_with_the_next_steps() {
        let text = told(
            &ORDER,
            &outcome("/tmp/perf-2.map"),
            "app.py, CPython 3.14.1",
        );
        assert_eq!(
            text,
            "\
trampolines are on in process 42 (app.py, CPython 3.14.1)
its perf map: /tmp/perf-2.map
functions that are running get one when they are called again, the main module never; calls take longer
record with them:  sudo pyprof-bpf --pid 42 --python-from perf-map
switch them off:   sudo pyprof-bpf activate --pid 42 --off
"
        );
    }

    #[test]
    fn a_process_elsewhere_has_another_name_for_its_map() {
        let text = told(&ORDER, &outcome("/proc/42/root/tmp/perf-2.map"), "x");
        assert!(
            text.contains(
                "/proc/42/root/tmp/perf-2.map, which is /tmp/perf-2.map for the process\n"
            ),
            "{text}"
        );
    }

    #[test]
    fn the_switch_and_what_stays_are_told() {
        let outcome = Outcome {
            was_so: true,
            only_once: true,
            ..outcome("/tmp/perf-2.map")
        };
        let text = told(&ORDER, &outcome, "x");
        assert!(text.starts_with("trampolines were already on"), "{text}");
        assert!(text.contains("cannot be switched on again"), "{text}");
        let off = Order {
            switch: Switch::Off,
            ..ORDER
        };
        let text = told(&off, &outcome, "x");
        assert!(text.starts_with("trampolines were already off"), "{text}");
        assert!(!text.contains("record with them"), "{text}");
    }
}
