//! Results to files and standard output.
//!
//! They are written by a thread of their own, which has the rights that their places take and no others: under sudo
//! those of the user who called it, so that no file is written where that user could not write one, and each is that
//! user's own. The rest of the program cannot write to files of others at all. A result whose place is gone or full goes
//! to another one with the same rights.

use std::{
    env,
    path::{Path, PathBuf},
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

/// All places a recording will be written to, found fit before it begins: a full recording must not be lost to a
/// directory that cannot be written.
#[derive(Debug)]
pub(crate) struct Prepared {
    jobs: Sender<Job>,
    done: Receiver<Done>,
}

type Files = Vec<(Destination, Format)>;
type Job = (Recording, View);
type Done = (Recording, Stored);

/// What became of a recording.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    /// Where it is, and as what.
    pub(crate) files: Files,
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
    pub(crate) fn new(outputs: &Outputs, pid: Option<Pid>) -> anyhow::Result<Self> {
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
                let places = match prepare(rights, &outputs) {
                    Ok(places) => places,
                    Err(error) => return found_fit.send(Err(error)).unwrap_or_default(),
                };
                // Whoever waits for this thread may have given up: then so does it.
                let _ = found_fit.send(Ok(()));
                if let Ok((recording, view)) = job.recv() {
                    let stored = places.write(&recording, view);
                    let _ = tell.send((recording, stored));
                }
            })
            .context("cannot start a thread")?;
        let fit = fit.recv().context("the thread that writes was lost")?;
        Ok(fit.map(|()| Self { jobs, done }))
    }

    /// Writes the recording to all of them, and gives it back with what became of it.
    pub(crate) fn write(
        self,
        recording: Recording,
        view: View,
    ) -> anyhow::Result<(Recording, Stored)> {
        let lost = "the thread that writes was lost";
        self.jobs.send((recording, view)).ok().context(lost)?;
        self.done.recv().context(lost)
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

/// What the thread that writes has found fit.
struct Places {
    files: Vec<(OutputFile, Format)>,
    owner: Option<Owner>,
}

/// Leaves the calling thread with these rights, and sees what it can write to.
fn prepare(rights: Rights, outputs: &Files) -> Result<Places, OutputError> {
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
    let files = outputs
        .iter()
        .map(|(destination, format)| {
            let path = match destination {
                Destination::Stdout => Path::new("-"),
                Destination::File(path) => path,
            };
            Ok((OutputFile::prepare(path, owner)?, *format))
        })
        .collect::<Result<_, _>>()?;
    Ok(Places { files, owner })
}

impl Places {
    /// Writes the recording to all of them. What one of them does not take any more goes to a place for such cases:
    /// what was recorded may not come again.
    fn write(self, recording: &Recording, view: View) -> Stored {
        let options = OutputOptions {
            view,
            title: title(recording),
            subtitle: subtitle(recording),
            notes: notes(recording),
            ..OutputOptions::default()
        };
        let Self { files, owner } = self;
        let mut stored = Stored::default();
        for (file, format) in files {
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
