//! The thread that writes results, with the rights that their places take and no others.
//!
//! Under sudo these are the rights of the user who called it: no file is written where that user could not write one,
//! and each is that user's own. The rest of the program cannot write to files of others at all.

use std::{
    sync::mpsc::{Sender, channel},
    thread,
};

use anyhow::Context as _;
use rustix::thread::CapabilitySet;

use crate::{
    output::{OutputError, Owner},
    privilege,
    process::launch::Caller,
};

/// What is said should the thread have ended by itself, of a fault.
const LOST: &str = "the thread that writes was lost";

/// The thread, which has prepared a `P` and keeps it until there is something to do with it. It ends with this value.
pub(crate) struct Writer<P> {
    jobs: Sender<Job<P>>,
}

type Job<P> = Box<dyn FnOnce(P) + Send>;

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

impl<P: 'static> Writer<P> {
    /// Starts it, with the least rights with which `prepare` succeeds. What this is given is the owner for its files,
    /// where they do not have that anyway.
    ///
    /// To be called with all rights: each thread that is tried takes its own from the calling one.
    pub(crate) fn start(
        prepare: impl Fn(Option<Owner>) -> Result<P, OutputError> + Clone + Send + 'static,
    ) -> anyhow::Result<Self> {
        let mut refused = None;
        for rights in rights_to_try(Caller::of_sudo()) {
            match Self::with(rights, prepare.clone())? {
                Ok(writer) => return Ok(writer),
                Err(error) if error.is_denial() => refused = Some(error),
                Err(error) => return Err(error.into()),
            }
        }
        Err(refused.map_or_else(|| anyhow::anyhow!(LOST), Into::into))
    }

    /// Starts it with these rights; what cannot be prepared with them is the inner error.
    fn with(
        rights: Rights,
        prepare: impl FnOnce(Option<Owner>) -> Result<P, OutputError> + Send + 'static,
    ) -> anyhow::Result<Result<Self, OutputError>> {
        let (jobs, job) = channel::<Job<P>>();
        let (tell, told) = channel();
        thread::Builder::new()
            .name("output".to_owned())
            .spawn(move || {
                let prepared = match take(rights).and_then(prepare) {
                    Ok(prepared) => prepared,
                    Err(error) => return tell.send(Err(error)).unwrap_or_default(),
                };
                let heard = tell.send(Ok(()));
                if heard.is_ok()
                    && let Ok(job) = job.recv()
                {
                    job(prepared);
                }
            })
            .context("cannot start a thread")?;
        let prepared = told.recv().context(LOST)?;
        Ok(prepared.map(|()| Self { jobs }))
    }

    /// Has it do its work, and waits for that.
    pub(crate) fn run<R: Send + 'static>(
        self,
        work: impl FnOnce(P) -> R + Send + 'static,
    ) -> anyhow::Result<R> {
        let (tell, told) = channel();
        let job = Box::new(move |prepared| {
            // Whoever waits for it may have given up.
            let _ = tell.send(work(prepared));
        });
        self.jobs.send(job).ok().context(LOST)?;
        told.recv().context(LOST)
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

/// Leaves the calling thread with these rights; gives the owner whom files are still to be given to.
fn take(rights: Rights) -> Result<Option<Owner>, OutputError> {
    let failed = |errno: rustix::io::Errno| OutputError::Rights {
        source: errno.into(),
    };
    let (capabilities, owner) = match rights {
        Rights::Callers(caller) => {
            caller.use_files_as_it().map_err(failed)?;
            (CapabilitySet::empty(), None)
        }
        Rights::Ours {
            capabilities,
            owner,
        } => (capabilities, owner),
    };
    privilege::keep_only(capabilities).map_err(failed)?;
    Ok(owner)
}

#[cfg(test)]
mod tests {
    use std::io;

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

    #[test]
    fn what_was_prepared_is_worked_on_by_the_same_thread() {
        let writer = Writer::start(|_| Ok(thread::current().id())).expect("started");
        let same = writer.run(|prepared| prepared == thread::current().id());
        assert!(same.expect("it ran"));
    }

    #[test]
    fn rights_that_do_not_suffice_are_not_the_end() {
        let denied = || OutputError::Rights {
            source: io::Error::from(io::ErrorKind::PermissionDenied),
        };
        // Every thread has no effective rights until the last, which may have one.
        let tried = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let counted = tried.clone();
        let result = Writer::<()>::start(move |_| {
            counted.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            Err(denied())
        });
        assert!(result.is_err());
        assert_eq!(tried.load(std::sync::atomic::Ordering::Relaxed), 2);
        let other = Writer::<()>::start(|_| Err(OutputError::NoSamples));
        assert!(other.is_err_and(|error| error.is::<OutputError>()));
    }
}
