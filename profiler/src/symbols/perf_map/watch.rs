//! Notices when perf maps change, by inotify on the directories they are in. Reads no map and knows no process: it
//! reports the PID in the name of each map that changed.
//!
//! The directory is watched and not the file, because the file may appear later or be replaced. `/tmp` can be busy with
//! other things: changes are therefore collected for [`PAUSE`] before they are returned, so that a flood of them costs a
//! bounded number of wake-ups, and if the kernel's queue overflows, [`ChangedMaps::Any`] is returned.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchMask};
use tokio_stream::{Stream, StreamExt as _};

use super::trust::{Refusal, open_directory};

/// How long changes are collected after the first one.
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes of events read at a time: about a thousand events.
const BUFFER_BYTES: usize = 64 << 10;

/// Events looked at in one wake-up; the kernel queues twice as many (`fs.inotify.max_queued_events`, 16,384).
const EVENTS_PER_WAKE_UP: usize = 8192;

/// Changed maps reported at a time; if there are more, all maps are refreshed.
const MAPS_PER_WAKE_UP: usize = 1024;

/// What changed since the last call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangedMaps {
    /// Maps with these PIDs in their names were written to, created or deleted.
    These(BTreeSet<u32>),
    /// More changed than could be kept: every map may have changed.
    Any,
}

/// Why changes will not be noticed. Maps can still be followed by refreshing them at intervals.
#[derive(Debug, thiserror::Error)]
pub enum WatchError {
    /// No inotify instance.
    #[error(
        "cannot start inotify; the sysctl fs.inotify.max_user_instances limits how many a user may have"
    )]
    Start(#[source] io::Error),
    /// No watch.
    #[error(
        "cannot watch {directory}; the sysctl fs.inotify.max_user_watches limits how many a user may have"
    )]
    Add {
        /// The directory.
        directory: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// There is no such directory.
    #[error("cannot watch {directory}: it does not exist")]
    Missing {
        /// The directory.
        directory: PathBuf,
    },
    /// It cannot be opened.
    #[error("cannot watch {directory}: {refusal}")]
    Refused {
        /// The directory.
        directory: PathBuf,
        /// Why.
        refusal: Refusal,
    },
    /// The events cannot be read.
    #[error("cannot read inotify events")]
    Read(#[source] io::Error),
}

/// All watched directories.
#[derive(Debug)]
pub struct PerfMapWatch {
    events: EventStream<Vec<u8>>,
    /// What was noticed and not yet returned.
    noticed: ChangedMaps,
}

impl PerfMapWatch {
    /// Watches nothing yet. Needs one inotify instance.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn new() -> Result<Self, WatchError> {
        let inotify = Inotify::init().map_err(WatchError::Start)?;
        Ok(Self {
            events: inotify
                .into_event_stream(vec![0; BUFFER_BYTES])
                .map_err(WatchError::Start)?,
            noticed: ChangedMaps::NONE,
        })
    }

    /// Watches a directory too, found in the way of [`PerfMapLocation::directory`](super::PerfMapLocation::directory).
    /// Maps that are there already are not reported: look at them after this call. Costs one inotify watch per directory,
    /// however often it is added. A directory that is deleted or unmounted is not watched any more.
    pub fn add(&mut self, directory: &Path) -> Result<(), WatchError> {
        let opened = open_directory(directory).map_err(|refusal| WatchError::Refused {
            directory: directory.into(),
            refusal,
        })?;
        let opened = opened.ok_or_else(|| WatchError::Missing {
            directory: directory.into(),
        })?;
        let mask = WatchMask::CREATE
            | WatchMask::MODIFY
            | WatchMask::MOVED_TO
            | WatchMask::MOVED_FROM
            | WatchMask::DELETE
            | WatchMask::ONLYDIR;
        // By descriptor: the path could lead elsewhere by now.
        let path = format!("/proc/self/fd/{}", opened.as_raw_fd());
        self.events
            .watches()
            .add(path, mask)
            .map_err(|source| WatchError::Add {
                directory: directory.into(),
                source,
            })?;
        Ok(())
    }

    /// Waits until something happened to a map. Nothing is lost when the future is dropped before it is ready.
    pub async fn next(&mut self) -> Result<ChangedMaps, WatchError> {
        while self.noticed.is_empty() {
            match self.events.next().await {
                Some(event) => self.notice(&event.map_err(WatchError::Read)?),
                None => return Err(WatchError::Read(io::ErrorKind::UnexpectedEof.into())),
            }
            tokio::time::sleep(PAUSE).await;
            self.notice_what_is_there().await?;
        }
        Ok(std::mem::replace(&mut self.noticed, ChangedMaps::NONE))
    }

    /// Takes the events that need no waiting for.
    async fn notice_what_is_there(&mut self) -> Result<(), WatchError> {
        for _ in 0..EVENTS_PER_WAKE_UP {
            let events = &mut self.events;
            match poll_fn(|context| Poll::Ready(Pin::new(&mut *events).poll_next(context))).await {
                Poll::Ready(Some(event)) => self.notice(&event.map_err(WatchError::Read)?),
                Poll::Ready(None) | Poll::Pending => break,
            }
        }
        Ok(())
    }

    fn notice(&mut self, event: &EventOwned) {
        if event.mask.contains(EventMask::Q_OVERFLOW) {
            self.noticed = ChangedMaps::Any;
        } else if let Some(ns_pid) = event.name.as_deref().and_then(pid_of_map)
            && let ChangedMaps::These(pids) = &mut self.noticed
        {
            pids.insert(ns_pid);
            if pids.len() > MAPS_PER_WAKE_UP {
                self.noticed = ChangedMaps::Any;
            }
        }
    }
}

