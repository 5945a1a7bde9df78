//! One perf map file, followed while it grows. Gets a place, gives a [`PerfMap`] that is up to date after each
//! [`PerfMapFile::refresh`]. Knows no inotify: whoever calls decides when.

use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::buffer::spare_capacity;
use rustix::fs::{AtFlags, Stat, StatxFlags, fstat, statat, statx};
use rustix::io::{Errno, pread};

use super::trust::{Refusal, Rules, open_directory, refusal_of, size_of_file};
use super::{PerfMap, PerfMapLimits, PerfMapMemory};
use crate::symbols::shared_memory::Share;

/// Bytes read at a time. What is in them takes some milliseconds at most.
const CHUNK_BYTES: u64 = 128 << 10;

/// How many bytes before the place where reading goes on are compared, to notice a file that was written anew.
const COMPARED_BYTES: usize = 64;

/// Where a process writes its perf map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PerfMapLocation {
    /// The directory: `/proc/PID/root/tmp`, PID being the one we know the process by. Its last component is looked
    /// up as if the part before it were the root directory.
    pub directory: PathBuf,
    /// The process id as the process itself sees it (the last one of `NSpid` in `/proc/PID/status`).
    pub ns_pid: u32,
    /// The user the process runs as, as we see it: its map belongs to this user or to root.
    pub owner_uid: u32,
}

impl PerfMapLocation {
    /// `perf-PID.map`.
    pub fn file_name(&self) -> String {
        format!("perf-{}.map", self.ns_pid)
    }

    /// The whole path, for messages.
    pub fn path(&self) -> PathBuf {
        self.directory.join(self.file_name())
    }
}

/// What is in a file when a program begins, and is therefore another's: of the program before it in the same process, or
/// of an earlier process with the same pid. Neither removes its map, and the next one appends to it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerfMapBeginning {
    /// A file that was last written to before is not read: seconds and nanoseconds since 1970.
    pub not_before: Option<(i64, i64)>,
    /// How far the file was the program before's.
    pub read_before: Option<PerfMapPosition>,
    /// When the program began: in a file that is older, there may be lines of others, but for those that the above leaves
    /// out.
    pub began: Option<(i64, i64)>,
}

/// How far a file was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerfMapPosition {
    identity: (u64, u64),
    offset: u64,
    /// It is where the file ended when the next program began.
    is_all: bool,
}

impl PerfMapPosition {
    /// The next program had not written anything by then.
    #[must_use]
    pub fn as_end(self) -> Self {
        Self {
            is_all: true,
            ..self
        }
    }
}

/// Something happened to the file besides growing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfMapEvent {
    /// It is there now and is being read.
    Appeared,
    /// Its content was replaced in place (the JVM does so each time it is asked): the entries are the new ones.
    Truncated,
    /// Another file has its name now: the entries are those of the new file.
    Replaced,
    /// It lost its name. Its entries stay, and it is followed on as long as it is written to.
    Vanished,
}

/// What one refresh did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Refresh {
    /// Bytes read.
    pub added_bytes: u64,
    /// Lines that became entries.
    pub added_entries: u64,
    /// The file has more, which was not to be read yet.
    pub is_behind: bool,
    /// Anything else that was noticed.
    pub event: Option<PerfMapEvent>,
}

/// How a map stands after its last refresh.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PerfMapState<'a> {
    /// There has been no such file yet.
    Missing,
    /// There is one, and it is not read (any further). Entries read before stay.
    Refused(&'a Refusal),
    /// It is being followed.
    Following,
}

/// A perf map and the file it is read from.
///
/// Costs two system calls per refresh when nothing was added, no memory for buffers in between, and at most two open
/// files. Works until it is dropped, also after the process is gone.
#[derive(Debug)]
pub struct PerfMapFile {
    location: PerfMapLocation,
    beginning: PerfMapBeginning,
    rules: Rules,
    directory: Option<Arc<OwnedFd>>,
    followed: Option<Followed>,
    refusal: Option<Refusal>,
    map: PerfMap,
    share: Share,
}

