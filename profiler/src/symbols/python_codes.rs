//! What the code objects of one process are called: each is read once, at once, and remembered.
//!
//! A code object that was freed before it could be read is lost, but never taken for the one that lies there now: its
//! identity, which the kernel side computed in the moment of the sample, differs.

use std::{sync::Arc, time::Duration};

use rustc_hash::FxHashMap;

use super::{allowance::Allowance, locations::unknown_frame};
use crate::{
    model::{Avma, Frame, FrameKind, LocationId, Pid, PythonFrame, ResolveMiss},
    process::{
        interpreter::{
            Code, CodeMiss, Interpreter, Memory, PatientReader, Progress, Reading, read_code,
        },
        thread_time,
    },
};

/// Code objects that are remembered of one process. Past it all are forgotten, and read again when they are seen: a
/// program that makes ever new code would otherwise fill our memory.
const CODES_MAX: usize = 1 << 16;
/// The same in bytes of names and line tables.
const CODE_BYTES_MAX: usize = 64 << 20;
/// Samples wait so long at most for the code objects of one of them: some microseconds each. What takes longer gets its
/// names when they come.
const PATIENCE: Duration = Duration::from_millis(20);
/// Frames that wait for their names, of one process.
const WAITING_MAX: usize = 1 << 16;

/// A code object at an address.
type Key = (Avma, u32);

/// The interpreter of one program, and what is known of its code objects.
pub(super) struct PythonCodes {
    pid: Pid,
    interpreter: Arc<Interpreter>,
    memory: Option<Arc<Memory>>,
    /// Of the process that it was forked from, where all code from before the fork lies at the same addresses: a child that
    /// ends soon has none to read.
    parents_memory: Option<Arc<Memory>>,
    allowance: Allowance,
    /// A read that has not come back yet. Until it does, there is no other.
    outstanding: Option<Reading<CodesRead>>,
    /// Frames whose code objects were not read yet, and their locations.
    waiting: FxHashMap<Key, Vec<(Option<i32>, LocationId)>>,
    waiting_frames: usize,
    /// Why those of the last read could not be read.
    missed: FxHashMap<Key, CodeMiss>,
    /// Those whose names have come.
    ready: Vec<(LocationId, Frame)>,
    /// A child begins with its parent's.
    codes: Arc<FxHashMap<Key, Known>>,
    bytes: usize,
}

/// One code object.
#[derive(Clone)]
struct Known {
    code: Arc<Code>,
    /// Its locations by line; `None`: where the line is not known.
    lines: FxHashMap<Option<u32>, LocationId>,
}

/// What is known of a frame.
pub(super) enum Lookup {
    /// Its location is known.
    Location(LocationId),
    /// It is this, and has no location yet.
    Frame(Frame),
    /// Its name comes later.
    Later,
}

/// What came of reading code objects, on a reader's thread.
struct CodesRead {
    memory: Option<Arc<Memory>>,
    codes: Vec<(Key, Result<Code, CodeMiss>)>,
    cpu_time: Duration,
}

impl PythonCodes {
    /// Nothing is known yet but the interpreter.
    pub(super) fn new(pid: Pid, interpreter: Arc<Interpreter>) -> Self {
        Self {
            pid,
            interpreter,
            memory: None,
            parents_memory: None,
            allowance: Allowance::new(),
            outstanding: None,
            waiting: FxHashMap::default(),
            waiting_frames: 0,
            missed: FxHashMap::default(),
            ready: Vec::new(),
            codes: Arc::default(),
            bytes: 0,
        }
    }

    /// A child process: its code objects lie where its parent's do.
    pub(super) fn forked(&self, pid: Pid) -> Self {
        Self {
            parents_memory: self.memory.clone().or_else(|| self.parents_memory.clone()),
            codes: Arc::clone(&self.codes),
            bytes: self.bytes,
            ..Self::new(pid, Arc::clone(&self.interpreter))
        }
    }

    /// Reads the code objects of these frames that were not seen before: some 20 µs each, and no more than there is time
    /// for.
    pub(super) fn meet(
        &mut self,
        frames: impl Iterator<Item = PythonFrame>,
        reader: &mut PatientReader,
    ) {
        let new: Vec<Key> = frames
            .map(|frame| (frame.code, frame.identity))
            .filter(|key| !self.codes.contains_key(key))
            .collect();
        if !new.is_empty() {
            self.read(new, reader, PATIENCE);
        }
    }

    /// Goes on with what could not be read at once, and takes the names that have come since.
    pub(super) fn catch_up(
        &mut self,
        reader: &mut PatientReader,
        patience: Duration,
    ) -> Vec<(LocationId, Frame)> {
        if self.outstanding.is_some() || !self.waiting.is_empty() {
            self.read(Vec::new(), reader, patience);
        }
        std::mem::take(&mut self.ready)
    }

