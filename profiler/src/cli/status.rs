//! The status line: one line on the terminal while samples are taken, gone afterwards.

use std::{
    fmt::Write as _,
    io::{self, IsTerminal as _, Write as _},
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use tokio::{sync::watch, task::JoinHandle, time};

use super::{
    logging,
    text::{clip, counted, grouped, seconds, visible},
};
use crate::session::Progress;

/// Twice a second is live enough, and cheap.
const REDRAW: Duration = Duration::from_millis(500);
/// Return to the line's begin, and clear it.
const CLEAR: &str = "\r\x1b[K";

/// A status line is on the screen.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// A status line that is being redrawn until this is dropped.
#[derive(Debug)]
pub(crate) struct StatusLine(Option<JoinHandle<()>>);

impl StatusLine {
    /// Starts one, if standard error is a terminal that can redraw a line.
    pub(crate) fn start(progress: watch::Receiver<Progress>) -> Self {
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb");
        if dumb || !io::stderr().is_terminal() {
            return Self::none();
        }
        Self(Some(tokio::spawn(redraw(progress))))
    }

    /// No status line: asked to be quiet, or another program writes to the terminal too.
    pub(crate) const fn none() -> Self {
        Self(None)
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        if let Some(task) = &self.0 {
            task.abort();
            clear();
        }
    }
}

/// Standard error for log lines, which take the status line's place until it is drawn again below them.
pub(crate) fn above_the_line() -> io::Stderr {
    clear();
    io::stderr()
}

/// Takes the line off the screen, if it is there.
pub(crate) fn clear() {
    if SHOWN.swap(false, Ordering::Relaxed) {
        let _ = io::stderr().write_all(CLEAR.as_bytes());
    }
}

async fn redraw(mut progress: watch::Receiver<Progress>) {
    let colours = logging::colours();
    // Nothing to show before sampling is on, nothing when it is over.
    while progress.changed().await.is_ok() {
        let text = line(&progress.borrow_and_update(), terminal_columns(), colours);
        SHOWN.store(true, Ordering::Relaxed);
        let _ = io::stderr().write_all(format!("{CLEAR}{text}").as_bytes());
        time::sleep(REDRAW).await;
    }
}

fn terminal_columns() -> usize {
    rustix::termios::tcgetwinsize(io::stderr())
        .ok()
        .map(|size| usize::from(size.ws_col))
        .filter(|columns| *columns > 0)
        .unwrap_or(80)
}

/// The text, within `columns`. Names of a target come out with control characters spelled out.
fn line(progress: &Progress, columns: usize, colours: bool) -> String {
    // Writing to a `String` cannot fail.
    let mut plain = format!(
        "{}  {}",
        seconds(progress.elapsed),
        counted(progress.samples, "sample")
    );
    if progress.lost > 0 {
        let _ = write!(plain, ", {} lost", grouped(progress.lost));
    }
    let head = plain.chars().count();
    if let Some((name, share)) = &progress.hottest {
        let _ = write!(plain, "  {:3.0} % {}", share * 100.0, visible(name));
    }
    // A full line would make some terminals wrap.
    let cut = clip(&plain, columns.saturating_sub(1));
    if !colours || progress.hottest.is_none() {
        return cut;
    }
    let at = cut.char_indices().nth(head).map_or(cut.len(), |(at, _)| at);
    format!("{}\x1b[1m{}\x1b[0m", &cut[..at], &cut[at..])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn progress(name: &str) -> Progress {
        Progress {
            elapsed: Duration::from_secs(12),
            samples: 1_188,
            lost: 0,
            hottest: Some((name.to_owned(), 0.43)),
        }
    }

    #[test]
    fn time_samples_and_the_hottest_function() {
        assert_eq!(
            line(&progress("inner"), 80, false),
            "12.0 s  1,188 samples   43 % inner"
        );
    }

    #[test]
    fn losses_are_shown_once_there_are_some() {
        let lossy = Progress {
            lost: 7,
            ..Progress::default()
        };
        assert_eq!(line(&lossy, 80, false), "0.0 s  0 samples, 7 lost");
    }

    #[test]
    fn a_long_name_is_cut_and_a_wild_one_tamed() {
        let shown = line(&progress(&"x".repeat(500)), 40, false);
        assert_eq!(shown.chars().count(), 39);
        let shown = line(&progress("\x1b[31mred\r"), 80, false);
        assert!(shown.ends_with("\\x1b[31mred\\r"), "{shown}");
    }

    #[test]
    fn colour_does_not_change_the_width() {
        let coloured = line(&progress("inner"), 30, true);
        let plain = coloured.replace("\x1b[1m", "").replace("\x1b[0m", "");
        assert_eq!(plain, line(&progress("inner"), 30, false));
    }
}
