//! One step of the unwind, and the loop over it.
//!
//! The step is a global function: the verifier checks it once, alone, and a call costs the loop a few instructions. An
//! inlined step makes a loop of 1024 rounds too complex for every kernel. Searches are free of branches (sums of
//! sign bits), so that the verifier sees a straight line instead of all ways through it.

use core::arch::asm;

use aya_ebpf::helpers::{bpf_probe_read_user, generated};
use profiler_common::{
    counters,
    sample::{NATIVE_FRAMES_MAX, NATIVE_WORDS_MAX, StackEnd, flags, native},
    unwind_row::{
        CHUNK_ROWS, MAPPINGS_MAX, PAGE_BYTES, PAGE_SHIFT, ProcessMappings, RULE_BITS, RULE_NONE,
        SAVED_UNKNOWN, UnwindRule, bp, cfa, mapping_kind, rule_flags,
    },
};

use crate::{
    guess::{by_frame_pointer, guess_by_kept_stack_pointer, guess_caller},
    maps::{
        self, PAGES, PROCESS_MAPPINGS, RECENT_FRAMES, ROWS, RULES, Recent, State, WINDOW_WORDS,
    },
    trampoline,
};

/// Rows of a page that the first part of the search halves down to one: most pages have no more.
const SHORT_SEARCH: u32 = 7;
/// Steps that the longest page needs after that.
const LONG_SEARCH: u32 = 5;

/// Bytes from a `ucontext` to each register, by DWARF number (`struct sigcontext_64`,
/// arch/x86/include/uapi/asm/sigcontext.h, 40 bytes into `struct ucontext`).
static UCONTEXT_REGISTERS: [u64; 16] = [
    144, 136, 152, 128, 112, 104, 120, 160, 40, 48, 56, 64, 72, 80, 88, 96,
];
/// Bit n: DWARF register n is callee-saved and kept track of (`rbx`, `r12`–`r15`).
const CALLEE_SAVED: u32 = 0xf008;
const UCONTEXT_RBP: u64 = 120;
const UCONTEXT_RSP: u64 = 160;
const UCONTEXT_RIP: u64 = 168;

/// Walks until an end is reached.
#[inline(always)]
pub(crate) fn run(state: *mut State, slot: u32) {
    for _ in 0..=NATIVE_FRAMES_MAX {
        if unwind_step(slot) == 0 {
            break;
        }
    }
    // SAFETY: `state` is this CPU's map value.
    maps::add(counters::FRAMES, unsafe { (*state).depth });
}

/// Notes how the walk ended.
#[inline(always)]
pub(crate) fn end(state: *mut State, reason: StackEnd) -> u32 {
    // SAFETY: `state` is this CPU's map value.
    let state = unsafe { &mut *state };
    state.header.stack_end = reason as u16;
    state.header.end_address = state.ip;
    state.header.end_sp = state.sp;
    if state.leaf != 0 {
        state.header.flags |= flags::END_IS_LEAF;
    }
    0
}

/// One frame: records `ip` and moves to the caller. Returns 0 at the end of the walk.
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn unwind_step(slot: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return 0;
    };
    // SAFETY: this CPU's map value, used by nothing else during this run.
    let state = unsafe { &mut *pointer };
    // Volatile: otherwise LLVM moves the address computation before the bounds check, which the verifier refuses.
    // SAFETY: a field of the map value.
    let depth = unsafe { core::ptr::read_volatile(&raw const state.depth) };
    if depth >= NATIVE_FRAMES_MAX as u64 || !push(state, state.ip | (state.leaf << 63)) {
        return end(pointer, StackEnd::DepthLimit);
    }
    let leaf = state.leaf != 0;
    state.depth = depth + 1;

    let at = state.ip - u64::from(!leaf);
    let Some(mappings) = PROCESS_MAPPINGS.get(slot) else {
        return end(pointer, StackEnd::NoMapping);
    };
    let rule = match remembered(at, leaf, mappings) {
        Some(rule) => rule,
        None => match find(pointer, mappings, at, slot) {
            Ok(rule) => {
                // What is not in the list may be another thing in the next process that shares it.
                if !leaf && state.mapping_end != 0 {
                    remember(at, mappings, rule);
                }
                rule
            }
            Err(goes_on) => return goes_on,
        },
    };
    apply(pointer, rule)
}

