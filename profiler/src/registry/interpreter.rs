//! Whether the frames of a program's interpreter can be read: examined when the program begins, and again until the
//! answer is final.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{Host, PythonFrom, PythonSource};
use crate::{
    model::{ImageId, Pid},
    process::{
        Mapping, PythonInfo,
        interpreter::{
            Examined, Interpreter, Obstacle, PatientReader, Progress, Reading, Refusal, Remedy,
        },
    },
};

/// An interpreter without a frame is examined again after this time: in its first second, in its first ten, and later.
const AGAIN: [(Duration, Duration); 2] = [
    (Duration::from_secs(1), Duration::from_millis(2)),
    (Duration::from_secs(10), Duration::from_millis(100)),
];
const AGAIN_LATER: Duration = Duration::from_secs(2);
/// A refusal that follows from frames is final once it has come so often. A thread that loses its CPU while it enters a
/// function leaves frames that fit no layout, for as long as it does not run.
const REFUSALS_MIN: u32 = 3;
/// Time between two of them.
const AGAIN_AFTER_REFUSAL: Duration = Duration::from_millis(10);
/// Longest time that samples wait for an examination, which takes a millisecond. One that takes longer, on a busy
/// machine, is asked for its result later.
pub(super) const TIMEOUT: Duration = Duration::from_millis(20);
/// The same before sampling begins, when no samples wait.
pub(super) const TIMEOUT_AT_START: Duration = Duration::from_millis(200);

/// A program whose interpreter is examined.
pub(super) struct Subject<'s> {
    pub(super) pid: Pid,
    pub(super) image: ImageId,
    pub(super) python: &'s PythonInfo,
    pub(super) mappings: &'s [Mapping],
    /// Longest wait for the result.
    pub(super) timeout: Duration,
}

/// What was found out about an interpreter, and the states of its threads; an error where the memory of the process
/// cannot be read.
pub type Examination = io::Result<(Examined, Vec<(u64, u64)>)>;

/// An interpreter whose frames can be read, and the states of its threads.
pub(super) type Found = (Arc<Interpreter>, Vec<(u64, u64)>);

/// An examination whose result is not there yet.
#[derive(Debug)]
pub(super) struct Pending {
    image: ImageId,
    reading: Reading<Examination>,
}

/// What is known about a program's interpreter. A forked child begins with what is known about its parent's.
#[derive(Clone, Debug)]
pub(super) enum InterpreterState {
    /// Perf maps were asked for.
    NotWanted,
    /// Nothing yet: it was not examined, or has no frame.
    NotYet {
        /// When it was examined first.
        since: Option<Instant>,
        /// When it is to be examined again.
        next: Option<Instant>,
        /// How often its frames fitted no layout.
        refusals: u32,
    },
    /// Its frames are read.
    Read(Arc<Interpreter>),
    /// They cannot be read, and why.
    Refused(Arc<Obstacle>),
}

impl InterpreterState {
    /// Of a program that was not looked at yet.
    pub(super) const fn wanted(from: PythonFrom) -> Self {
        match from {
            PythonFrom::Auto | PythonFrom::Interpreter => Self::UNKNOWN,
            PythonFrom::PerfMap => Self::NotWanted,
        }
    }

    const UNKNOWN: Self = Self::NotYet {
        since: None,
        next: None,
        refusals: 0,
    };

    /// Of the program that replaces this one.
    pub(super) const fn replaced(&self) -> Self {
        match self {
            Self::NotWanted => Self::NotWanted,
            _ => Self::UNKNOWN,
        }
    }

    /// Its frames are to be read if that can be done.
    pub(super) const fn is_wanted(&self) -> bool {
        !matches!(self, Self::NotWanted)
    }

