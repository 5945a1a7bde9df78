//! Results to files and standard output.

use std::{
    env,
    ffi::OsString,
    io::{self, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, SystemTime},
};

use super::{
    report::{notes, subtitle, title},
    settings::{Destination, Outputs},
    signals::Writing,
};
use crate::{
    model::Pid,
    output::{
        self, Format, OutputError, OutputFile, OutputOptions, Owner, Rendered, Shortened, Waiting,
    },
    profile::{Granularity, View},
    session::Window,
};

/// All places a recording will be written to, found fit before it begins: a full recording must not be lost to a
/// directory that cannot be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    places: Vec<(OutputFile, Format)>,
    owner: Option<Owner>,
}

/// What became of a recording.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Where it is, and as what.
    pub(crate) files: Vec<(Destination, Format)>,
    /// What of it is not shown in full.
    pub(crate) shortened: Vec<(Format, Shortened)>,
    /// What could not be written to the place that was asked for.
    pub(crate) failures: Vec<Misplaced>,
}

/// A place that was fit before the recording and is not any more.
#[derive(Debug, thiserror::Error)]
#[error("{source}{}", kept(found.as_ref()))]
pub(crate) struct Misplaced {
    source: OutputError,
    /// Where the result is instead.
    found: Option<Destination>,
}

fn kept(found: Option<&Destination>) -> String {
    match found {
        Some(found) => format!("\n  The profile is not lost: it is in {found}"),
        None => String::new(),
    }
}

impl Prepared {
    /// Checks them, with the rights of the calling thread: it is the one that will write ([`Writer`](super::writer)).
    /// `owner` is who the files are to be given to, where that thread does not act for them.
    pub(crate) fn new(
        outputs: &Outputs,
        pid: Option<Pid>,
        owner: Option<Owner>,
    ) -> Result<Self, OutputError> {
        let places = outputs
            .resolve(pid, SystemTime::now())
            .into_iter()
            .map(|(destination, format)| {
                let file = match &destination {
                    Destination::Stdout => OutputFile::prepare(Path::new("-"), owner)?,
                    Destination::Descriptor(number) => OutputFile::descriptor(*number)?,
                    Destination::File(path) => OutputFile::prepare(path, owner)?,
                };
                Ok((file, format))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { places, owner })
    }

    /// Writes the recording to all of them. What one of them does not take any more goes to a place for such cases:
    /// what was recorded may not come again. Neither takes more rights than the calling thread has.
    ///
    /// Nothing more is written once `writing` is to stop.
    pub(crate) fn write(
        self,
        recording: &Window,
        view: View,
        granularity: Granularity,
        writing: &Writing,
    ) -> Stored {
        let stop = &writing.stop;
        let options = OutputOptions {
            view,
            granularity,
            title: title(recording),
            subtitle: subtitle(recording),
            notes: notes(recording),
            ..OutputOptions::default()
        };
        let Self { places, owner } = self;
        let mut stored = Stored::default();
        for (file, format) in places {
            let rendered = match output::render(&recording.profile, format, &options) {
                Ok(rendered) => rendered,
                Err(source) => {
                    let found = None;
                    stored.failures.push(Misplaced { source, found });
                    continue;
                }
            };
            stored.shortened.push((format, *rendered.shortened()));
            match write_to(file, &rendered, u64::MAX, writing) {
                Ok(destination) => stored.files.push((destination, format)),
                Err(source) => {
                    let is_over = !source.is_about_the_place() || stop.load(Ordering::Relaxed);
                    let found = (!is_over)
                        .then(|| {
                            fallback_directories()
                                .find_map(|it| keep(&rendered, &it, format, owner, writing))
                        })
                        .flatten();
                    stored.files.extend(found.clone().map(|it| (it, format)));
                    stored.failures.push(Misplaced { source, found });
                }
            }
        }
        stored
    }
}

/// Writes what was rendered, if it has no more bytes than these.
fn write_to(
    file: OutputFile,
    rendered: &Rendered,
    bytes_max: u64,
    writing: &Writing,
) -> Result<Destination, OutputError> {
    let place = file.to_string();
    let mut waiting = |waiting| while_waiting(&place, waiting, writing);
    let written = file.commit_while(&mut waiting, |out| {
        let (room, stop) = (bytes_max, &writing.stop);
        rendered.write(&mut Bounded { out, room, stop })
    })?;
    if written.owner_not_set {
        tracing::warn!("the result belongs to root: its owner could not be changed");
    }
    Ok(written.path.map_or(
        written
            .descriptor
            .map_or(Destination::Stdout, Destination::Descriptor),
        Destination::File,
    ))
}

/// A reader may pause for so long without a word about it.
const PAUSE: Duration = Duration::from_secs(2);

/// Says once what is waited for, until writing is to stop.
fn while_waiting(place: &str, waiting: Waiting, writing: &Writing) -> io::Result<()> {
    match waiting {
        Waiting::NoReader => writing.waits_for(&format!("a reader of {place}")),
        Waiting::Full(since) if since >= PAUSE => {
            writing.waits_for(&format!("the reader of {place}"));
        }
        Waiting::Full(_) => {}
    }
    if writing.stop.load(Ordering::Relaxed) {
        return Err(stopped());
    }
    Ok(())
}

fn stopped() -> io::Error {
    io::Error::other("writing was stopped")
}

/// Writes until `stop` is set, and at most a number of bytes.
struct Bounded<'w> {
    out: &'w mut dyn Write,
    room: u64,
    stop: &'w AtomicBool,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(stopped());
        }
        let room = self.room.checked_sub(bytes.len() as u64);
        self.room = room.ok_or(io::ErrorKind::FileTooLarge)?;
        // All of it, or it would count twice.
        self.out.write_all(bytes)?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }
}

