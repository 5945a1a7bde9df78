//! One sample as it lies in the ring buffer.
//!
//! A record is a [`SampleHeader`], then `native_words` words (addresses, innermost first, see [`native`]), then
//! `python_words` words of interpreter frames ([`crate::python`]), then `kernel_words` addresses (innermost first),
//! then `stack_bytes` bytes of the user stack, which only an unfinished walk carries ([`flags::STACK_COPY`]).

use crate::python::PYTHON_WORDS_MAX;

/// Most native frames one sample can hold; deeper stacks end in [`StackEnd::DepthLimit`].
pub const NATIVE_FRAMES_MAX: usize = 1024;
/// Most words of native frames in one sample. Of [`NATIVE_FRAMES_MAX`] frames, every other one may execute the
/// interpreter's loop and have a second word ([`native::CFA`]).
pub const NATIVE_WORDS_MAX: usize = NATIVE_FRAMES_MAX + NATIVE_FRAMES_MAX / 2;
/// Native frames and interpreter frames together end at this word of a sample.
pub const USER_WORDS_MAX: usize = NATIVE_WORDS_MAX + PYTHON_WORDS_MAX;

/// Bits of a native word above its address.
pub mod native {
    /// The frame was interrupted there (the innermost one, and the one below a signal frame): the address is not that
    /// after a call.
    pub const INTERRUPTED: u64 = 1 << 63;
    /// No frame of its own: the CFA of the frame before, which executes the interpreter's loop.
    pub const CFA: u64 = 1 << 62;
    /// The code is one of CPython's trampolines, recognised by its bytes.
    pub const TRAMPOLINE: u64 = 1 << 61;
    /// What is left is the address.
    pub const ADDRESS: u64 = !(INTERRUPTED | CFA | TRAMPOLINE);
}

/// Most kernel frames one sample can hold (the kernel's own default limit, `kernel.perf_event_max_stack`).
pub const KERNEL_FRAMES_MAX: usize = 127;
/// Most bytes of user stack that an unfinished walk carries to user space.
pub const STACK_COPY_BYTES_MAX: usize = 16384;
/// Length of a thread name in the kernel (`TASK_COMM_LEN`, include/linux/sched.h).
pub const COMM_LEN: usize = 16;

/// Bytes below the stack pointer that a function may use (x86-64 psABI, 3.2.2).
const RED_ZONE_BYTES: u64 = 128;

/// Where a copy of the stack begins, for a frame with this stack pointer: with its red zone, as far as that lies on the
/// same page. The page below may not exist yet.
pub const fn stack_copy_begin(sp: u64) -> u64 {
    let sp = sp & !7;
    let on_page = sp & 4095;
    sp - if on_page < RED_ZONE_BYTES {
        on_page
    } else {
        RED_ZONE_BYTES
    }
}

/// What stands in front of every sample.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct SampleHeader {
    /// [`SAMPLE`](crate::record::kind::SAMPLE), first in every record.
    pub kind: u32,
    /// Process id (thread group), as seen from pyprof-bpf's own pid namespace.
    pub tgid: u32,
    /// `CLOCK_MONOTONIC` at the sample, in nanoseconds (`bpf_ktime_get_ns`).
    pub ktime_ns: u64,
    /// Thread id, in the same namespace.
    pub tid: u32,
    /// A [`crate::python::PythonEnd`] as number.
    pub python_end: u16,
    /// Zero.
    pub reserved: u16,
    /// The address of the frame at which the walk stopped.
    pub end_address: u64,
    /// Stack pointer of that frame, where a walk can go on; `stack_bytes` are from [`stack_copy_begin`] of it on.
    pub end_sp: u64,
    /// Frame pointer register (`rbp`) of that frame.
    pub end_bp: u64,
    /// `rbx, r12, r13, r14, r15` of that frame, valid only with [`flags::STACK_COPY`]: an address that holds the
    /// value when the bit in `end_saved_in_memory` is set, else the value.
    pub end_saved: [u64; 5],
    /// Bit n: `end_saved[n]` is an address.
    pub end_saved_in_memory: u16,
    /// Bit n: `end_saved[n]` is unknown.
    pub end_saved_lost: u16,
    /// Number of native words that follow the header.
    pub native_words: u16,
    /// Number of interpreter words that follow the native ones.
    pub python_words: u16,
    /// Number of kernel addresses that follow these.
    pub kernel_words: u16,
    /// Number of bytes of stack that follow these.
    pub stack_bytes: u16,
    /// Bits of [`flags`].
    pub flags: u16,
    /// A [`StackEnd`] as number.
    pub stack_end: u16,
    /// The thread's name, padded with zero bytes.
    pub comm: [u8; COMM_LEN],
}