    /// It was examined, and is to be examined again.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self, Self::NotYet { next: Some(_), .. })
    }

    /// New mappings may change the answer: a `python` may only just be about to load its libpython.
    pub(super) const fn may_change(&self) -> bool {
        matches!(self, Self::NotYet { .. } | Self::Refused(_))
    }

    /// It is time to examine it, again or for the first time.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        match self {
            Self::NotYet { next, .. } => next.is_none_or(|next| now >= next),
            _ => false,
        }
    }

    /// Examines the interpreter. Gives it once its frames can be read. `pending` is an examination whose result is not
    /// there yet.
    pub(super) fn examine(
        &mut self,
        subject: &Subject<'_>,
        pending: &mut Option<Pending>,
        reader: &mut PatientReader,
        host: &Arc<dyn Host>,
    ) -> Option<Found> {
        let &Subject { pid, image, .. } = subject;
        let before = pending.take().filter(|pending| pending.image == image);
        let reading = before.map(|pending| pending.reading);
        let Some(reading) = reading.or_else(|| begin(subject, reader, host)) else {
            self.wait(host.now());
            return None;
        };
        let progress = if subject.timeout > TIMEOUT {
            // Before sampling begins: no samples wait.
            reading.wait(subject.timeout)
        } else {
            reader.wait(&reading, subject.timeout)
        };
        match progress {
            Progress::Done(Ok((Examined::Known(interpreter), threads))) => {
                tracing::debug!("pid {pid}: reading frames of {:#x}", interpreter.version);
                let interpreter = Arc::new(*interpreter);
                *self = Self::Read(Arc::clone(&interpreter));
                return Some((interpreter, threads));
            }
            Progress::Done(Ok((Examined::NotYet(reason), _))) => {
                tracing::trace!("pid {pid}: {reason:?}");
                self.wait(host.now());
            }
            Progress::Done(Ok((Examined::Refused(reason), _))) => {
                tracing::debug!("pid {pid}: {reason}");
                self.refuse(reason, host.now());
            }
            Progress::Done(Ok((Examined::NoPython, _))) => *self = Self::UNKNOWN,
            Progress::Done(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                *self = Self::Refused(Arc::new(Obstacle {
                    reason: "its memory may not be read".to_owned(),
                    remedy: Remedy::Rights,
                }));
            }
            // The process is exiting, or the examination failed.
            Progress::Done(Err(_)) | Progress::Failed => self.wait(host.now()),
            Progress::Waiting => {
                *pending = Some(Pending { image, reading });
                self.wait(host.now());
            }
        }
        None
    }

    /// To be examined again.
    fn wait(&mut self, now: Instant) {
        let (since, refusals) = self.so_far(now);
        let waited = now.saturating_duration_since(since);
        let again = AGAIN.iter().find(|(until, _)| waited < *until);
        *self = Self::NotYet {
            since: Some(since),
            next: Some(now + again.map_or(AGAIN_LATER, |(_, again)| *again)),
            refusals,
        };
    }

    /// Refused, or to be examined again where that may have been a bad moment.
    fn refuse(&mut self, reason: Refusal, now: Instant) {
        let (since, refusals) = self.so_far(now);
        *self = if reason.is_of_frames() && refusals + 1 < REFUSALS_MIN {
            Self::NotYet {
                since: Some(since),
                next: Some(now + AGAIN_AFTER_REFUSAL),
                refusals: refusals + 1,
            }
        } else {
            Self::Refused(Arc::new(reason.into()))
        };
    }

    /// When it was examined first, and how often it was refused.
    const fn so_far(&self, now: Instant) -> (Instant, u32) {
        match self {
            Self::NotYet {
                since: Some(since),
                refusals,
                ..
            } => (*since, *refusals),
            _ => (now, 0),
        }
    }

    /// What the summary says about it.
    pub(super) fn source(&self) -> PythonSource {
        match self {
            Self::NotWanted => PythonSource::PerfMap,
            Self::NotYet { .. } => PythonSource::NotYet,
            Self::Read(interpreter) => PythonSource::Interpreter(interpreter.version),
            Self::Refused(reason) => PythonSource::Refused(Obstacle::clone(reason)),
        }
    }
}

fn begin(
    subject: &Subject<'_>,
    reader: &mut PatientReader,
    host: &Arc<dyn Host>,
) -> Option<Reading<Examination>> {
    let (pid, python, mappings) = (
        subject.pid,
        subject.python.clone(),
        subject.mappings.to_vec(),
    );
    let host = Arc::clone(host);
    reader.begin(move || host.examine(pid, &mappings, &python))
}
