//! Results to files and standard output.

use std::{
    env,
    path::{Path, PathBuf},
    time::SystemTime,
};

use super::{
    report::{notes, subtitle, title},
    settings::{Destination, Outputs},
};
use crate::{
    model::Pid,
    output::{self, Format, OutputError, OutputFile, OutputOptions, Owner},
    profile::{Granularity, View},
    session::Recording,
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
                let path = match &destination {
                    Destination::Stdout => Path::new("-"),
                    Destination::File(path) => path,
                };
                Ok((OutputFile::prepare(path, owner)?, format))
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { places, owner })
    }

    /// Writes the recording to all of them. What one of them does not take any more goes to a place for such cases:
    /// what was recorded may not come again. Neither takes more rights than the calling thread has.
    pub(crate) fn write(
        self,
        recording: &Recording,
        view: View,
        granularity: Granularity,
    ) -> Stored {
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
            let write = |file| write_to(file, format, recording, &options);
            match write(file) {
                Ok(destination) => stored.files.push((destination, format)),
                Err(source) => {
                    let found = source
                        .is_about_the_place()
                        .then(|| refuges().find_map(|it| write(refuge(&it, format, owner)?).ok()))
                        .flatten();
                    stored.files.extend(found.clone().map(|it| (it, format)));
                    stored.failures.push(Misplaced { source, found });
                }
            }
        }
        stored
    }
}

fn write_to(
    file: OutputFile,
    format: Format,
    recording: &Recording,
    options: &OutputOptions,
) -> Result<Destination, OutputError> {
    let written = file.commit(|out| output::write(&recording.profile, format, options, out))?;
    if written.owner_not_set {
        tracing::warn!("the result belongs to root: its owner could not be changed");
    }
    Ok(written.path.map_or(Destination::Stdout, Destination::File))
}

/// Directories for a result whose own place is gone or full.
fn refuges() -> impl Iterator<Item = PathBuf> {
    let usual = ["/var/tmp", "/tmp", "/dev/shm"].map(PathBuf::from);
    let here = env::current_dir().ok();
    std::iter::once(env::temp_dir()).chain(usual).chain(here)
}

/// A file in one of them.
fn refuge(directory: &Path, format: Format, owner: Option<Owner>) -> Option<OutputFile> {
    let extension = format.file_extensions()[0];
    let name = format!("pyprof-kept-{}.{extension}", std::process::id());
    OutputFile::private(directory, name.as_ref(), owner).ok()
}