/// Directories for a result whose own place is gone or full.
fn fallback_directories() -> impl Iterator<Item = PathBuf> {
    fallbacks(env::var_os("TMPDIR"), env::current_dir().ok())
}

/// Those of a user whose `TMPDIR` is this, and who is in that directory. `/var/tmp` comes before `/tmp`, which may be in
/// memory.
fn fallbacks(chosen: Option<OsString>, here: Option<PathBuf>) -> impl Iterator<Item = PathBuf> {
    let chosen = chosen.filter(|path| !path.is_empty()).map(PathBuf::from);
    let usual = ["/var/tmp", "/tmp"].map(PathBuf::from);
    chosen.into_iter().chain(usual).chain(here)
}

/// The largest file that is put where nobody asked for it and where it takes memory, until somebody removes it.
const MEMORY_BYTES_MAX: u64 = 16 << 20;
/// `TMPFS_MAGIC` and `RAMFS_MAGIC` (include/uapi/linux/magic.h).
const IN_MEMORY: [i64; 2] = [0x0102_1994, 0x8584_58f6];

/// Writes it to a new file in a fallback directory.
fn keep(
    rendered: &Rendered,
    directory: &Path,
    format: Format,
    owner: Option<Owner>,
    writing: &Writing,
) -> Option<Destination> {
    let system = rustix::fs::statfs(directory).ok()?;
    let bytes_max = if IN_MEMORY.contains(&system.f_type) {
        MEMORY_BYTES_MAX
    } else {
        u64::MAX
    };
    let extension = format.file_extensions()[0];
    let name = format!("pyprof-kept-{}.{extension}", std::process::id());
    let file = OutputFile::private(directory, name.as_ref(), owner).ok()?;
    write_to(file, rendered, bytes_max, writing).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_in_var_tmp_unless_the_user_chose_another_directory() {
        for (chosen, expected) in [
            (None, &["/var/tmp", "/tmp", "/here"][..]),
            (Some(""), &["/var/tmp", "/tmp", "/here"]),
            (Some("/srv/tmp"), &["/srv/tmp", "/var/tmp", "/tmp", "/here"]),
        ] {
            let places = fallbacks(chosen.map(OsString::from), Some("/here".into()));
            let places: Vec<PathBuf> = places.collect();
            assert_eq!(
                places,
                expected.iter().map(PathBuf::from).collect::<Vec<_>>()
            );
        }
    }
}
