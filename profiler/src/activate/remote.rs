//! CPython 3.14 and later run a script that they are asked to from outside: PEP 768, as `sys.remote_exec` does it.
//!
//! A client of our own needs no Python of the same version on this side. Into the state of the main thread go the path of
//! the script and a flag, and `eval_breaker` says that there is something to look at; the thread looks at it between two
//! instructions (`_PyRunRemoteDebugger`, Python/ceval_gil.c, 3.14). Where these are, the interpreter says itself.

use super::memory::WriteMemory;
use crate::process::interpreter::RequestSupport;

/// What `eval_breaker` gets, in its lowest byte: `_PY_EVAL_PLEASE_STOP_BIT`, as the protocol has it, and with it
/// `_PY_SIGNALS_PENDING_BIT`, `_PY_CALLS_TO_DO_BIT` and `_PY_ASYNC_EXCEPTION_BIT` (Include/internal/pycore_ceval.h, 3.13 to
/// 3.15).
///
/// The process may change the byte between our look at it and our store, and what it sets then is lost. Of these that
/// would matter, and it does no harm to set them for nothing: each is cleared by the thread, which then finds nothing
/// (`_Py_HandlePending`). The others are set again by whoever waits. The bytes above are the version of `sys.monitoring`,
/// and are not written.
const LOOK: u8 = 1 << 5 | 1 << 1 | 1 << 2 | 1 << 3;

/// Why a request was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NotAsked {
    /// It is switched off in the process.
    Disabled,
    /// Another tool has asked for something, and the process has not done it yet.
    Occupied,
    /// The memory is not what it should be, or the path too long.
    Implausible,
}

/// One thread that can be asked.
#[derive(Debug)]
pub(super) struct Remote<'m> {
    memory: &'m dyn WriteMemory,
    thread: u64,
    support: RequestSupport,
}

impl<'m> Remote<'m> {
    /// The state of the interpreter's main thread is at `thread`.
    pub(super) fn of(
        memory: &'m dyn WriteMemory,
        interpreter: u64,
        thread: u64,
        support: RequestSupport,
    ) -> Result<Self, NotAsked> {
        let remote = Self {
            memory,
            thread,
            support,
        };
        match remote.u32(interpreter.wrapping_add(support.enabled)) {
            Some(1) => {}
            Some(0) => return Err(NotAsked::Disabled),
            _ => return Err(NotAsked::Implausible),
        }
        match remote.u32(remote.at(support.pending)) {
            Some(0) => Ok(remote),
            Some(1) => Err(NotAsked::Occupied),
            _ => Err(NotAsked::Implausible),
        }
    }

    /// Asks for the script at that path, as the process calls it.
    pub(super) fn ask(&self, path: &str) -> Result<(), NotAsked> {
        let mut text = path.as_bytes().to_vec();
        text.push(0);
        if text.len() as u64 > self.support.path_bytes {
            return Err(NotAsked::Implausible);
        }
        let asked = self.memory.write(self.at(self.support.path), &text)
            && self.memory.write_u32(self.at(self.support.pending), 1);
        if !asked {
            return Err(NotAsked::Implausible);
        }
        self.remind();
        Ok(())
    }

    /// The thread has not taken the request yet.
    pub(super) fn is_waiting(&self) -> bool {
        self.u32(self.at(self.support.pending)) == Some(1)
    }

    /// Has the thread look once more: it stops looking when something else, a signal's handler, raises.
    pub(super) fn remind(&self) {
        let at = self.at(self.support.breaker);
        let mut flags = [0];
        if self.memory.read(at, &mut flags) {
            self.memory.write(at, &[flags[0] | LOOK]);
        }
    }

    /// Takes the request back. A thread that is taking it right now finds no path, which it says nothing of.
    pub(super) fn withdraw(&self) {
        self.memory.write(self.at(self.support.path), &[0]);
        self.memory.write_u32(self.at(self.support.pending), 0);
    }

    fn at(&self, offset: u64) -> u64 {
        self.thread.wrapping_add(offset)
    }

    fn u32(&self, at: u64) -> Option<u32> {
        let mut bytes = [0; 4];
        self.memory
            .read(at, &mut bytes)
            .then_some(u32::from_le_bytes(bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::activate::memory::testing::MadeUp;

    const INTERPRETER: u64 = 0x1000;
    const THREAD: u64 = 0x3000;
    const SUPPORT: RequestSupport = RequestSupport {
        main_thread: 0x700,
        breaker: 24,
        enabled: 0x800,
        pending: 304,
        path: 308,
        path_bytes: 512,
    };

    fn memory(enabled: u32, pending: u32) -> MadeUp {
        let memory = MadeUp::new(INTERPRETER, 0x3000);
        memory.put(INTERPRETER + SUPPORT.enabled, &enabled.to_le_bytes());
        memory.put(THREAD + SUPPORT.pending, &pending.to_le_bytes());
        memory
    }

    fn bytes<const N: usize>(memory: &MadeUp, offset: u64) -> [u8; N] {
        use crate::process::interpreter::ReadMemory as _;
        let mut bytes = [0; N];
        assert!(memory.read(THREAD + offset, &mut bytes));
        bytes
    }

    #[test]
    fn a_request_is_path_flag_and_breaker_and_can_be_taken_back() {
        let memory = memory(1, 0);
        memory.put(THREAD + SUPPORT.breaker, &[1, 2, 3, 4, 5, 6, 7, 8]);
        let remote = Remote::of(&memory, INTERPRETER, THREAD, SUPPORT).expect("free");
        assert!(!remote.is_waiting());
        remote.ask("/tmp/x").expect("room");
        assert!(remote.is_waiting());
        assert_eq!(&bytes::<7>(&memory, SUPPORT.path), b"/tmp/x\0");
        assert_eq!(bytes(&memory, SUPPORT.pending), [1, 0, 0, 0]);
        assert_eq!(
            bytes(&memory, SUPPORT.breaker),
            [1 | LOOK, 2, 3, 4, 5, 6, 7, 8]
        );
        remote.withdraw();
        assert_eq!(bytes(&memory, SUPPORT.path), [0]);
        assert!(!remote.is_waiting());
        let long = "x".repeat(512);
        assert_eq!(remote.ask(&long), Err(NotAsked::Implausible));
        assert!(!remote.is_waiting());
    }

    #[test]
    fn whoever_does_not_listen_is_not_asked() {
        for (enabled, pending, why) in [
            (0, 0, NotAsked::Disabled),
            (7, 0, NotAsked::Implausible),
            (1, 1, NotAsked::Occupied),
            (1, 99, NotAsked::Implausible),
        ] {
            let memory = memory(enabled, pending);
            let refused = Remote::of(&memory, INTERPRETER, THREAD, SUPPORT).err();
            assert_eq!(refused, Some(why), "{enabled} {pending}");
        }
        let nowhere = memory(1, 0);
        let refused = Remote::of(&nowhere, INTERPRETER, 0x9000, SUPPORT).err();
        assert_eq!(refused, Some(NotAsked::Implausible));
    }
}