/// Adds a word of a native frame. False: there is no room.
#[inline(always)]
fn push(state: &mut State, word: u64) -> bool {
    // SAFETY: a field of the map value; volatile as above.
    let used = unsafe { core::ptr::read_volatile(&raw const state.used) };
    if used >= NATIVE_WORDS_MAX as u64 {
        return false;
    }
    state.words[used as usize] = word;
    state.used = used + 1;
    true
}

/// A rule as its two words, lowest byte first: `cfa, bp, reg, saved…` and `cfa_off, bp_off, flags`. See [`UnwindRule`].
#[derive(Clone, Copy)]
struct Rule {
    kinds: u64,
    offsets: u64,
}

impl Rule {
    #[inline(always)]
    fn of(rule: &UnwindRule) -> Self {
        let words = core::ptr::from_ref(rule).cast::<u64>();
        // SAFETY: a rule is two aligned words. Volatile keeps each a single load.
        let kinds = unsafe { words.read_volatile() };
        // SAFETY: as above.
        let offsets = unsafe { words.add(1).read_volatile() };
        Self { kinds, offsets }
    }

    #[inline(always)]
    fn cfa(self) -> u8 {
        self.kinds as u8
    }

    #[inline(always)]
    fn bp(self) -> u8 {
        (self.kinds >> 8) as u8
    }

    #[inline(always)]
    fn register(self) -> u32 {
        u32::from((self.kinds >> 16) as u8)
    }

    /// The low half is `cfa_off`.
    #[inline(always)]
    fn cfa_offset(self) -> i64 {
        i64::from(self.offsets as i32)
    }

    #[inline(always)]
    fn bp_offset(self) -> i64 {
        i64::from((self.offsets >> 32) as i16)
    }

    #[inline(always)]
    fn flags(self) -> u16 {
        (self.offsets >> 48) as u16
    }
}

/// The rule found for this address lately. Interrupted addresses are all different: only return addresses are
/// remembered.
#[inline(always)]
fn remembered(at: u64, leaf: bool, mappings: &ProcessMappings) -> Option<Rule> {
    if leaf {
        return None;
    }
    // SAFETY: this CPU's map value.
    let cached = unsafe { &*maps::cached_rule(at)? };
    (cached.at == at && cached.generation == u64::from(mappings.generation))
        .then(|| Rule::of(&cached.rule))
}

/// Remembers the rule of a return address. A trampoline may be: CPython never writes anything else over one, and a new
/// arena is a new mapping, with which another generation begins.
#[inline(always)]
fn remember(at: u64, mappings: &ProcessMappings, rule: Rule) {
    if let Some(cached) = maps::cached_rule(at) {
        // SAFETY: this CPU's map value.
        let cached = unsafe { &mut *cached };
        cached.at = at;
        cached.generation = u64::from(mappings.generation);
        let words = (&raw mut cached.rule).cast::<u64>();
        // SAFETY: a rule is two aligned words.
        unsafe { words.write_volatile(rule.kinds) };
        // SAFETY: as above.
        unsafe { words.add(1).write_volatile(rule.offsets) };
    }
}

/// Finds the rule for a frame's code. `Err`: the step is done already, with this result.
#[inline(always)]
fn find(pointer: *mut State, mappings: &ProcessMappings, at: u64, slot: u32) -> Result<Rule, u32> {
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let leaf = state.leaf != 0;
    if at.wrapping_sub(state.mapping_begin) >= state.mapping_end.wrapping_sub(state.mapping_begin) {
        state.mapping_index = find_mapping(mappings, at);
    }
    let entry = &mappings.entries[state.mapping_index as usize & (MAPPINGS_MAX - 1)];
    if at < entry.begin || at >= entry.end {
        state.mapping_begin = u64::MAX;
        state.mapping_end = 0;
        return match trampoline::rule_at(state.ip, leaf) {
            Some(rule) => Ok(Rule::of(&rule)),
            None => Err(copy_later(pointer, StackEnd::NoMapping)),
        };
    }
    state.mapping_begin = entry.begin;
    state.mapping_end = entry.end;
    let mut reason = StackEnd::NoRule;
    if entry.kind == mapping_kind::ROWS {
        let vaddr = at - entry.bias;
        let page = (vaddr >> PAGE_SHIFT).wrapping_sub(u64::from(entry.page0));
        if page < u64::from(entry.page_count) {
            let offset = (vaddr & (PAGE_BYTES - 1)) as u32;
            let index = find_rule(entry.page_base + page as u32, offset);
            if index != RULE_NONE
                && let Some(rule) = RULES.get(index)
            {
                return Ok(Rule::of(rule));
            }
        }
    } else if entry.kind == mapping_kind::ANONYMOUS {
        if let Some(rule) = trampoline::rule_at(state.ip, leaf) {
            return Ok(Rule::of(&rule));
        }
        if by_frame_pointer(slot) != 0 {
            return Err(1);
        }
        reason = StackEnd::UnknownJit;
    } else if entry.kind == mapping_kind::PENDING {
        return Err(copy_later(pointer, StackEnd::NoMapping));
    }
    if let Some(rule) = trampoline::sigreturn_at(state.ip) {
        return Ok(Rule::of(&rule));
    }
    if leaf && (guess_by_kept_stack_pointer(slot) != 0 || guess_caller(slot) != 0) {
        return Err(1);
    }
    if reason as u16 == StackEnd::NoRule as u16 && by_frame_pointer(slot) != 0 {
        return Err(1);
    }
    Err(end(pointer, reason))
}

