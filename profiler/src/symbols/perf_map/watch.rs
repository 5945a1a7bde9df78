//! Notices when perf maps change, by inotify on the directories they are in. Reads no map and knows no process: it says
//! "something happened to `perf-7.map` there", and whoever follows that map refreshes it.
//!
//! The directory is watched and not the file, because the file may appear later or be replaced. `/tmp` can be busy with
//! other things: changes are therefore collected for [`PAUSE`] before they are looked at, so that a flood of them costs a
//! bounded number of wake-ups, and if the kernel's queue runs over, [`PerfMapChanges::rescan`] says so.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::future::poll_fn;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use inotify::{EventMask, EventOwned, EventStream, Inotify, WatchDescriptor, WatchMask};
use tokio_stream::{Stream, StreamExt as _};

use super::trust::{Refusal, open_directory};

/// How long changes are collected after the first one.
const PAUSE: Duration = Duration::from_millis(20);

/// Bytes of events read at a time: about a thousand events.
const BUFFER_BYTES: usize = 64 << 10;

/// Events looked at in one wake-up; the kernel queues twice as many (`fs.inotify.max_queued_events`, 16,384).
const EVENTS_PER_WAKE_UP: usize = 8192;

/// Changed maps reported at a time; if there are more, a rescan is cheaper.
const MAPS_PER_WAKE_UP: usize = 1024;

/// A directory under watch. Two paths to the same directory have the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WatchedDirectory(i32);

/// `perf-PID.map` in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChangedMap {
    /// Where it is.
    pub directory: WatchedDirectory,
    /// The PID in its name.
    pub ns_pid: u32,
}

/// What happened since the last time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PerfMapChanges {
    /// Maps that were written to, came, or went; each once.
    pub maps: Vec<ChangedMap>,
    /// More happened than could be kept: every map may have changed.
    pub rescan: bool,
    /// Directories that were deleted or unmounted: nothing will be told of them any more.
    pub lost: Vec<WatchedDirectory>,
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
    /// By descriptor number; with how often each was added.
    directories: HashMap<i32, (WatchDescriptor, usize)>,
    /// What was noticed and not yet returned.
    noticed: Noticed,
}

#[derive(Debug, Default)]
struct Noticed {
    maps: BTreeSet<ChangedMap>,
    rescan: bool,
    lost: Vec<WatchedDirectory>,
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
            directories: HashMap::new(),
            noticed: Noticed::default(),
        })
    }

    /// Watches a directory too, found in the way of [`PerfMapLocation::directory`](super::PerfMapLocation::directory).
    /// Maps that are there already are not reported: look at them after this call. Costs one inotify watch per directory,
    /// however often it is added.
    pub fn add(&mut self, directory: &Path) -> Result<WatchedDirectory, WatchError> {
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
        let descriptor =
            self.events
                .watches()
                .add(path, mask)
                .map_err(|source| WatchError::Add {
                    directory: directory.into(),
                    source,
                })?;
        let id = descriptor.get_watch_descriptor_id();
        self.directories.entry(id).or_insert((descriptor, 0)).1 += 1;
        Ok(WatchedDirectory(id))
    }

    /// Takes back one [`Self::add`]; the last one ends the watch.
    pub fn remove(&mut self, directory: WatchedDirectory) {
        let Some((_, times_added)) = self.directories.get_mut(&directory.0) else {
            return;
        };
        *times_added -= 1;
        if *times_added == 0
            && let Some((descriptor, _)) = self.directories.remove(&directory.0)
        {
            // It fails only if the directory is gone, and the watch with it.
            let _ = self.events.watches().remove(descriptor);
            self.noticed.maps.retain(|map| map.directory != directory);
        }
    }

    /// Waits until something happened to a map. Nothing is lost when the future is dropped before it is ready.
    pub async fn next(&mut self) -> Result<PerfMapChanges, WatchError> {
        while self.noticed.is_empty() {
            match self.events.next().await {
                Some(event) => self.notice(&event.map_err(WatchError::Read)?),
                None => return Err(WatchError::Read(io::ErrorKind::UnexpectedEof.into())),
            }
            tokio::time::sleep(PAUSE).await;
            self.notice_what_is_there().await?;
        }
        Ok(std::mem::take(&mut self.noticed).into_changes())
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
            self.noticed.rescan = true;
            return;
        }
        let id = event.wd.get_watch_descriptor_id();
        if event.mask.contains(EventMask::IGNORED) {
            if self.directories.remove(&id).is_some() {
                self.noticed.lost.push(WatchedDirectory(id));
            }
        } else if self.directories.contains_key(&id)
            && let Some(ns_pid) = event.name.as_deref().and_then(pid_of_map)
        {
            let directory = WatchedDirectory(id);
            self.noticed.maps.insert(ChangedMap { directory, ns_pid });
            if self.noticed.maps.len() > MAPS_PER_WAKE_UP {
                self.noticed.maps.clear();
                self.noticed.rescan = true;
            }
        }
    }
}

