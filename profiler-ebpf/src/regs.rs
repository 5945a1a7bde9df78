//! User registers at the sample, also when it hit the kernel.

use aya_ebpf::{
    bindings::{bpf_perf_event_data, pt_regs},
    helpers::{
        bpf_get_current_comm, bpf_ktime_get_ns, bpf_probe_read_kernel,
        generated::{bpf_get_current_task, bpf_get_current_task_btf, bpf_task_pt_regs},
    },
};
use profiler_common::{config::user_regs, record::kind, sample::flags};

use crate::{
    maps::{State, global},
    target::Target,
};

/// First address that is not user space's (4-level paging; with 5 levels Linux still hands out lower ones by default).
const USER_END: u64 = 1 << 47;

/// Begins a sample: header, and the registers from which the walk starts. False when there are no user registers.
///
/// A function of its own because of its stack: registers of the kernel's lie there, which no one needs after it. Kernels up
/// to 6.12 have 512 bytes for all that call one another.
#[inline(never)]
pub(crate) fn start(data: *const bpf_perf_event_data, state: *mut State, target: &Target) -> bool {
    // SAFETY: `state` is this CPU's map value; nothing else uses it during this run.
    let state = unsafe { &mut *state };
    let header = &mut state.header;
    // SAFETY: a helper without arguments.
    header.ktime_ns = unsafe { bpf_ktime_get_ns() };
    header.kind = kind::SAMPLE;
    header.tgid = target.tgid;
    header.tid = target.tid;
    header.end_address = 0;
    header.flags = 0;
    header.kernel_words = 0;
    header.python_words = 0;
    header.python_end = 0;
    header.stack_bytes = 0;
    header.comm = bpf_get_current_comm().unwrap_or_default();
    state.depth = 0;
    state.used = 0;
    state.leaf = 1;
    state.ucontext = 0;
    state.recent_count = 0;
    state.window_begin = 0;
    state.mapping_begin = u64::MAX;
    state.mapping_end = 0;
    state.mapping_index = 0;
    state.loops.count = 0;
    state.loops.interrupted = 0;
    state.loops.outer_cfa = 0;

    // SAFETY: the kernel passes a valid context; the verifier checks each field access.
    let cs = unsafe { (*data).regs.cs };
    if cs & 3 == 3 {
        // SAFETY: as above.
        copy(unsafe { &(*data).regs }, state);
        return usable(state);
    }
    header.flags = flags::KERNEL_MODE;
    if global!(USER_REGS) == user_regs::HELPER {
        // SAFETY: a helper without arguments; its result goes to the next one only.
        let task = unsafe { bpf_get_current_task_btf() };
        // SAFETY: `task` is the running task. The verifier knows the result as a pointer to `pt_regs`.
        let regs = unsafe { bpf_task_pt_regs(task) } as *const pt_regs;
        // SAFETY: loads through this pointer are checked by the kernel (a fault reads zero).
        let regs = unsafe { &*regs };
        if regs.cs & 3 != 3 {
            return false;
        }
        copy(regs, state);
    } else {
        // SAFETY: a helper without arguments.
        let task = unsafe { bpf_get_current_task() };
        let stack_field = task + u64::from(global!(TASK_STACK_OFFSET));
        // SAFETY: a checked read; a wrong offset gives an error or a value that fails the checks below.
        let Ok(stack) = (unsafe { bpf_probe_read_kernel(stack_field as *const u64) }) else {
            return false;
        };
        let saved = stack + u64::from(global!(TASK_REGS_OFFSET));
        if !copy_saved(saved, state) && !copy_saved(saved - FRED_PADDING, state) {
            return false;
        }
    }
    usable(state)
}

/// Takes over the registers saved at an address of the kernel, if they are those of 64-bit user code.
#[inline(always)]
fn copy_saved(saved: u64, state: &mut State) -> bool {
    // SAFETY: a checked read.
    let Ok(regs) = (unsafe { bpf_probe_read_kernel(saved as *const pt_regs) }) else {
        return false;
    };
    // With FRED, the upper bits say other things.
    let is_user = regs.cs & 0xffff == USER_CS;
    if is_user {
        copy(&regs, state);
    }
    is_user
}

/// `__USER_CS` (arch/x86/include/asm/segment.h).
const USER_CS: u64 = 0x33;
/// Kernels with `CONFIG_X86_FRED` leave so much room above the saved registers (`TOP_OF_KERNEL_STACK_PADDING`,
/// arch/x86/include/asm/thread_info.h, Linux 6.9+).
const FRED_PADDING: u64 = 16;

/// A user address, and not that of a 32-bit task's zero page.
#[inline(always)]
fn usable(state: &State) -> bool {
    state.ip != 0 && state.ip < USER_END && state.sp < USER_END
}

/// Takes over the registers, numbered as DWARF does (x86-64 psABI, figure 3.36).
#[inline(always)]
fn copy(regs: &pt_regs, state: &mut State) {
    state.ip = regs.rip;
    state.sp = regs.rsp;
    state.bp = regs.rbp;
    state.bp_in_memory = 0;
    state.leaf_registers = [
        regs.rax, regs.rdx, regs.rcx, regs.rbx, regs.rsi, regs.rdi, regs.rbp, regs.rsp, regs.r8,
        regs.r9, regs.r10, regs.r11, regs.r12, regs.r13, regs.r14, regs.r15,
    ];
}
