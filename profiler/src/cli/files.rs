//! Results to files and standard output.

use std::{path::Path, time::SystemTime};

use super::{
    report::{notes, subtitle, title},
    settings::{Destination, Outputs},
};
use crate::{
    model::Pid,
    output::{self, Format, OutputError, OutputFile, OutputOptions, Owner},
    profile::View,
    session::Recording,
};

/// All places a recording will be written to, found fit before it begins: a full recording must not be lost to a
/// directory that cannot be written.
#[derive(Debug)]
pub(crate) struct Prepared(Vec<(OutputFile, Format)>);

impl Prepared {
    /// Checks them, with the rights of the calling thread: it is the one that will write ([`Writer`](super::writer)).
    /// `owner` is who the files are to be given to, where that thread does not act for them.
    pub(crate) fn new(
        outputs: &Outputs,
        pid: Pid,
        owner: Option<Owner>,
    ) -> Result<Self, OutputError> {
        outputs
            .resolve(pid, SystemTime::now())
            .into_iter()
            .map(|(destination, format)| {
                let path = match &destination {
                    Destination::Stdout => Path::new("-"),
                    Destination::File(path) => path,
                };
                Ok((OutputFile::prepare(path, owner)?, format))
            })
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// Writes the recording to all of them, and says where it went, and as what.
    pub(crate) fn write(
        self,
        recording: &Recording,
        view: View,
    ) -> Result<Vec<(Destination, Format)>, OutputError> {
        let options = OutputOptions {
            view,
            title: title(recording),
            subtitle: subtitle(recording),
            notes: notes(recording),
            ..OutputOptions::default()
        };
        self.0
            .into_iter()
            .map(|(file, format)| {
                let written =
                    file.commit(|out| output::write(&recording.profile, format, &options, out))?;
                if written.owner_not_set {
                    tracing::warn!("the result belongs to root: its owner could not be changed");
                }
                let destination = written.path.map_or(Destination::Stdout, Destination::File);
                Ok((destination, format))
            })
            .collect()
    }
}
