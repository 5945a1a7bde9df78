//! Results to files and standard output.
//!
//! They are written by a thread of their own, which has the rights that their places take and no others: under sudo
//! those of the user who called it, so that no file is written where that user could not write one, and each is that
//! user's own. The rest of the program cannot write to files of others at all.

use std::{
    path::Path,
    sync::mpsc::{Receiver, Sender, channel},
    thread,
    time::SystemTime,
};

use anyhow::Context as _;
use rustix::thread::CapabilitySet;

use super::{
    report::{notes, subtitle, title},
    settings::{Destination, Outputs},
};
use crate::{
    model::Pid,
    output::{self, Format, OutputError, OutputFile, OutputOptions, Owner},
    privilege,
    process::launch::Caller,
    profile::View,
    session::Recording,
};

/// Where a recording went, and as what.
pub(crate) type Files = Vec<(Destination, Format)>;

/// All places a recording will be written to, found fit before it begins: a full recording must not be lost to a
/// directory that cannot be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

type Job = (Recording, View);
type Done = (Recording, Result<Files, OutputError>);

/// With which rights a thread writes.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Rights {
    /// Those of the user who called sudo.
    Callers(Caller),
    /// Our own as a user, with these capabilities; files are given to `owner`.
    Ours {
        capabilities: CapabilitySet,
        owner: Option<Owner>,
    },
}

impl Prepared {
    /// Checks them. Rights are taken away from the thread that writes, not from the one that calls.
    pub(crate) fn new(outputs: &Outputs, pid: Pid) -> anyhow::Result<Self> {
        let outputs = outputs.resolve(pid, SystemTime::now());
        let mut refused = None;
        for rights in rights_to_try(Caller::of_sudo()) {
            match Self::with(rights, outputs.clone())? {
                Ok(prepared) => return Ok(prepared),
                Err(error) if error.is_denial() => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        // There is always something to try.
        Err(refused.map_or_else(|| anyhow::anyhow!("nothing may write files"), Into::into))
    }

    /// Starts the thread; what it cannot write to with these rights is the inner error.
    fn with(rights: Rights, outputs: Files) -> anyhow::Result<Result<Self, OutputError>> {
        let (jobs, job) = channel();
        let (tell, done) = channel();
        let (found_fit, fit) = channel();
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                let files = match prepare(rights, &outputs) {
                    Ok(files) => files,
                    Err(error) => return found_fit.send(Err(error)).unwrap_or_default(),
                };
                // Whoever waits for this thread may have given up: then so does it.
                let _ = found_fit.send(Ok(()));
                if let Ok((recording, view)) = job.recv() {
                    let files = write(files, &recording, view);
                    let _ = tell.send((recording, files));
                }
            })
            .context("cannot start a thread")?;
        let fit = fit.recv().context("the thread that writes was lost")?;
        Ok(fit.map(|()| Self { jobs, done }))
    }

    /// Writes the recording to all of them, and says where it went, and as what.
    pub(crate) fn write(
        self,
        recording: Recording,
        view: View,
    ) -> anyhow::Result<(Recording, Files)> {
        let lost = "the thread that writes was lost";
        self.jobs.send((recording, view)).ok().context(lost)?;
        let (recording, files) = self.done.recv().context(lost)?;
        Ok((recording, files?))
    }
}

/// The least first. Root by itself may write to its own directories and those that are open to all; to those of others
/// it takes `CAP_DAC_OVERRIDE` (`generic_permission`, fs/namei.c), and to give a file away `CAP_CHOWN`
/// (`chown_ok`, fs/attr.c).
fn rights_to_try(caller: Option<Caller>) -> Vec<Rights> {
    let owner = caller.as_ref().map(|caller| {
        let (uid, gid) = caller.ids();
        Owner { uid, gid }
    });
    let give_away = match owner {
        Some(_) => CapabilitySet::CHOWN,
        None => CapabilitySet::empty(),
    };
    let ours = [give_away, give_away | CapabilitySet::DAC_OVERRIDE];
    let ours = ours.map(|capabilities| Rights::Ours {
        capabilities,
        owner,
    });
    caller
        .map(Rights::Callers)
        .into_iter()
        .chain(ours)
        .collect()
}

/// Leaves the calling thread with these rights, and sees what it can write to.
fn prepare(rights: Rights, outputs: &Files) -> Result<Vec<(OutputFile, Format)>, OutputError> {
    let (capabilities, owner) = match rights {
        Rights::Callers(caller) => {
            let acting = caller.use_files_as_it();
            acting.map_err(|errno| OutputError::Rights {
                source: errno.into(),
            })?;
            (CapabilitySet::empty(), None)
        }
        Rights::Ours {
            capabilities,
            owner,
        } => (capabilities, owner),
    };
    privilege::keep_only(capabilities).map_err(|errno| OutputError::Rights {
        source: errno.into(),
    })?;
    outputs
        .iter()
        .map(|(destination, format)| {
            let path = match destination {
                Destination::Stdout => Path::new("-"),
                Destination::File(path) => path,
            };
            Ok((OutputFile::prepare(path, owner)?, *format))
        })
        .collect()
}

fn write(
    files: Vec<(OutputFile, Format)>,
    recording: &Recording,
    view: View,
) -> Result<Files, OutputError> {
    let options = OutputOptions {
        view,
        title: title(recording),
        subtitle: subtitle(recording),
        notes: notes(recording),
        ..OutputOptions::default()
    };
    files
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_sudo_nothing_is_given_away() {
        let ours = |capabilities| Rights::Ours {
            capabilities,
            owner: None,
        };
        assert_eq!(
            rights_to_try(None),
            [
                ours(CapabilitySet::empty()),
                ours(CapabilitySet::DAC_OVERRIDE)
            ]
        );
    }
}
