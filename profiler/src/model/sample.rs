//! A sample as the kernel took it: addresses without names.

use super::{Avma, KtimeNs, Pid, PythonEnd, StackEnd, ThreadName, Tid};

/// One sample, borrowed from the ring buffer.
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a flag of the record"
)]
#[derive(Clone, Debug)]
pub struct RawSample<'a> {
    /// When it was taken.
    pub ktime: KtimeNs,
    /// The process.
    pub pid: Pid,
    /// The thread.
    pub tid: Tid,
    /// The thread's name at that moment.
    pub thread_name: ThreadName,
    /// The CPU was in the kernel; the stack is that of the system call, fault or interrupt.
    pub in_kernel: bool,
    /// Callers of code without unwind information were guessed.
    pub guessed: bool,
    /// How the walk ended.
    pub end: StackEnd,
    /// How reading the interpreter's frames ended.
    pub python_end: PythonEnd,
    /// They have no marks of where they were called from C: there is one activation of the loop for each of them.
    pub python_is_counted: bool,
    /// The interpreter was about to enter a function, and its caller was found by address only
    /// (`profiler_common::sample::flags::PYTHON_UNCONFIRMED`).
    pub python_is_unconfirmed: bool,
    /// Native frames, innermost first (`profiler_common::sample::native`); the first one is the interrupted instruction.
    pub native: &'a [u64],
    /// Interpreter frames, innermost first (`profiler_common::python::entry`).
    pub python: &'a [u64],
    /// Kernel addresses, innermost first.
    pub kernel: &'a [u64],
    /// Where an unfinished walk can go on, and the stack it needs.
    pub unfinished: Option<StackCopy<&'a [u8]>>,
}

/// What user space needs to finish a walk that met code without rows.
#[derive(Clone, Copy, Debug)]
pub struct StackCopy<S> {
    /// Instruction pointer of the frame the walk stopped at.
    pub ip: Avma,
    /// Its stack pointer.
    pub sp: u64,
    /// Its frame pointer register.
    pub bp: u64,
    /// `rbx, r12, r13, r14, r15`: a value, or where it lies in the target's memory.
    pub saved: [SavedRegister; 5],
    /// That frame is the interrupted one.
    pub is_leaf: bool,
    /// Where `stack` begins: at `sp`, or a little below it.
    pub begin: u64,
    /// Bytes of the user stack.
    pub stack: S,
}

impl<S> StackCopy<S> {
    /// The same with its bytes held in another way.
    pub fn map_stack<T>(self, hold: impl FnOnce(S) -> T) -> StackCopy<T> {
        StackCopy {
            ip: self.ip,
            sp: self.sp,
            bp: self.bp,
            saved: self.saved,
            is_leaf: self.is_leaf,
            begin: self.begin,
            stack: hold(self.stack),
        }
    }
}

/// A callee-saved register of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SavedRegister {
    /// It holds this.
    Value(u64),
    /// It was saved at this address.
    At(u64),
    /// Its place could not be expressed by a rule.
    Unknown,
}
