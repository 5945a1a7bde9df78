//! The kernel side of pyprof-bpf: on each tick, is this task a target, and if so, what is its stack?
//!
//! ```text
//! sample ─► target (whose tick is it?) ─► regs (user registers) ─► walk (native frames, one by one)
//!             ─► python (the interpreter's frames, one by one) ─► emit (one ring record)
//! ```
//!
//! Beside it, `follow` keeps up with processes: children of targets, programs that replace others, ends.
#![no_std]
#![no_main]
#![feature(asm_experimental_arch)]
#![expect(
    clippy::inline_always,
    reason = "a call is a second program for the verifier"
)]

mod emit;
mod follow;
mod guess;
mod maps;
mod python;
mod regs;
mod target;
mod trampoline;
mod walk;

use aya_ebpf::{
    bindings::bpf_perf_event_data,
    macros::{perf_event, raw_tracepoint},
    programs::{PerfEventContext, RawTracePointContext},
};
use profiler_common::sample::StackEnd;

/// One tick of the sampling event on one CPU.
///
/// Returns 0, which tells the kernel not to write a perf record of its own (`bpf_overflow_handler`,
/// kernel/events/core.c).
#[perf_event]
fn sample(context: PerfEventContext) -> u32 {
    let Some(target) = target::current() else {
        return 0;
    };
    let Some(state) = maps::state() else {
        return 0;
    };
    let data: *const bpf_perf_event_data = context.ctx;
    let has_registers = regs::start(data, state, &target);
    if has_registers {
        walk::run(state, target.tables.slot());
    } else {
        walk::end(state, StackEnd::NoUserRegisters);
    }
    python::read_python(target.tables.layout(), target.tgid);
    emit::submit(&context, state);
    0
}

/// `sched_process_fork(parent, child)`: a task was made, and has not run yet (`kernel_clone`, kernel/fork.c).
#[raw_tracepoint(tracepoint = "sched_process_fork")]
fn process_fork(context: RawTracePointContext) -> i32 {
    follow::forked(context.arg(1));
    0
}

/// `sched_process_exec(task, pid, binprm)`: the current process has its new program (`exec_binprm`, fs/exec.c).
#[raw_tracepoint(tracepoint = "sched_process_exec")]
fn process_exec(context: RawTracePointContext) -> i32 {
    follow::executed(context.arg(2));
    0
}

/// `sched_process_exit(task, …)`: the current task ends, its pid is not free yet (`do_exit`, kernel/exit.c).
#[raw_tracepoint(tracepoint = "sched_process_exit")]
fn process_exit(context: RawTracePointContext) -> i32 {
    follow::exited(context.arg(0));
    0
}

#[panic_handler]
fn panic(_info: &core::panic::PanicInfo<'_>) -> ! {
    // Never reached: the verifier refuses programs that could get here.
    loop {}
}

#[unsafe(no_mangle)]
#[unsafe(link_section = "license")]
static LICENSE: [u8; 13] = *b"Dual MIT/GPL\0";
