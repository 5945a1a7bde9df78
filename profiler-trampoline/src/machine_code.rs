//! The instructions of a trampoline: a call of its fourth argument with the first three, and a return.
//!
//! They are given as bytes, so that what is copied before each function is what is written here. Both set up a frame
//! pointer: a walk by frame pointers sees the function, and so does `pyprof-bpf`, which knows these bytes
//! (`profiler-common/src/trampoline.rs`). They are those of CPython 3.13.15 and later (Python/asm_trampoline_*.S).

/// Bytes from the start of one trampoline to the next.
pub(crate) const SPACING: usize = 32;

/// A call through a register may have to end at an `endbr64`, where the processor is told to enforce that.
#[cfg(target_arch = "x86_64")]
pub(crate) const TRAMPOLINE: &[u8] = &[
    0xf3, 0x0f, 0x1e, 0xfa, // endbr64
    0x55, // push %rbp
    0x48, 0x89, 0xe5, // mov %rsp,%rbp
    0xff, 0xd1, // call *%rcx
    0x5d, // pop %rbp
    0xc3, // ret
];

#[cfg(target_arch = "aarch64")]
pub(crate) const TRAMPOLINE: &[u8] = &[
    0x5f, 0x24, 0x03, 0xd5, // bti c
    0xfd, 0x7b, 0xbf, 0xa9, // stp x29, x30, [sp, #-16]!
    0xfd, 0x03, 0x00, 0x91, // mov x29, sp
    0x60, 0x00, 0x3f, 0xd6, // blr x3
    0xfd, 0x7b, 0xc1, 0xa8, // ldp x29, x30, [sp], #16
    0xc0, 0x03, 0x5f, 0xd6, // ret
];

/// On other processors there are none: activating says so.
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
pub(crate) const TRAMPOLINE: &[u8] = &[];

const _: () = assert!(TRAMPOLINE.len() <= SPACING);
