//! Whether the frames of a program's interpreter are read: tried when it begins, and again until it is sure.

use std::{
    io,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{PythonFrom, PythonSource};
use crate::{
    model::{ImageId, Pid},
    process::{
        Mapping, PythonInfo,
        interpreter::{
            Examined, Interpreter, Memory, Obstacle, Progress, Reading, Remedy, examine, threads,
        },
    },
    symbols::Resolver,
    unwind::{KnownInterpreter, TableBuilder},
};

/// An interpreter that has no frame yet is asked again after so long: in its first second, in its first ten, and later.
const AGAIN: [(Duration, Duration); 2] = [
    (Duration::from_secs(1), Duration::from_millis(2)),
    (Duration::from_secs(10), Duration::from_millis(100)),
];
const AGAIN_LATER: Duration = Duration::from_secs(2);
/// Samples wait so long at most while an interpreter is looked at: it takes a millisecond. What takes longer, on a busy
/// machine, is asked for again.
pub(super) const PATIENCE: Duration = Duration::from_millis(20);
/// The same before sampling begins, when nothing else waits.
pub(super) const PATIENCE_AT_START: Duration = Duration::from_millis(200);

/// A program whose interpreter is looked for.
pub(super) struct Program<'p> {
    pub(super) pid: Pid,
    pub(super) image: ImageId,
    pub(super) python: &'p PythonInfo,
    pub(super) mappings: &'p [Mapping],
    /// How long to wait for what is read of it.
    pub(super) patience: Duration,
}

/// A look at one that has not come back yet.
pub(super) struct Looking {
    image: ImageId,
    reading: Reading<Looked>,
}

/// What was found, and the states of its threads.
type Looked = (io::Result<Examined>, Vec<(u64, u64)>);

impl Program<'_> {
    fn begin_to_look(&self, resolver: &mut Resolver) -> Option<Reading<Looked>> {
        let (pid, python, mappings) = (self.pid, self.python.clone(), self.mappings.to_vec());
        resolver.reader().begin(move || {
            let memory = match Memory::open(pid) {
                Ok(memory) => memory,
                Err(error) => return (Err(error), Vec::new()),
            };
            let examined = examine(pid, &memory, &mappings, &python);
            let threads = match &examined {
                Examined::Known(interpreter) => threads(interpreter, &memory),
                _ => Vec::new(),
            };
            (Ok(examined), threads)
        })
    }
}

/// What is known of a program's interpreter. A forked child begins with its parent's.
#[derive(Clone, Debug)]
pub(super) enum PythonFrames {
    /// Perf maps were asked for.
    NotWanted,
    /// Nothing yet: it has not been looked at, or has no frame.
    NotYet {
        /// When it was looked at first.
        since: Option<Instant>,
        /// When it is to be looked at again.
        next: Option<Instant>,
    },
    /// Its frames are read.
    Read(Arc<Interpreter>),
    /// They cannot be read, and why.
    Refused(Arc<Obstacle>),
}

impl PythonFrames {
    /// Of a program that is not known yet.
    pub(super) const fn wanted(from: PythonFrom) -> Self {
        match from {
            PythonFrom::Auto | PythonFrom::Interpreter => Self::UNKNOWN,
            PythonFrom::PerfMap => Self::NotWanted,
        }
    }

    const UNKNOWN: Self = Self::NotYet {
        since: None,
        next: None,
    };

    /// Of the program that replaces this one.
    pub(super) const fn replaced(&self) -> Self {
        match self {
            Self::NotWanted => Self::NotWanted,
            _ => Self::UNKNOWN,
        }
    }

    /// It was looked at, and is to be looked at again.
    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self, Self::NotYet { next: Some(_), .. })
    }

    /// New mappings may have brought what it takes: a `python` may only just be about to load its libpython.
    pub(super) fn may_change(&self) -> bool {
        matches!(self, Self::NotYet { .. } | Self::Refused(_))
    }

    /// It is time to look at it, again or for the first time.
    pub(super) fn is_due(&self) -> bool {
        match self {
            Self::NotYet { next, .. } => next.is_none_or(|next| Instant::now() >= next),
            _ => false,
        }
    }

    /// Looks at the interpreter, and has its frames read if it is known. `looking` is a look that has not come back yet.
    pub(super) fn look(
        &mut self,
        program: &Program<'_>,
        looking: &mut Option<Looking>,
        builder: &TableBuilder,
        resolver: &mut Resolver,
    ) {
        let &Program { pid, image, .. } = program;
        let before = looking.take().filter(|looking| looking.image == image);
        let reading = match before {
            Some(looking) => looking.reading,
            None => match program.begin_to_look(resolver) {
                Some(reading) => reading,
                None => return self.wait(),
            },
        };
        let progress = if program.patience > PATIENCE {
            // Before sampling begins: no samples wait.
            reading.wait(program.patience)
        } else {
            resolver.reader().wait(&reading, program.patience)
        };
        let (examined, threads) = match progress {
            Progress::Done(looked) => looked,
            Progress::Waiting => {
                *looking = Some(Looking { image, reading });
                return self.wait();
            }
            Progress::Failed => return self.wait(),
        };
        let examined = match examined {
            Ok(examined) => examined,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let obstacle = Obstacle {
                    reason: "its memory may not be read".to_owned(),
                    remedy: Remedy::Rights,
                };
                *self = Self::Refused(Arc::new(obstacle));
                return;
            }
            // It is ending.
            Err(_) => return self.wait(),
        };
        match examined {
            Examined::Known(interpreter) => {
                let known = KnownInterpreter {
                    pid,
                    image,
                    layout: interpreter.frames,
                    threads,
                };
                // Names first: the first frames may come at once.
                let interpreter = Arc::new(*interpreter);
                resolver.interpreter(image, &interpreter);
                builder.interpreter(known);
                tracing::debug!("pid {pid}: reading frames of {:#x}", interpreter.version);
                *self = Self::Read(interpreter);
            }
            Examined::NotYet(reason) => {
                tracing::trace!("pid {pid}: {reason:?}");
                self.wait();
            }
            Examined::Refused(reason) => {
                tracing::debug!("pid {pid}: {reason}");
                *self = Self::Refused(Arc::new(reason.into()));
            }
            Examined::NoPython => *self = Self::UNKNOWN,
        }
    }

    /// To be looked at again.
    fn wait(&mut self) {
        let now = Instant::now();
        let since = match self {
            Self::NotYet {
                since: Some(since), ..
            } => *since,
            _ => now,
        };
        let waited = now.saturating_duration_since(since);
        let again = AGAIN.iter().find(|(until, _)| waited < *until);
        *self = Self::NotYet {
            since: Some(since),
            next: Some(now + again.map_or(AGAIN_LATER, |(_, again)| *again)),
        };
    }

    /// What the summary says of it.
    pub(super) fn source(&self) -> PythonSource {
        match self {
            Self::NotWanted => PythonSource::PerfMap,
            Self::NotYet { .. } => PythonSource::NotYet,
            Self::Read(interpreter) => PythonSource::Interpreter(interpreter.version),
            Self::Refused(reason) => PythonSource::Refused(Obstacle::clone(reason)),
        }
    }
}
