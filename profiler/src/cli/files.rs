//! Results to files and standard output.

use std::{
    io::{self, Write as _},
    time::SystemTime,
};

use anyhow::Context as _;

use super::{
    report::{notes, subtitle},
    seam::{self, Format, OutputFile, View},
    settings::{Destination, Outputs},
};
use crate::{model::Pid, session::Recording};

/// All places a recording will be written to, made certain of before it begins: a full recording must not be lost to
/// a directory that cannot be written.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<(Place, Format)>);

#[derive(Debug)]
enum Place {
    Stdout,
    File(OutputFile, Destination),
}

impl Prepared {
    /// Opens them.
    pub(crate) fn new(outputs: &Outputs, pid: Pid) -> anyhow::Result<Self> {
        let mut places = Vec::new();
        for (destination, format) in outputs.resolve(pid, SystemTime::now()) {
            let place = match &destination {
                Destination::Stdout => Place::Stdout,
                Destination::File(path) => {
                    let file = OutputFile::prepare(path)
                        .with_context(|| format!("cannot write {}", path.display()))?;
                    Place::File(file, destination)
                }
            };
            places.push((place, format));
        }
        Ok(Self(places))
    }

    /// Writes the recording to all of them, and says where it went.
    pub(crate) fn write(
        self,
        recording: &Recording,
        view: View,
    ) -> anyhow::Result<Vec<Destination>> {
        let (subtitle, notes) = (subtitle(recording), notes(recording));
        let mut written = Vec::new();
        for (place, format) in self.0 {
            let bytes = seam::render(recording, format, view, &subtitle, &notes)?;
            written.push(match place {
                Place::Stdout => {
                    let mut stdout = io::stdout().lock();
                    stdout
                        .write_all(&bytes)
                        .and_then(|()| stdout.flush())
                        .context("cannot write to standard output")?;
                    Destination::Stdout
                }
                Place::File(file, destination) => {
                    file.commit(&bytes)
                        .with_context(|| format!("cannot write {destination}"))?;
                    destination
                }
            });
        }
        Ok(written)
    }
}
