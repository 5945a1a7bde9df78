//! What the code objects of one process are called: each is read once, at once, and remembered.
//!
//! A code object that was freed before it could be read is lost, but never taken for the one that lies there now: its
//! identity, which the kernel side computed in the moment of the sample, differs.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use rustc_hash::FxHashMap;

use super::{
    allowance::Allowance, budgets::Budgets, locations::unknown_frame, shared_memory::Share,
};
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
/// program that makes ever new code would otherwise fill our memory. They are forgotten, too, when there is no memory left
/// of what all processes share ([`Budgets::codes`]).
const CODES_MAX: usize = 1 << 16;
/// Bounds of what is read of a process with one request: code objects, bytes of names and line tables, CPU time. What is
/// left is read with the next requests.
const CODES_AT_ONCE: usize = 1024;
const BYTES_AT_ONCE: usize = 4 << 20;
const WORK_AT_ONCE: Duration = Duration::from_millis(10);
/// Longest wait of samples for the code objects of one of them: some microseconds each. What takes longer gets its
/// names when they come. All processes together wait no longer than
/// [`WAIT_AT_ONCE`](crate::process::interpreter::WAIT_AT_ONCE).
const PATIENCE: Duration = Duration::from_millis(20);
/// A process that took too long this many times in a row is not waited for.
const DELAYS_MAX: u32 = 5;
/// Frames that wait for their names, of one process.
const WAITING_MAX: usize = 1 << 16;
/// What a code object takes besides its names and its line table, a line of it that was seen, and a frame that waits for
/// its name.
const CODE_BYTES: usize = 192;
const LINE_BYTES: usize = 24;
const WAITING_BYTES: usize = 96;

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
    waiting: FxHashMap<Key, FxHashMap<Option<i32>, LocationId>>,
    waiting_frames: usize,
    /// Why those of the last read could not be read.
    missed: FxHashMap<Key, CodeMiss>,
    /// How often of late a read took longer than samples wait: they wait half as long for the next one each time.
    delays: u32,
    /// Those whose names have come.
    ready: Vec<(LocationId, Frame)>,
    /// A child begins with its parent's.
    codes: Arc<FxHashMap<Key, Known>>,
    /// Names and line tables of those that were read for this process.
    bytes: usize,
    share: Share,
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
    pub(super) fn new(pid: Pid, interpreter: Arc<Interpreter>, budgets: &Budgets) -> Self {
        let allowance = Allowance::new(Instant::now(), &budgets.code_work);
        let share = Share::new(budgets.codes.clone());
        Self::with(pid, interpreter, allowance, share)
    }

    fn with(pid: Pid, interpreter: Arc<Interpreter>, allowance: Allowance, share: Share) -> Self {
        Self {
            pid,
            interpreter,
            memory: None,
            parents_memory: None,
            allowance,
            outstanding: None,
            waiting: FxHashMap::default(),
            waiting_frames: 0,
            missed: FxHashMap::default(),
            delays: 0,
            ready: Vec::new(),
            codes: Arc::default(),
            bytes: 0,
            share,
        }
    }

    /// A child process: its code objects lie where its parent's do.
    pub(super) fn forked(&self, pid: Pid) -> Self {
        let interpreter = Arc::clone(&self.interpreter);
        let allowance = self.allowance.another(Instant::now());
        let mut child = Self::with(pid, interpreter, allowance, self.share.another());
        child.parents_memory = self.memory.clone().or_else(|| self.parents_memory.clone());
        // Where there is no room for its own list, it reads what it needs.
        if child.share.has_room(self.codes.len() * CODE_BYTES) {
            child.codes = Arc::clone(&self.codes);
            child.account();
        }
        child
    }

    /// Counts the memory. False: there is no more.
    fn account(&mut self) -> bool {
        let codes = self.codes.len() * CODE_BYTES + self.bytes;
        self.share.set(codes + self.waiting_frames * WAITING_BYTES)
    }

    /// Reads the code objects of these frames that were not seen before: some 20 µs each, and no more than there is time
    /// for.
    pub(super) fn meet(
        &mut self,
        frames: impl Iterator<Item = PythonFrame>,
        reader: &mut PatientReader,
    ) {
        let is_new = |key: &Key| !self.codes.contains_key(key) && !self.waiting.contains_key(key);
        let mut new: Vec<Key> = frames
            .map(|frame| (frame.code, frame.identity))
            .filter(is_new)
            .collect();
        if !new.is_empty() {
            new.sort_unstable();
            new.dedup();
            self.read(new, reader, timeout_after(self.delays));
        }
    }

    /// Goes on with what could not be read at once, and takes the names that have come since.
    pub(super) fn catch_up(&mut self, reader: &mut PatientReader) -> Vec<(LocationId, Frame)> {
        if self.outstanding.is_some() || !self.waiting.is_empty() {
            self.read(Vec::new(), reader, Duration::ZERO);
        }
        std::mem::take(&mut self.ready)
    }

    /// The last names: request after request, as long as each brings some and there is time to wait for them.
    pub(super) fn finish(
        &mut self,
        reader: &mut PatientReader,
        timeout: Duration,
    ) -> Vec<(LocationId, Frame)> {
        while !self.waiting.is_empty() {
            let before = self.waiting_frames;
            self.request(Vec::new(), reader, timeout);
            if self.waiting_frames >= before {
                break;
            }
        }
        std::mem::take(&mut self.ready)
    }

    /// Some frames have no names yet.
    pub(super) fn is_waiting(&self) -> bool {
        !self.waiting.is_empty() || !self.ready.is_empty()
    }

    /// Takes in what was asked for before, and reads these code objects, none of which is waited for yet, and then those
    /// that are.
    fn read(&mut self, mut keys: Vec<Key>, reader: &mut PatientReader, timeout: Duration) {
        if self.outstanding.is_some() {
            self.request(Vec::new(), reader, timeout);
            keys.retain(|key| !self.codes.contains_key(key));
        }
        let is_wanted = !keys.is_empty() || !self.waiting.is_empty();
        if is_wanted && self.outstanding.is_none() && !self.allowance.left(Instant::now()).is_zero()
        {
            self.request(keys, reader, timeout);
        }
    }

    fn request(&mut self, mut keys: Vec<Key>, reader: &mut PatientReader, timeout: Duration) {
        let reading = if let Some(reading) = self.outstanding.take() {
            reading
        } else {
            let room = CODES_AT_ONCE.saturating_sub(keys.len());
            keys.truncate(CODES_AT_ONCE);
            keys.extend(self.waiting.keys().take(room).copied());
            let (pid, memory) = (self.pid, self.memory.clone());
            let parents = self.parents_memory.clone();
            let interpreter = Arc::clone(&self.interpreter);
            match reader.begin(move || read(pid, memory, parents.as_ref(), &interpreter, &keys)) {
                Some(reading) => reading,
                None => return,
            }
        };
        let began = Instant::now();
        match reader.wait(&reading, timeout) {
            Progress::Done(read) => {
                self.delays = self.delays.saturating_sub(1);
                self.take_in(read);
            }
            Progress::Waiting => {
                // Not where there was no time to wait, for reasons of others.
                if !timeout.is_zero() && began.elapsed() >= timeout {
                    self.delays = (self.delays + 1).min(DELAYS_MAX);
                }
                self.outstanding = Some(reading);
            }
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
                Err(_) if !could_read => FxHashMap::default(),
                _ => self.waiting.remove(&key).unwrap_or_default(),
            };
            self.waiting_frames = self.waiting_frames.saturating_sub(waiting.len());
            let code = match code {
                Ok(code) => Arc::new(code),
                Err(miss) => {
                    tracing::trace!("code object {:#x} of pid {}: {miss:?}", key.0, self.pid);
                    let unknown = || unknown_frame(reason(miss));
                    self.ready
                        .extend(waiting.into_values().map(|id| (id, unknown())));
                    self.missed.insert(key, miss);
                    continue;
                }
            };
            let frame = |at: Option<i32>| named(&code, at.map(|at| code.line_at(at)));
            self.ready
                .extend(waiting.into_iter().map(|(at, id)| (id, frame(at))));
            let bytes = code.heap_bytes() + CODE_BYTES;
            if self.codes.len() >= CODES_MAX || !self.share.has_room(bytes) {
                self.codes = Arc::default();
                self.bytes = 0;
            }
            self.bytes += code.heap_bytes();
            let lines = FxHashMap::default();
            Arc::make_mut(&mut self.codes).insert(key, Known { code, lines });
            self.account();
        }
    }

    /// What a frame is, which was [met](Self::meet) before.
    pub(super) fn look_up(&mut self, frame: PythonFrame) -> Lookup {
        let key = (frame.code, frame.identity);
        let Some(known) = self.codes.get(&key) else {
            // Not asked for yet, or not answered.
            let may_come = self.memory.is_none() || !self.missed.contains_key(&key);
            let has_room = self.waiting_frames < WAITING_MAX && self.share.has_room(WAITING_BYTES);
            return if may_come && has_room {
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
        if self.share.has_room(LINE_BYTES)
            && let Some(known) = Arc::make_mut(&mut self.codes).get_mut(&key)
        {
            known.lines.insert(line, id);
            self.bytes += LINE_BYTES;
            self.account();
        }
    }

    /// The location of a frame that gets its name later.
    pub(super) fn wait_for_name(&mut self, frame: PythonFrame, id: LocationId) {
        let key = (frame.code, frame.identity);
        self.waiting
            .entry(key)
            .or_default()
            .insert(frame.instruction, id);
        self.waiting_frames += 1;
        self.account();
    }

    /// The location of a frame that waits for its name already.
    pub(super) fn waiting_location(&self, frame: PythonFrame) -> Option<LocationId> {
        let waiting = self.waiting.get(&(frame.code, frame.identity))?;
        waiting.get(&frame.instruction).copied()
    }
}

/// How long samples wait for a process that took too long `delays` times in a row.
fn timeout_after(delays: u32) -> Duration {
    if delays >= DELAYS_MAX {
        return Duration::ZERO;
    }
    PATIENCE / (1 << delays)
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
    let read_one = |key: Key| {
        let (Avma(at), identity) = key;
        let read_in = |memory: Option<&Arc<Memory>>| match memory {
            Some(memory) => read_code(&**memory, &interpreter.code, at, identity),
            None => Err(CodeMiss::Gone),
        };
        let code = match read_in(memory.as_ref()) {
            Err(CodeMiss::Gone) => read_in(parents),
            read => read,
        };
        match code {
            Err(CodeMiss::Gone) if has_ended() => Err(CodeMiss::Ended),
            read => read,
        }
    };
    let worked = || thread_time().saturating_sub(begun);
    let mut bytes = 0;
    let mut codes = Vec::new();
    for &key in keys {
        let code = read_one(key);
        bytes += code.as_ref().map_or(0, Code::heap_bytes);
        codes.push((key, code));
        if bytes >= BYTES_AT_ONCE || worked() >= WORK_AT_ONCE {
            break;
        }
    }
    CodesRead {
        codes,
        cpu_time: worked(),
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