/// The file that is open.
#[derive(Debug)]
struct Followed {
    file: OwnedFd,
    /// Device and inode.
    identity: (u64, u64),
    /// Where reading goes on.
    offset: u64,
    /// The last bytes before `offset`, as they were read.
    last_bytes: Vec<u8>,
    /// It is older than the program, and read from its beginning.
    has_foreign_lines: bool,
    /// When it was last written to, as of the last refresh.
    modified: (i64, i64),
    has_vanished: bool,
}

/// What became of reading on.
#[derive(Debug, Default)]
struct ReadOn {
    bytes: u64,
    /// The file turned out to have been written anew: it was read from its beginning.
    was_rewritten: bool,
    /// There is more.
    is_behind: bool,
}

impl PerfMapFile {
    /// A map to be read from there; nothing is opened before the first [`Self::refresh`].
    pub fn new(location: PerfMapLocation, limits: PerfMapLimits) -> Self {
        Self::sharing(location, limits, PerfMapMemory::default())
    }

    /// The same, with memory that other maps are kept in, too.
    pub fn sharing(
        location: PerfMapLocation,
        limits: PerfMapLimits,
        memory: PerfMapMemory,
    ) -> Self {
        let rules = Rules {
            owner_uid: location.owner_uid,
            file_bytes: limits.file_bytes,
        };
        Self {
            location,
            beginning: PerfMapBeginning::default(),
            rules,
            directory: None,
            followed: None,
            refusal: None,
            map: PerfMap::with_limits(limits),
            share: memory.share(),
        }
    }

    /// The same without what was there before the program began.
    #[must_use]
    pub fn beginning_at(self, beginning: PerfMapBeginning) -> Self {
        Self { beginning, ..self }
    }

    /// The map of another process, found in this one's directory where its own cannot be opened any more.
    #[must_use]
    pub fn with_directory_of(self, other: &Self) -> Self {
        Self {
            directory: other.directory.clone(),
            ..self
        }
    }

    /// The map belongs to this user from now on; what has been read stays.
    pub fn set_owner(&mut self, uid: u32) {
        self.location.owner_uid = uid;
        self.rules.owner_uid = uid;
    }

    /// Some of the entries may be another program's: the file is older than this one.
    pub fn has_foreign_lines(&self) -> bool {
        self.followed
            .as_ref()
            .is_some_and(|followed| followed.has_foreign_lines)
    }

