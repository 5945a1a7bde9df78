//! One kernel in the emulator.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, bail};

/// How long a guest may take. A machine that has nothing else to do is ready in a minute or two.
const PATIENCE: Duration = Duration::from_mins(15);
/// How often it is looked at.
const LOOK: Duration = Duration::from_millis(250);
/// Lines of the console that are shown when something went wrong.
const CONSOLE_LINES: usize = 15;

/// What is said on the kernel's console.
const CONSOLE: &str = "console.log";
/// What the guest wrote of its checks.
const RESULTS: &str = "results.txt";

/// Boots and waits for the end; gives what the guest wrote to its second serial line.
///
/// Everything is emulated in software: hardware virtualisation is not there on every machine, and hangs on some.
pub(super) fn boot(kernel: &Path, image: &Path, folder: &Path) -> Result<String> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let (console, results) = (folder.join(CONSOLE), folder.join(RESULTS));
    let mut emulator = Command::new("qemu-system-x86_64");
    emulator
        .args(["-accel", "tcg", "-cpu", "max", "-smp", "1", "-m", "2048"])
        .args(["-nodefaults", "-no-user-config", "-display", "none"])
        .args(["-no-reboot", "-kernel"])
        .arg(kernel)
        .arg("-initrd")
        .arg(image)
        // A panic ends it at once.
        .args(["-append", "console=ttyS0 panic=-1 rdinit=/init"])
        .arg("-serial")
        .arg(format!("file:{}", console.display()))
        .arg("-serial")
        .arg(format!("file:{}", results.display()));
    let mut running = emulator
        .stdin(Stdio::null())
        .spawn()
        .context("cannot start the emulator")?;
    let begin = Instant::now();
    let status = loop {
        if let Some(status) = running.try_wait().context("cannot wait for the emulator")? {
            break status;
        }
        if begin.elapsed() > PATIENCE {
            let _ = running.kill();
            let _ = running.wait();
            bail!(
                "the guest had not finished after {} minutes; its console ends so:\n{}",
                PATIENCE.as_secs() / 60,
                console_end(folder)
            );
        }
        thread::sleep(LOOK);
    };
    if !status.success() {
        bail!("the emulator ended with {status}");
    }
    let text = fs::read(&results).with_context(|| format!("cannot read {}", results.display()))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The last lines of the console.
pub(super) fn console_end(folder: &Path) -> String {
    let text = fs::read(folder.join(CONSOLE)).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let lines: Vec<&str> = text.lines().filter(|line| !line.is_empty()).collect();
    let last = lines.len().saturating_sub(CONSOLE_LINES);
    lines[last..].join("\n")
}
