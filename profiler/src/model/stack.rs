//! A stack on its way from addresses to names. Both structs are buffers: one of each is reused for all samples.

use super::{Avma, CodeAddress, ImageId, KtimeNs, LocationId, Pid, ThreadName, Tid};

/// How a walk over a stack ended. Expected, therefore data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// The outermost frame was reached: its unwind information says that it has no caller.
    Root,
    /// The return address was zero, as below a thread's first function.
    ZeroReturnAddress,
    /// A file without unwind information for this address.
    NoRule(Avma),
    /// Executable memory of no file that is not a known trampoline: another JIT compiler's code.
    UnknownJit(Avma),
    /// Memory that was not known when the sample was taken.
    NoMapping(Avma),
    /// A word of the stack could not be read (paged out, or no stack at all).
    ReadFault(Avma),
    /// The stack pointer would not have moved towards the stack's base.
    NotUp(Avma),
    /// More frames than one sample can hold.
    DepthLimit,
    /// The unwind information needs a register that cannot be known there.
    Unsupported(Avma),
    /// There were no user registers: a kernel thread or an exiting task.
    NoUserRegisters,
    /// All Python frames are there, but native ones are missing between and below them.
    NativePart,
    /// All native frames are there, but Python ones are missing.
    PythonPart(PythonEnd),
    /// Both are there, and which native frames are between which Python frames is not known: the Python frames stand in
    /// one block.
    NoFit,
}

/// How reading the interpreter's frames ended. Expected, therefore data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PythonEnd {
    /// They were not read: no interpreter is known in the process.
    #[default]
    NotRead,
    /// All are there.
    Whole,
    /// The thread has no thread state: it runs no Python.
    NoThreadState,
    /// The thread's state was not found among the first ones of a long list.
    NotFound,
    /// A frame, or its code object, could not be read.
    ReadFault,
    /// What a frame points at is no code object: the sample hit the interpreter between two stores.
    NotCode,
    /// More frames than one sample can hold.
    DepthLimit,
}

/// A frame of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UserFrame {
    /// Of compiled code.
    Native(CodeAddress),
    /// Of the interpreter.
    Python(PythonFrame),
}

/// A frame of the interpreter: what it executes, and where in that it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PythonFrame {
    /// Where its code object lies.
    pub code: Avma,
    /// What tells that from others which may lie there before or after it (`profiler_common::python::identity`).
    pub identity: u32,
    /// Its instruction, as the interpreter counts them; `None`: not known.
    pub instruction: Option<i32>,
}

impl StackEnd {
    /// The stack is whole: nothing is missing in it.
    pub const fn is_complete(self) -> bool {
        matches!(self, Self::Root | Self::ZeroReturnAddress)
    }
}

/// A stack as code addresses, kernel part apart. What `unwind` gives and `symbols` gets.
#[derive(Clone, Debug)]
pub struct UnwoundStack {
    /// When it was taken.
    pub ktime: KtimeNs,
    /// The process.
    pub pid: Pid,
    /// The program that it ran.
    pub image: ImageId,
    /// The thread.
    pub tid: Tid,
    /// The thread's name.
    pub thread_name: ThreadName,
    /// The CPU was in the kernel.
    pub in_kernel: bool,
    /// Callers of code without unwind information were guessed.
    pub guessed: bool,
    /// How the walk ended.
    pub end: StackEnd,
    /// User frames, innermost first: Python and native ones.
    pub user: Vec<UserFrame>,
    /// Trampolines that were left out of them, innermost first: the frames of the interpreter say the same.
    pub trampolines: Vec<CodeAddress>,
    /// Kernel frames, innermost first.
    pub kernel: Vec<CodeAddress>,
}

/// A stack as locations that have, or will have, names. What `symbols` gives and `profile` gets.
#[derive(Clone, Debug)]
pub struct ResolvedStack {
    /// When it was taken.
    pub ktime: KtimeNs,
    /// The process.
    pub pid: Pid,
    /// The program that it ran.
    pub image: ImageId,
    /// The thread.
    pub tid: Tid,
    /// The thread's name.
    pub thread_name: ThreadName,
    /// The CPU was in the kernel.
    pub in_kernel: bool,
    /// Callers of code without unwind information were guessed.
    pub guessed: bool,
    /// How the walk ended.
    pub end: StackEnd,
    /// All locations, kernel ones included, innermost first.
    pub locations: Vec<LocationId>,
}

impl UnwoundStack {
    /// An empty buffer.
    pub const fn empty() -> Self {
        Self {
            ktime: KtimeNs(0),
            pid: Pid(0),
            image: ImageId(0),
            tid: Tid(0),
            thread_name: ThreadName([0; 16]),
            in_kernel: false,
            guessed: false,
            end: StackEnd::NoUserRegisters,
            user: Vec::new(),
            trampolines: Vec::new(),
            kernel: Vec::new(),
        }
    }
}

impl ResolvedStack {
    /// An empty buffer.
    pub const fn empty() -> Self {
        Self {
            ktime: KtimeNs(0),
            pid: Pid(0),
            image: ImageId(0),
            tid: Tid(0),
            thread_name: ThreadName([0; 16]),
            in_kernel: false,
            guessed: false,
            end: StackEnd::NoUserRegisters,
            locations: Vec::new(),
        }
    }
}