/// Bits of [`SampleHeader::flags`].
pub mod flags {
    /// The CPU was in the kernel when the sample was taken; the user stack is that of the system call or fault.
    pub const KERNEL_MODE: u16 = 1;
    /// The caller of the innermost frame was found by a guess, not by unwind information.
    pub const GUESSED: u16 = 2;
    /// Bytes of the user stack follow: the walk met code that has no rows *yet*; user space finishes it.
    pub const STACK_COPY: u16 = 4;
    /// The frame at `end_address` is the interrupted one (look it up as it is, not one byte earlier).
    pub const END_IS_LEAF: u16 = 8;
    /// The interpreter frames have nothing that says where they were called from C: this version has one activation of
    /// its loop for each of them (up to 3.10).
    pub const PYTHON_COUNTED: u16 = 16;
    /// The sample hit 3.11 or 3.12 at the entry of its loop, where the newest `_PyCFrame` is empty. The interpreter frames
    /// are those of the activation of the loop that is next on the C stack, and nothing else confirms that it is the
    /// caller. With greenlets it may not be: a new greenlet has no caller, but its C stack begins on top of another one.
    pub const PYTHON_UNCONFIRMED: u16 = 32;
}

/// How a walk ended. Every value has a counter of its own.
#[repr(u16)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StackEnd {
    /// The outermost frame was reached: its return address is undefined by its unwind information.
    Root = 0,
    /// The return address was zero, as below a thread's first function.
    ZeroReturnAddress = 1,
    /// The code lies in a known file that has no unwind information for it.
    NoRule = 2,
    /// The code lies in executable memory of no file and is not a known trampoline.
    UnknownJit = 3,
    /// The code lies in memory that was not known (yet) when the sample was taken.
    NoMapping = 4,
    /// A word of the stack could not be read.
    ReadFault = 5,
    /// The stack pointer would not have moved towards the stack's base.
    NotUp = 6,
    /// More frames than [`NATIVE_FRAMES_MAX`].
    DepthLimit = 7,
    /// The unwind information names a register that cannot be known there.
    Unsupported = 8,
    /// The sample has no user registers (kernel thread, exiting task).
    NoUserRegisters = 9,
}

/// Number of [`StackEnd`] values.
pub const STACK_ENDS: usize = 10;

impl StackEnd {
    /// All values in order of their numbers.
    pub const ALL: [Self; STACK_ENDS] = [
        Self::Root,
        Self::ZeroReturnAddress,
        Self::NoRule,
        Self::UnknownJit,
        Self::NoMapping,
        Self::ReadFault,
        Self::NotUp,
        Self::DepthLimit,
        Self::Unsupported,
        Self::NoUserRegisters,
    ];
}

/// Size of [`SampleHeader`] in bytes.
pub const HEADER_BYTES: usize = size_of::<SampleHeader>();

const _: () = assert!(HEADER_BYTES == 120 && HEADER_BYTES.is_multiple_of(8));

#[cfg(test)]
mod tests {
    use super::stack_copy_begin;

    #[test]
    fn a_copy_has_the_red_zone_but_never_touches_the_page_below() {
        assert_eq!(stack_copy_begin(0x7000_0200), 0x7000_0180);
        assert_eq!(stack_copy_begin(0x7000_0207), 0x7000_0180);
        assert_eq!(stack_copy_begin(0x7000_0040), 0x7000_0000);
        assert_eq!(stack_copy_begin(0x7000_0000), 0x7000_0000);
    }
}