    /// Some frames have no names yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.ready.is_empty()
    }

    fn read(&mut self, mut keys: Vec<Key>, reader: &mut PatientReader, patience: Duration) {
        let reading = match self.outstanding.take() {
            Some(reading) => reading,
            None if self.allowance.left().is_zero() => return,
            None => {
                keys.extend(self.waiting.keys().copied());
                keys.sort_unstable();
                keys.dedup();
                let (pid, memory) = (self.pid, self.memory.clone());
                let parents = self.parents_memory.clone();
                let interpreter = Arc::clone(&self.interpreter);
                match reader.begin(move || read(pid, memory, parents.as_ref(), &interpreter, &keys))
                {
                    Some(reading) => reading,
                    None => return,
                }
            }
        };
        match reading.wait(patience) {
            Progress::Done(read) => self.take_in(read),
            Progress::Waiting => self.outstanding = Some(reading),
            Progress::Failed => {}
        }
    }

    fn take_in(&mut self, read: CodesRead) {
        self.missed.clear();
        self.allowance.spend(read.cpu_time);
        let could_read = read.memory.is_some();
        self.memory = read.memory;
        for (key, code) in read.codes {
            let waiting = match &code {
                // What could not be read at all may be later.
                Err(_) if !could_read => Vec::new(),
                _ => self.waiting.remove(&key).unwrap_or_default(),
            };
            self.waiting_frames -= waiting.len();
            let code = match code {
                Ok(code) => Arc::new(code),
                Err(miss) => {
                    tracing::trace!("code object {:#x} of pid {}: {miss:?}", key.0, self.pid);
                    let unknown = || unknown_frame(reason(miss));
                    self.ready
                        .extend(waiting.into_iter().map(|(_, id)| (id, unknown())));
                    self.missed.insert(key, miss);
                    continue;
                }
            };
            let frame = |at: Option<i32>| named(&code, at.map(|at| code.line_at(at)));
            self.ready
                .extend(waiting.into_iter().map(|(at, id)| (id, frame(at))));
            if self.codes.len() >= CODES_MAX || self.bytes >= CODE_BYTES_MAX {
                self.codes = Arc::default();
                self.bytes = 0;
            }
            self.bytes += code.heap_bytes();
            let lines = FxHashMap::default();
            Arc::make_mut(&mut self.codes).insert(key, Known { code, lines });
        }
    }

    /// What a frame is, which was [met](Self::meet) before.
    pub(super) fn look_up(&mut self, frame: PythonFrame) -> Lookup {
        let key = (frame.code, frame.identity);
        let Some(known) = self.codes.get(&key) else {
            // Not asked for yet, or not answered.
            let may_come = self.memory.is_none() || !self.missed.contains_key(&key);
            return if may_come && self.waiting_frames < WAITING_MAX {
                Lookup::Later
            } else {
                let miss = self.missed.get(&key);
                let miss = miss.map_or(ResolveMiss::UnreadCode, |miss| reason(*miss));
                Lookup::Frame(unknown_frame(miss))
            };
        };
        let line = frame.instruction.map(|at| known.code.line_at(at));
        match known.lines.get(&line) {
            Some(&id) => Lookup::Location(id),
            None => Lookup::Frame(named(&known.code, line)),
        }
    }

    /// Remembers the location of a frame that was just looked up.
    pub(super) fn remember(&mut self, frame: PythonFrame, line: Option<u32>, id: LocationId) {
        let key = (frame.code, frame.identity);
        if let Some(known) = Arc::make_mut(&mut self.codes).get_mut(&key) {
            known.lines.insert(line, id);
        }
    }

    /// The location of a frame that gets its name later.
    pub(super) fn wait_for_name(&mut self, frame: PythonFrame, id: LocationId) {
        let key = (frame.code, frame.identity);
        self.waiting
            .entry(key)
            .or_default()
            .push((frame.instruction, id));
        self.waiting_frames += 1;
    }

    /// The location of a frame that waits for its name already.
    pub(super) fn waiting_location(&self, frame: PythonFrame) -> Option<LocationId> {
        let waiting = self.waiting.get(&(frame.code, frame.identity))?;
        let same = waiting.iter().find(|(at, _)| *at == frame.instruction);
        same.map(|(_, id)| *id)
    }
}

/// What a frame says of itself whose code object was not read.
const fn reason(miss: CodeMiss) -> ResolveMiss {
    match miss {
        CodeMiss::Replaced | CodeMiss::Gone | CodeMiss::Malformed => ResolveMiss::FreedCode,
        CodeMiss::Ended => ResolveMiss::EndedCode,
    }
}

fn read(
    pid: Pid,
    memory: Option<Arc<Memory>>,
    parents: Option<&Arc<Memory>>,
    interpreter: &Interpreter,
    keys: &[Key],
) -> CodesRead {
    let begun = thread_time();
    let memory = memory.or_else(|| {
        Memory::open_present(pid)
            .inspect_err(|error| tracing::debug!("memory of pid {pid}: {error}"))
            .ok()
            .map(Arc::new)
    });
    let has_ended = || memory.as_ref().is_none_or(|memory| memory.has_ended());
    let codes = keys.iter().map(|&key| {
        let (Avma(at), identity) = key;
        let read_in = |memory: Option<&Arc<Memory>>| match memory {
            Some(memory) => read_code(&**memory, &interpreter.code, at, identity),
            None => Err(CodeMiss::Gone),
        };
        let code = match read_in(memory.as_ref()) {
            Err(CodeMiss::Gone) => read_in(parents),
            read => read,
        };
        let code = match code {
            Err(CodeMiss::Gone) if has_ended() => Err(CodeMiss::Ended),
            read => read,
        };
        (key, code)
    });
    CodesRead {
        codes: codes.collect(),
        cpu_time: thread_time().saturating_sub(begun),
        memory,
    }
}

fn named(code: &Code, line: Option<u32>) -> Frame {
    Frame {
        // What the interpreter puts on the stack for itself is no function of the program.
        kind: if code.is_internal() {
            FrameKind::Interpreter
        } else {
            FrameKind::Python
        },
        name: code.name.clone(),
        file: Some(code.file.clone()).filter(|file| !file.is_empty()),
        line,
        first_line: Some(code.first_line),
        module: None,
        miss: None,
    }
}