/// Ends the walk here and asks `emit` to send the stack along, so that user space can finish it.
#[inline(always)]
fn copy_later(state: *mut State, reason: StackEnd) -> u32 {
    end(state, reason);
    // SAFETY: `state` is this CPU's map value.
    unsafe { (*state).header.flags |= flags::STACK_COPY };
    0
}

/// 1 when `a >= b`, else 0. Both must be below 2^63.
///
/// LLVM would turn a bit that it recognises as a comparison into a branch, and the verifier would then follow every
/// way through a search: the shift written out hides where the bit comes from. It is a logical one, since newer
/// verifiers follow both values of an arithmetic one (`maybe_fork_scalars`, kernel/bpf/verifier.c).
#[inline(always)]
fn at_least(a: u64, b: u64) -> u64 {
    let mut below = a.wrapping_sub(b);
    // SAFETY: a shift of one register.
    unsafe { asm!("{0} >>= 63", inout(reg) below, options(pure, nomem, nostack)) };
    below ^ 1
}

/// Index of the last mapping that begins at or before `at`, or 0.
#[inline(always)]
pub(crate) fn find_mapping(mappings: &ProcessMappings, at: u64) -> u64 {
    let mut base = 0u64;
    let mut half = MAPPINGS_MAX as u64 / 2;
    while half > 0 {
        let begin = mappings.entries[(base + half) as usize & (MAPPINGS_MAX - 1)].begin;
        base += half * at_least(at, begin);
        half /= 2;
    }
    base
}

/// One halving of a page's rows.
#[inline(always)]
fn halve(rows: &[u32; CHUNK_ROWS], base: &mut u32, length: &mut u32, key: u64) {
    let half = *length / 2;
    let row = rows[(*base + half) as usize & (CHUNK_ROWS - 1)];
    *base += half * at_least(key, u64::from(row)) as u32;
    *length -= half;
}

/// The rule in force at an offset in a page.
#[inline(always)]
fn find_rule(page: u32, offset: u32) -> u32 {
    let Some(page) = PAGES.get(page) else {
        return RULE_NONE;
    };
    if page.count == 0 {
        return RULE_NONE;
    }
    let Some(rows) = ROWS.get(u32::from(page.chunk)) else {
        return RULE_NONE;
    };
    // The largest row with this offset or a smaller one.
    let key = u64::from((offset << RULE_BITS) | ((1 << RULE_BITS) - 1));
    let mut base = u32::from(page.first);
    let mut length = u32::from(page.count);
    for _ in 0..SHORT_SEARCH {
        halve(rows, &mut base, &mut length, key);
    }
    if length > 1 {
        for _ in 0..LONG_SEARCH {
            halve(rows, &mut base, &mut length, key);
        }
    }
    rows[base as usize & (CHUNK_ROWS - 1)] & ((1 << RULE_BITS) - 1)
}

/// Reads a word of the user stack.
#[inline(always)]
pub(crate) fn read(address: u64) -> Result<u64, i32> {
    // SAFETY: a checked read of user memory.
    unsafe { bpf_probe_read_user(address as *const u64) }
}