impl ChangedMaps {
    const NONE: Self = Self::These(BTreeSet::new());

    fn is_empty(&self) -> bool {
        matches!(self, Self::These(pids) if pids.is_empty())
    }
}

/// The PID in `perf-PID.map`, written as a program prints it: digits, no zero before them.
fn pid_of_map(name: &OsStr) -> Option<u32> {
    let digits = name.to_str()?.strip_prefix("perf-")?.strip_suffix(".map")?;
    let is_plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    digits.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use std::error::Error;
    use std::fs::{self, OpenOptions};
    use std::io::Write as _;

    use tempfile::TempDir;

    use super::*;

    async fn is_silent(watch: &mut PerfMapWatch) -> bool {
        tokio::time::timeout(PAUSE * 5, watch.next()).await.is_err()
    }

    fn changes(pids: &[u32]) -> ChangedMaps {
        ChangedMaps::These(pids.iter().copied().collect())
    }

    #[test]
    fn only_names_of_maps_pass() {
        assert_eq!(pid_of_map("perf-7.map".as_ref()), Some(7));
        assert_eq!(pid_of_map("perf-4194304.map".as_ref()), Some(4_194_304));
        for name in [
            "perf-.map",
            "perf-+7.map",
            "perf-07.map",
            "perf-7.mapx",
            "jit-7.dump",
            "perf-99999999999.map",
        ] {
            assert_eq!(pid_of_map(name.as_ref()), None, "{name}");
        }
    }

    #[tokio::test]
    async fn changes_to_maps_are_reported_once_each_and_others_not_at_all()
    -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let path = |name: &str| directory.path().join(name);
        let mut watch = PerfMapWatch::new()?;
        watch.add(directory.path())?;
        fs::write(path("perf-7.map"), "1000 b a\n")?;
        fs::write(path("unrelated"), "x")?;
        fs::write(path("perf-8.map"), "1000 b a\n")?;
        assert_eq!(watch.next().await?, changes(&[7, 8]));

        let mut file = OpenOptions::new().append(true).open(path("perf-7.map"))?;
        for _ in 0..1000 {
            file.write_all(b"1000 b a\n")?;
            fs::write(path("unrelated"), "x")?;
        }
        assert_eq!(watch.next().await?, changes(&[7]));
        fs::write(path("unrelated"), "x")?;
        assert!(is_silent(&mut watch).await);
        fs::rename(path("perf-8.map"), path("perf-9.map"))?;
        assert_eq!(watch.next().await?, changes(&[8, 9]));
        fs::remove_file(path("perf-7.map"))?;
        assert_eq!(watch.next().await?, changes(&[7]));
        Ok(())
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_nothing() -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        watch.add(directory.path())?;
        fs::write(directory.path().join("perf-7.map"), "x")?;
        assert!(tokio::time::timeout(PAUSE / 4, watch.next()).await.is_err());
        assert_eq!(watch.next().await?, changes(&[7]));
        Ok(())
    }

    #[tokio::test]
    async fn one_directory_added_twice_is_reported_once() -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        watch.add(directory.path())?;
        watch.add(directory.path())?;
        fs::write(directory.path().join("perf-7.map"), "x")?;
        assert_eq!(watch.next().await?, changes(&[7]));
        assert!(is_silent(&mut watch).await);
        Ok(())
    }

    #[tokio::test]
    async fn a_deleted_directory_is_silent_and_a_missing_one_is_an_error()
    -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        watch.add(directory.path())?;
        let path = directory.path().to_owned();
        directory.close()?;
        assert!(is_silent(&mut watch).await);
        assert!(matches!(watch.add(&path), Err(WatchError::Missing { .. })));
        Ok(())
    }

    #[tokio::test]
    async fn after_a_flood_any_map_may_have_changed() -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        watch.add(directory.path())?;
        for pid in 1..=MAPS_PER_WAKE_UP + 1 {
            fs::write(directory.path().join(format!("perf-{pid}.map")), "")?;
        }
        assert_eq!(watch.next().await?, ChangedMaps::Any);
        Ok(())
    }
}