impl Noticed {
    fn is_empty(&self) -> bool {
        self.maps.is_empty() && !self.rescan && self.lost.is_empty()
    }

    fn into_changes(self) -> PerfMapChanges {
        PerfMapChanges {
            maps: self.maps.into_iter().collect(),
            rescan: self.rescan,
            lost: self.lost,
        }
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

    fn changes(directory: WatchedDirectory, pids: &[u32]) -> PerfMapChanges {
        let map = |&ns_pid| ChangedMap { directory, ns_pid };
        PerfMapChanges {
            maps: pids.iter().map(map).collect(),
            ..PerfMapChanges::default()
        }
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
    async fn changes_to_maps_are_told_once_each_and_others_not_at_all() -> Result<(), Box<dyn Error>>
    {
        let directory = TempDir::new()?;
        let path = |name: &str| directory.path().join(name);
        let mut watch = PerfMapWatch::new()?;
        let id = watch.add(directory.path())?;
        fs::write(path("perf-7.map"), "1000 b a\n")?;
        fs::write(path("unrelated"), "x")?;
        fs::write(path("perf-8.map"), "1000 b a\n")?;
        assert_eq!(watch.next().await?, changes(id, &[7, 8]));

        let mut file = OpenOptions::new().append(true).open(path("perf-7.map"))?;
        for _ in 0..1000 {
            file.write_all(b"1000 b a\n")?;
            fs::write(path("unrelated"), "x")?;
        }
        assert_eq!(watch.next().await?, changes(id, &[7]));
        fs::write(path("unrelated"), "x")?;
        assert!(is_silent(&mut watch).await);
        fs::rename(path("perf-8.map"), path("perf-9.map"))?;
        assert_eq!(watch.next().await?, changes(id, &[8, 9]));
        fs::remove_file(path("perf-7.map"))?;
        assert_eq!(watch.next().await?, changes(id, &[7]));
        Ok(())
    }

    #[tokio::test]
    async fn a_dropped_wait_loses_nothing() -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        let id = watch.add(directory.path())?;
        fs::write(directory.path().join("perf-7.map"), "x")?;
        assert!(tokio::time::timeout(PAUSE / 4, watch.next()).await.is_err());
        assert_eq!(watch.next().await?, changes(id, &[7]));
        Ok(())
    }

    #[tokio::test]
    async fn one_directory_added_twice_is_watched_until_removed_twice() -> Result<(), Box<dyn Error>>
    {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        let id = watch.add(directory.path())?;
        assert_eq!(watch.add(directory.path())?, id);
        watch.remove(id);
        fs::write(directory.path().join("perf-7.map"), "x")?;
        assert_eq!(watch.next().await?, changes(id, &[7]));
        watch.remove(id);
        watch.remove(id);
        fs::write(directory.path().join("perf-7.map"), "y")?;
        assert!(is_silent(&mut watch).await);
        Ok(())
    }

    #[tokio::test]
    async fn a_deleted_directory_is_told_and_a_missing_one_is_an_error()
    -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        let id = watch.add(directory.path())?;
        let path = directory.path().to_owned();
        directory.close()?;
        assert_eq!(watch.next().await?.lost, [id]);
        assert!(matches!(watch.add(&path), Err(WatchError::Missing { .. })));
        Ok(())
    }

    #[tokio::test]
    async fn a_flood_becomes_a_rescan() -> Result<(), Box<dyn Error>> {
        let directory = TempDir::new()?;
        let mut watch = PerfMapWatch::new()?;
        watch.add(directory.path())?;
        for pid in 1..=MAPS_PER_WAKE_UP + 1 {
            fs::write(directory.path().join(format!("perf-{pid}.map")), "")?;
        }
        assert!(watch.next().await?.rescan);
        Ok(())
    }
}