    /// How far the file reaches now, whether it was read so far or not; `None`: there is none.
    pub fn position_now(&self) -> Option<PerfMapPosition> {
        let opened = match &self.directory {
            Some(directory) => Arc::clone(directory),
            None => Arc::new(open_directory(&self.location.directory).ok()??),
        };
        let name = self.location.file_name();
        let stat = statat(opened, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(PerfMapPosition {
            identity: identity(&stat),
            offset: size_of_file(&stat),
            is_all: false,
        })
    }

    /// How far the file has been read; `None`: there was none.
    pub fn position(&self) -> Option<PerfMapPosition> {
        self.followed.as_ref().map(|followed| PerfMapPosition {
            identity: followed.identity,
            offset: followed.offset,
            is_all: false,
        })
    }

    /// Reads what was added since the last time, and notices what else happened to the file.
    ///
    /// One call reads at most as far as the file reached when it began. A file that is not there, or is refused, is
    /// looked for again each time.
    pub fn refresh(&mut self) -> Refresh {
        self.refresh_while(|| true)
    }

    /// The same, but asks before each piece of at most 128 KiB whether to go on: what a process writes to its map takes
    /// us time, in which samples of others wait.
    pub fn refresh_while(&mut self, may_go_on: impl FnMut() -> bool) -> Refresh {
        self.refusal = None;
        let mut event = self.find_file().unwrap_or_else(|refusal| {
            self.refusal = Some(refusal);
            None
        });
        let mut refresh = Refresh::default();
        if let Some(followed) = &mut self.followed {
            let entries_before = self.map.counters().entries;
            match followed.read_on(self.rules, may_go_on, &mut self.map, &mut self.share) {
                Ok(read) => {
                    refresh.added_bytes = read.bytes;
                    refresh.is_behind = read.is_behind;
                    if read.was_rewritten && event.is_none() {
                        event = Some(PerfMapEvent::Truncated);
                    }
                }
                Err(refusal) => self.refusal = Some(refusal),
            }
            refresh.added_entries = self.map.counters().entries - entries_before;
        }
        refresh.event = event;
        refresh
    }

    /// Follows the file behind a descriptor of the process (`/proc/PID/fd/N`), if there is no file with the map's name:
    /// CPython goes on writing to one that was deleted. A file that gets the name later takes its place. Nothing is read
    /// before the next [`Self::refresh`].
    pub fn follow_handle(&mut self, handle: &Path) {
        if self.followed.is_some() || self.refusal.is_some() {
            return;
        }
        match self.rules.open_handle(handle) {
            Ok(Some((file, stat))) => {
                let mut followed = self.beginning.follow(file, &stat);
                followed.has_vanished = true;
                self.followed = Some(followed);
            }
            Ok(None) => {}
            Err(refusal) => self.refusal = Some(refusal),
        }
    }

    /// The entries, as of the last refresh.
    pub fn map(&self) -> &PerfMap {
        &self.map
    }

    /// How the file stood at the last refresh.
    pub fn state(&self) -> PerfMapState<'_> {
        match (&self.refusal, &self.followed) {
            (Some(refusal), _) => PerfMapState::Refused(refusal),
            (None, Some(_)) => PerfMapState::Following,
            (None, None) => PerfMapState::Missing,
        }
    }

    /// Device and inode of the file that is followed.
    pub fn identity(&self) -> Option<(u64, u64)> {
        self.followed.as_ref().map(|followed| followed.identity)
    }

    /// Where it is read from.
    pub fn location(&self) -> &PerfMapLocation {
        &self.location
    }

    /// Looks what has the map's name now, and opens it if it is not the file that is followed already.
    fn find_file(&mut self) -> Result<Option<PerfMapEvent>, Refusal> {
        if self.followed.is_none() {
            // Not the one of the last time, as long as the process lives: a container's root may have been moved since.
            if let Some(directory) = open_directory(&self.location.directory)? {
                self.directory = Some(Arc::new(directory));
            }
        }
        let Some(directory) = &self.directory else {
            return Ok(None);
        };
        let name = self.location.file_name();
        if let Some(followed) = &mut self.followed {
            match statat(directory, &name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) if identity(&stat) == followed.identity => return Ok(None),
                Ok(_) => {}
                Err(Errno::NOENT) => {
                    let is_news = !std::mem::replace(&mut followed.has_vanished, true);
                    return Ok(is_news.then_some(PerfMapEvent::Vanished));
                }
                Err(error) => return Err(refusal_of(error)),
            }
        }
        let Some((file, stat)) = self.rules.open(directory.as_fd(), name.as_ref())? else {
            return Ok(None);
        };
        let followed = self.beginning.follow(file, &stat);
        let previous = self.followed.replace(followed);
        if previous.is_some() {
            self.map.clear();
            return Ok(Some(PerfMapEvent::Replaced));
        }
        Ok(Some(PerfMapEvent::Appeared))
    }
}