/// Two words of the user stack. Reading costs about as much as the rest of a frame, however little is read: so more is
/// read than asked for, and the next frames find theirs there.
#[inline(always)]
pub(crate) fn pair(state: &mut State, address: u64) -> Result<[u64; 2], i32> {
    let offset = address.wrapping_sub(state.window_begin);
    if offset < 8 * (WINDOW_WORDS as u64 - 1) {
        let index = (offset / 8) as usize & (WINDOW_WORDS - 1);
        let next = (index + 1) & (WINDOW_WORDS - 1);
        return Ok([state.window[index], state.window[next]]);
    }
    let bytes = 8 * WINDOW_WORDS as u32;
    let window = (&raw mut state.window).cast();
    // SAFETY: a checked read of user memory into a buffer of that size.
    if unsafe { generated::bpf_probe_read_user(window, bytes, address as *const _) } == 0 {
        state.window_begin = address;
        return Ok([state.window[0], state.window[1]]);
    }
    // The stack ends soon.
    state.window_begin = 0;
    // SAFETY: a checked read of user memory.
    unsafe { bpf_probe_read_user(address as *const [u64; 2]) }
}

/// Applies a rule: moves to the caller. Returns 0 at the end of the walk.
#[inline(always)]
fn apply(pointer: *mut State, rule: Rule) -> u32 {
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let offset = rule.cfa_offset();
    let new = match rule.cfa() {
        cfa::RSP => state.sp.wrapping_add_signed(offset),
        cfa::RBP => match frame_pointer(state) {
            Ok(value) => value.wrapping_add_signed(offset),
            Err(_) => return end(pointer, StackEnd::ReadFault),
        },
        cfa::END => return end(pointer, StackEnd::Root),
        cfa::PLT => {
            let pushed = u64::from((state.ip & 15) >= offset as u64);
            state.sp + 8 + 8 * pushed
        }
        cfa::SIGNAL => return signal(pointer, rule),
        cfa::DEREF_RSP | cfa::DEREF_RBP => match dereferenced(state, rule) {
            Ok(value) => value,
            Err(_) => return end(pointer, StackEnd::ReadFault),
        },
        cfa::REG => match register(state, rule.register()) {
            Ok(value) => value.wrapping_add_signed(offset),
            Err(reason) => return end(pointer, reason),
        },
        _ => return end(pointer, StackEnd::Unsupported),
    };
    if new <= state.sp || new & 7 != 0 {
        return end(pointer, StackEnd::NotUp);
    }
    if rule.flags() != 0 {
        say_what_it_is(state, rule.flags(), new);
    }
    // The two words below the CFA: the return address, and where `rbp` lies when it was pushed first.
    let Ok([below, caller]) = pair(state, new.wrapping_sub(16)) else {
        return end(pointer, StackEnd::ReadFault);
    };
    if rule.bp() == bp::AT_CFA {
        let pushed_first = rule.bp_offset() == -16;
        state.bp = if pushed_first {
            below
        } else {
            new.wrapping_add_signed(rule.bp_offset())
        };
        state.bp_in_memory = u64::from(!pushed_first);
    } else if rule.bp() == bp::AT_RBP {
        let Ok(value) = frame_pointer(state) else {
            return end(pointer, StackEnd::ReadFault);
        };
        state.bp = value.wrapping_add_signed(rule.bp_offset());
        state.bp_in_memory = 1;
    }
    note(state, rule.kinds, new);
    state.sp = new;
    state.ip = caller;
    state.leaf = 0;
    if caller == 0 {
        return end(pointer, StackEnd::ZeroReturnAddress);
    }
    1
}

/// Tells user space of the frame just recorded what it is: it belongs to the interpreter.
#[inline(always)]
fn say_what_it_is(state: &mut State, flags: u16, cfa: u64) {
    if flags & rule_flags::EVALUATION_LOOP != 0 {
        // Without room for it, the walk ends at the next frame.
        push(state, native::CFA | cfa & native::ADDRESS);
        note_loop(state, cfa);
        return;
    }
    // SAFETY: a field of the map value; volatile as above.
    let used = unsafe { core::ptr::read_volatile(&raw const state.used) };
    let last = used.wrapping_sub(1);
    if last < NATIVE_WORDS_MAX as u64 {
        state.words[last as usize] |= native::TRAMPOLINE;
    }
}

/// Keeps what `python` needs of the innermost activations of the loop.
#[inline(always)]
fn note_loop(state: &mut State, cfa: u64) {
    if state.loops.count == 0 {
        state.loops.interrupted = state.leaf;
        state.loops.sp = state.sp;
        state.loops.cfa = cfa;
    } else if state.loops.count == 1 {
        state.loops.outer_sp = state.sp;
        state.loops.outer_cfa = cfa;
    }
    state.loops.count += 1;
}

