//! Code that no file describes: read its bytes and ask [`profiler_common::trampoline`].

use aya_ebpf::helpers::bpf_probe_read_user;
use profiler_common::{
    trampoline::{CALL_OFFSET, caller_rule, leaf_rule, sigreturn_rule},
    unwind_row::UnwindRule,
};

/// Eight bytes of the target's memory, 0 when they cannot be read.
#[inline(always)]
pub(crate) fn word(address: u64) -> u64 {
    // SAFETY: a checked read of user memory.
    unsafe { bpf_probe_read_user(address as *const u64) }.unwrap_or(0)
}

/// The rule for the code at `ip`, when it is a trampoline or a signal restorer.
#[inline(always)]
pub(crate) fn rule_at(ip: u64, leaf: bool) -> Option<UnwindRule> {
    if leaf {
        let at = word(ip);
        return leaf_rule(at, word(ip - 8)).or_else(|| sigreturn_rule(at));
    }
    caller_rule(word(ip - CALL_OFFSET)).or_else(|| sigreturn_rule(word(ip)))
}

/// The rule when the code at `ip` is a signal restorer without unwind information (musl).
#[inline(always)]
pub(crate) fn sigreturn_at(ip: u64) -> Option<UnwindRule> {
    sigreturn_rule(word(ip))
}
