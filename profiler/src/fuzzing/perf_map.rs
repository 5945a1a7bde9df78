//! A perf map that is written to, cut, replaced and removed while it is followed.
//!
//! Input: steps, a byte each, with what the step takes behind it. See [`Step`].

use std::{
    fs::{self, File, OpenOptions},
    io::Write as _,
    os::unix::fs::FileExt as _,
    path::Path,
};

use super::input::Input;
use crate::{
    model::Avma,
    symbols::perf_map::{
        PerfMap, PerfMapFile, PerfMapLimits, PerfMapLocation, PerfMapState, parse_line,
    },
};

/// Small, so that inputs reach them.
const LIMITS: PerfMapLimits = PerfMapLimits {
    entries: 256,
    name_bytes: 16 << 10,
    file_bytes: 96 << 10,
};
/// What a map within these limits may hold: room for twice the entries, two blocks of names, an unfinished line and a
/// broken name, each of which may have doubled when it grew, and the list of recent names.
const HEAP_BYTES_MAX: usize = 1 << 20;

/// What its writer does, or the reader.
enum Step<'d> {
    Append(&'d [u8]),
    /// The file ends here, if it was longer.
    Cut(usize),
    /// Another file takes its name.
    Replace(&'d [u8]),
    Remove,
    /// Other bytes in the same place.
    Overwrite(usize, &'d [u8]),
    Refresh,
}

impl<'d> Step<'d> {
    fn take(input: &mut Input<'d>) -> Self {
        match input.byte() % 8 {
            0 => Self::Refresh,
            1 => Self::Cut(input.number()),
            2 => Self::Replace(input.piece()),
            3 => Self::Remove,
            4 => Self::Overwrite(input.number(), input.piece()),
            _ => Self::Append(input.piece()),
        }
    }
}

/// A writer and a reader of one perf map, taking turns.
pub fn perf_map(data: &[u8]) {
    let directory = tempfile::tempdir().expect("a folder for temporary files");
    let path = directory.path().join("perf-7.map");
    let location = PerfMapLocation {
        directory: directory.path().into(),
        ns_pid: 7,
        owner_uid: rustix::process::geteuid().as_raw(),
    };
    let mut map = PerfMapFile::new(location, LIMITS);
    let mut input = Input::new(data);
    // The file that has the name now was only ever appended to.
    let mut only_grew = true;
    while !input.is_empty() {
        let step = Step::take(&mut input);
        only_grew = match step {
            Step::Replace(_) => true,
            Step::Append(_) | Step::Refresh => only_grew,
            Step::Cut(_) | Step::Remove | Step::Overwrite(..) => false,
        };
        apply(&step, &path, &mut map);
        assert!(map.map().len() <= LIMITS.entries, "too many entries");
        let heap = map.map().heap_bytes();
        assert!(heap <= HEAP_BYTES_MAX, "{heap} bytes");
    }
    map.refresh();
    map.refresh();
    let content = fs::read(&path).unwrap_or_default();
    look_up_everything(map.map(), &content);
    if only_grew && matches!(map.state(), PerfMapState::Following) {
        assert_same_as_read_at_once(map.map(), &content);
    }
}

fn apply(step: &Step<'_>, path: &Path, map: &mut PerfMapFile) {
    match *step {
        Step::Append(bytes) => {
            let mut options = OpenOptions::new();
            let mut file = options.create(true).append(true).open(path).expect("open");
            file.write_all(bytes).expect("write");
        }
        Step::Cut(length) => {
            if let Ok(file) = OpenOptions::new().write(true).open(path) {
                let now = file.metadata().expect("stat").len();
                file.set_len(now.min(length as u64)).expect("truncate");
            }
        }
        Step::Replace(bytes) => {
            let other = path.with_extension("new");
            fs::write(&other, bytes).expect("write");
            fs::rename(&other, path).expect("rename");
        }
        Step::Remove => drop(fs::remove_file(path)),
        Step::Overwrite(at, bytes) => {
            if let Ok(file) = File::options().write(true).open(path) {
                file.write_all_at(bytes, at as u64).expect("write");
            }
        }
        Step::Refresh => drop(map.refresh()),
    }
}

/// Whatever is found begins at or below the address that was asked for, and has a name.
fn look_up_everything(map: &PerfMap, content: &[u8]) {
    for at in addresses(content) {
        if let Some(name) = map.name_at(at) {
            assert!(name.start <= at, "{at:x} is below {:x}", name.start);
            assert!(!name.bytes.is_empty());
            let _ = (name.kind(), name.to_text());
        }
    }
}

/// However the bytes came, what is found is the same.
fn assert_same_as_read_at_once(map: &PerfMap, content: &[u8]) {
    let mut whole = PerfMap::with_limits(LIMITS);
    whole.append(content);
    assert_eq!(map.len(), whole.len());
    for at in addresses(content) {
        assert_eq!(map.name_at(at), whole.name_at(at), "at {at:x}");
    }
}

/// The begins and ends of all entries in a map.
fn addresses(content: &[u8]) -> impl Iterator<Item = Avma> + '_ {
    let lines = content.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| parse_line(line).ok())
        .flat_map(|line| {
            [0, line.size.wrapping_sub(1), line.size]
                .map(|offset| Avma(line.start.wrapping_add(offset)))
        })
}