/// The CFA of a [`cfa::DEREF_RSP`] or [`cfa::DEREF_RBP`] rule.
#[inline(always)]
fn dereferenced(state: &State, rule: Rule) -> Result<u64, i32> {
    let offsets = rule.cfa_offset();
    let base = if rule.cfa() == cfa::DEREF_RSP {
        state.sp
    } else {
        frame_pointer(state)?
    };
    let value = read(base.wrapping_add_signed(i64::from(offsets as i16)))?;
    Ok(value.wrapping_add_signed(offsets >> 16))
}

/// Notes what a frame saved.
#[inline(always)]
pub(crate) fn note(state: &mut State, rule: u64, cfa: u64) {
    let count = state.recent_count;
    state.recent[count as usize & (RECENT_FRAMES - 1)] = Recent { rule, cfa };
    state.recent_count = count + 1;
}

/// The value of `rbp` in this frame.
#[inline(always)]
pub(crate) fn frame_pointer(state: &State) -> Result<u64, i32> {
    if state.bp_in_memory == 0 {
        Ok(state.bp)
    } else {
        read(state.bp)
    }
}

/// The value of a register, by DWARF number: callee-saved ones in any frame, the others in an interrupted one.
#[inline(always)]
fn register(state: &State, number: u32) -> Result<u64, StackEnd> {
    if CALLEE_SAVED >> (number & 15) & 1 == 0 {
        if state.leaf == 0 {
            return Err(StackEnd::Unsupported);
        }
        let index = (number & 15) as usize;
        if state.ucontext == 0 {
            return Ok(state.leaf_registers[index]);
        }
        return read(state.ucontext + ucontext_offset(index)).map_err(|_| StackEnd::ReadFault);
    }
    match find_saved(number) {
        IN_REGISTER => Ok(state.found),
        IN_MEMORY => read(state.found).map_err(|_| StackEnd::ReadFault),
        _ => Err(StackEnd::Unsupported),
    }
}

/// [`find_saved`]: the value itself was found.
pub(crate) const IN_REGISTER: u32 = 0;
/// [`find_saved`]: the address of the value was found.
pub(crate) const IN_MEMORY: u32 = 1;
/// [`find_saved`]: nobody knows where it is.
const LOST: u32 = 2;

/// Finds where the current frame's value of a callee-saved register is, by looking back over the frames below: the
/// last one that saved it says where. Leaves a value or an address in [`State::found`].
#[unsafe(no_mangle)]
#[inline(never)]
pub(crate) extern "C" fn find_saved(number: u32) -> u32 {
    let Some(pointer) = maps::state() else {
        return LOST;
    };
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let index = (number & 15) as usize;
    // 3, 12, 13, 14, 15 stand at 0, 1, 2, 3, 4.
    let shift = 24 + 8 * (number.wrapping_sub(11) & 7);
    let count = state.recent_count;
    for back in 1..=RECENT_FRAMES as u64 {
        if back > count {
            state.found = state.leaf_registers[index];
            return IN_REGISTER;
        }
        let recent = state.recent[(count - back) as usize & (RECENT_FRAMES - 1)];
        if recent.rule as u8 == cfa::SIGNAL {
            state.found = recent.cfa + ucontext_offset(index);
            return IN_MEMORY;
        }
        let words = (recent.rule >> (shift & 63)) as u8;
        if words == SAVED_UNKNOWN {
            return LOST;
        }
        if words != 0 {
            state.found = recent.cfa.wrapping_sub(8 * u64::from(words));
            return IN_MEMORY;
        }
    }
    LOST
}

/// Where in a `ucontext` a register lies.
#[inline(always)]
fn ucontext_offset(index: usize) -> u64 {
    // SAFETY: an element of a constant table; volatile keeps it in `.rodata` instead of a chain of branches.
    unsafe { core::ptr::read_volatile(&raw const UCONTEXT_REGISTERS[index & 15]) }
}

/// A signal frame: the interrupted registers lie in the `ucontext` at the stack pointer. The stack may be another one
/// (`sigaltstack`), so its address may go down here.
#[inline(always)]
fn signal(pointer: *mut State, rule: Rule) -> u32 {
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    let context = state.sp;
    let (Ok(sp), Ok(ip)) = (read(context + UCONTEXT_RSP), read(context + UCONTEXT_RIP)) else {
        return end(pointer, StackEnd::ReadFault);
    };
    note(state, rule.kinds, context);
    state.bp = context + UCONTEXT_RBP;
    state.bp_in_memory = 1;
    state.sp = sp;
    state.ip = ip;
    state.leaf = 1;
    state.ucontext = context;
    if ip == 0 {
        return end(pointer, StackEnd::ZeroReturnAddress);
    }
    1
}