/// The file was made before that moment. `false` where its file system does not know.
fn born_before(file: &OwnedFd, moment: (i64, i64)) -> bool {
    let found = statx(file, "", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
    found.is_ok_and(|found| {
        let born = (found.stx_btime.tv_sec, i64::from(found.stx_btime.tv_nsec));
        found.stx_mask & StatxFlags::BTIME.bits() != 0 && born < moment
    })
}

impl PerfMapBeginning {
    /// All that may be others' is in front of `offset`.
    fn leaves_out_all(self, stat: &Stat, offset: u64) -> bool {
        let is_known = self
            .read_before
            .is_some_and(|it| it.identity == identity(stat) && it.is_all);
        is_known || (offset > 0 && offset == size_of_file(stat))
    }

    /// Begins with a file, under its name or behind a descriptor.
    fn follow(self, file: OwnedFd, stat: &Stat) -> Followed {
        let offset = self.offset_in(stat);
        let is_older = || self.began.is_some_and(|began| born_before(&file, began));
        let has_foreign_lines = !self.leaves_out_all(stat, offset) && is_older();
        Followed {
            file,
            identity: identity(stat),
            offset,
            last_bytes: Vec::new(),
            has_foreign_lines,
            modified: modified(stat),
            has_vanished: false,
        }
    }

    /// Where reading begins.
    fn offset_in(self, stat: &Stat) -> u64 {
        if self.not_before.is_some_and(|begin| modified(stat) < begin) {
            return size_of_file(stat);
        }
        let before = self.read_before.filter(|it| it.identity == identity(stat));
        // A shorter file was written anew.
        before.map_or(0, |it| it.offset).min(size_of_file(stat))
    }
}

impl PerfMapLocation {
    /// Device and inode of what has the map's name there, be it fit to be read or not.
    pub fn identity(&self) -> Option<(u64, u64)> {
        let directory = open_directory(&self.directory).ok()??;
        let stat = statat(directory, self.file_name(), AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(identity(&stat))
    }
}

impl Followed {
    /// Reads to the end that the file has now, or as far as it may.
    fn read_on(
        &mut self,
        rules: Rules,
        mut may_go_on: impl FnMut() -> bool,
        map: &mut PerfMap,
        share: &mut Share,
    ) -> Result<ReadOn, Refusal> {
        let stat = fstat(&self.file).map_err(refusal_of)?;
        rules.check(&stat)?;
        let size = size_of_file(&stat);
        let mut read = ReadOn::default();
        if size == self.offset && modified(&stat) == self.modified {
            return Ok(read);
        }
        read.was_rewritten =
            self.offset > 0 && (size < self.offset || !self.is_unchanged_so_far()?);
        if read.was_rewritten {
            map.clear();
            self.offset = 0;
            self.last_bytes.clear();
        }
        self.modified = modified(&stat);
        let mut buffer = Vec::with_capacity(CHUNK_BYTES.min(size - self.offset) as usize);
        while self.offset < size && may_go_on() {
            if !share.set(map.heap_bytes()) {
                return Err(Refusal::NoRoom {
                    limit: share.bytes_max(),
                });
            }
            buffer.clear();
            match pread(&self.file, spare_capacity(&mut buffer), self.offset) {
                // It was cut while we read: the next refresh will see that.
                Ok(0) => break,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(error) => return Err(refusal_of(error)),
            }
            map.append(&buffer);
            self.offset += buffer.len() as u64;
            read.bytes += buffer.len() as u64;
            self.remember(&buffer);
        }
        share.set(map.heap_bytes());
        read.is_behind = self.offset < size;
        Ok(read)
    }

    /// The bytes before the offset are still those that were read. A file that was cut and has already grown beyond
    /// the offset again shows in nothing else.
    fn is_unchanged_so_far(&self) -> Result<bool, Refusal> {
        let mut now = [0; COMPARED_BYTES];
        let now = &mut now[..self.last_bytes.len()];
        let at = self.offset - now.len() as u64;
        let len = pread(&self.file, &mut *now, at).map_err(refusal_of)?;
        Ok(len == now.len() && *now == self.last_bytes[..])
    }

    fn remember(&mut self, read: &[u8]) {
        self.last_bytes
            .extend_from_slice(&read[read.len().saturating_sub(COMPARED_BYTES)..]);
        let excess = self.last_bytes.len().saturating_sub(COMPARED_BYTES);
        self.last_bytes.drain(..excess);
    }
}

fn identity(stat: &Stat) -> (u64, u64) {
    (stat.st_dev, stat.st_ino)
}

fn modified(stat: &Stat) -> (i64, i64) {
    (stat.st_mtime, stat.st_mtime_nsec as i64)
}
