//! Where an interpreter takes requests from outside: since 3.14 it can be asked to run a script (PEP 768).
//!
//! It says so itself, in the last block of `_Py_DebugOffsets` (Include/internal/pycore_debug_offsets.h, 3.14 and 3.15):
//! where a thread has the request, and where its interpreter has the switch that allows it.

use super::{
    ReadMemory,
    debug_offsets::{DebugOffsets, ImpossibleOffset, ROWS, Row},
};

/// Where one build has what a request takes, as offsets in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestSupport {
    /// `PyInterpreterState.config.remote_debug`, an `int`.
    pub enabled: u64,
    /// `PyInterpreterState.threads.main`, the state of the main thread.
    pub main_thread: u64,
    /// `PyThreadState.eval_breaker`, a word.
    pub breaker: u64,
    /// `PyThreadState.remote_debugger_support.debugger_pending_call`, an `int`.
    pub pending: u64,
    /// `PyThreadState.remote_debugger_support.debugger_script_path`.
    pub path: u64,
    /// Bytes of that.
    pub path_bytes: u64,
}

/// What the interpreter whose `_PyRuntime` is at `runtime` says of it; `None`: a version without, or one that is not
/// known.
pub fn request_support(
    memory: &dyn ReadMemory,
    runtime: u64,
) -> Option<Result<RequestSupport, ImpossibleOffset>> {
    let offsets = described(memory, runtime)?;
    let version = offsets.version().ok()?.to_be_bytes();
    let row = ROWS
        .iter()
        .find(|row| row.version == (version[0], version[1]))?;
    let (block, main_thread) = row.requests?;
    Some(offsets.request_support(row, block, main_thread))
}

/// The interpreter whose `_PyRuntime` is at `runtime` has no GIL, which only those since 3.13 can do without.
pub fn is_free_threaded(memory: &dyn ReadMemory, runtime: u64) -> bool {
    described(memory, runtime).is_some_and(|offsets| offsets.is_free_threaded())
}

fn described(memory: &dyn ReadMemory, runtime: u64) -> Option<DebugOffsets> {
    DebugOffsets::read(memory, runtime).filter(DebugOffsets::has_cookie)
}

impl DebugOffsets {
    fn request_support(
        &self,
        row: &Row,
        block: usize,
        main_thread: usize,
    ) -> Result<RequestSupport, ImpossibleOffset> {
        let [interpreter, thread] = self.state_bytes(row)?;
        let in_thread = |word, field, width| self.offset(block + word, field, thread, width);
        let support = in_thread(1, "remote_debugger_support", 8)?;
        let room = thread - support;
        let in_support = |word, field, width| self.offset(block + word, field, room, width);
        let path = in_support(4, "debugger_script_path", 1)?;
        Ok(RequestSupport {
            enabled: self.offset(block + 2, "remote_debug", interpreter, 4)?,
            main_thread: self.offset(main_thread, "threads.main", interpreter, 8)?,
            breaker: in_thread(0, "eval_breaker", 8)?,
            pending: support + in_support(3, "debugger_pending_call", 4)?,
            path: support + path,
            path_bytes: self.offset(block + 5, "debugger_script_path_size", room - path, 0)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{
        super::{
            debug_offsets::tests::{PYTHON_3_13, PYTHON_3_14, PYTHON_3_15},
            fake_process::{BYTES, FakeMemory, RUNTIME},
        },
        *,
    };

    fn memory(words: &[u64], changes: &[(usize, u64)]) -> FakeMemory {
        let memory = FakeMemory::new(vec![0; BYTES]);
        for (word, value) in words.iter().enumerate() {
            memory.put_word(RUNTIME + 8 * word as u64, *value);
        }
        for (word, value) in changes {
            memory.put_word(RUNTIME + 8 * *word as u64, *value);
        }
        memory
    }

    /// What Debian's 3.14.10 and 3.15.2 say.
    const SUPPORT_3_14: [(usize, u64); 6] =
        [(89, 24), (90, 304), (91, 8076), (92, 0), (93, 4), (94, 512)];
    const SUPPORT_3_15: [(usize, u64); 6] = [
        (105, 24),
        (106, 344),
        (107, 8028),
        (108, 0),
        (109, 4),
        (110, 512),
    ];

    #[test]
    fn versions_that_take_requests_say_where() {
        for (words, changes, support, enabled) in [
            (&PYTHON_3_14[..], SUPPORT_3_14, 304, 8076),
            (&PYTHON_3_15[..], SUPPORT_3_15, 344, 8028),
        ] {
            let memory = memory(words, &changes);
            let found = request_support(&memory, RUNTIME).expect("it takes some");
            let found = found.expect("all is possible");
            assert_eq!((found.breaker, found.enabled), (24, enabled));
            assert_eq!((found.pending, found.path), (support, support + 4));
            assert_eq!(found.path_bytes, 512);
            assert!(!is_free_threaded(&memory, RUNTIME));
        }
    }

    #[test]
    fn others_do_not() {
        assert_eq!(request_support(&memory(&PYTHON_3_13, &[]), RUNTIME), None);
        let unknown = memory(&PYTHON_3_14, &[(1, 0x0310_00f0)]);
        assert_eq!(request_support(&unknown, RUNTIME), None);
        let nothing = memory(&[], &[]);
        assert_eq!(request_support(&nothing, RUNTIME), None);
        assert!(!is_free_threaded(&nothing, RUNTIME));
        assert!(is_free_threaded(&memory(&PYTHON_3_14, &[(2, 1)]), RUNTIME));
    }

    #[test]
    fn places_outside_of_a_state_are_refused() {
        for (word, value) in [
            (10, u64::MAX),
            (89, 1 << 20),
            (90, u64::MAX - 3),
            (91, 1 << 40),
            (92, 1 << 20),
            (93, u64::MAX),
            (94, 1 << 20),
        ] {
            let mut changes = SUPPORT_3_14.to_vec();
            changes.push((word, value));
            let found = request_support(&memory(&PYTHON_3_14, &changes), RUNTIME);
            let found = found.expect("a version that takes some");
            assert!(found.is_err_and(|fault| fault.value == value), "{word}");
        }
    }
}
