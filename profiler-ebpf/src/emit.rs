//! Fill the rest of a sample and send it; count what is lost.

use aya_ebpf::{
    EbpfContext as _,
    helpers::generated::{
        bpf_get_stack, bpf_probe_read_user, bpf_ringbuf_output, bpf_ringbuf_query,
    },
    programs::PerfEventContext,
};
use aya_log_ebpf::info;
use profiler_common::{
    counters,
    sample::{
        HEADER_BYTES, KERNEL_FRAMES_MAX, STACK_COPY_BYTES_MAX, USER_WORDS_MAX, flags,
        stack_copy_begin,
    },
    unwind_row::SAVED_REGISTERS,
};

use crate::{
    maps::{self, SAMPLES, State, WORDS, global},
    walk,
};

/// Waking user space for each sample would cost more than the sample: it reads on a timer, and is woken before the
/// ring gets this full, and for code objects that are new.
const WAKE_AT_BYTES: u64 = 1 << 20;
/// include/uapi/linux/bpf.h
pub(crate) const BPF_RB_NO_WAKEUP: u64 = 1;
pub(crate) const BPF_RB_FORCE_WAKEUP: u64 = 2;
const BPF_RB_AVAIL_DATA: u64 = 0;

/// Bytes of user stack read at a time.
const COPY_CHUNK: usize = 4096;

/// Adds what was asked for besides the user stack, and sends the sample.
#[inline(always)]
pub(crate) fn submit(context: &PerfEventContext, pointer: *mut State) {
    // SAFETY: this CPU's map value.
    let state = unsafe { &mut *pointer };
    // SAFETY: a field of the map value; volatile as in `walk::unwind_step`.
    let used = unsafe { core::ptr::read_volatile(&raw const state.used) } as usize;
    if used > USER_WORDS_MAX {
        return;
    }
    state.header.native_words = (used as u16).wrapping_sub(state.header.python_words);
    let kernel = kernel_stack(context, state, used);
    // SAFETY: as above.
    let flags = unsafe { core::ptr::read_volatile(&raw const state.header.flags) };
    let mut words = used + kernel;
    if flags & flags::STACK_COPY != 0 {
        state.header.end_bp = walk::frame_pointer(state).unwrap_or(0);
        saved_registers(state);
        words += stack_copy(state, words);
        maps::count(counters::STACK_COPIES);
    }
    maps::count(counters::SAMPLES);
    send(context, pointer, words);
}

/// The kernel's own stack, when asked for and when the CPU was there. Returns the number of addresses.
#[inline(always)]
fn kernel_stack(context: &PerfEventContext, state: &mut State, used: usize) -> usize {
    if global!(KERNEL_STACKS) == 0 || state.header.flags & flags::KERNEL_MODE == 0 {
        return 0;
    }
    let Some(free) = state.words.get_mut(used..) else {
        return 0;
    };
    // SAFETY: `used` is at most `USER_WORDS_MAX`, behind which there is room for `KERNEL_FRAMES_MAX` words.
    let bytes = unsafe {
        bpf_get_stack(
            context.as_ptr(),
            free.as_mut_ptr().cast(),
            (KERNEL_FRAMES_MAX * 8) as u32,
            0,
        )
    };
    if bytes <= 0 {
        maps::count(counters::KERNEL_STACK_FAILED);
        return 0;
    }
    let count = (bytes as usize / 8).min(KERNEL_FRAMES_MAX);
    state.header.kernel_words = count as u16;
    count
}

/// Says where the callee-saved registers of the last frame are.
#[inline(always)]
fn saved_registers(state: &mut State) {
    let (mut in_memory, mut lost) = (0, 0);
    for (n, &number) in SAVED_REGISTERS.iter().enumerate() {
        match walk::find_saved(u32::from(number)) {
            walk::IN_REGISTER => {}
            walk::IN_MEMORY => in_memory |= 1 << n,
            _ => lost |= 1 << n,
        }
        state.header.end_saved[n] = state.found;
    }
    state.header.end_saved_in_memory = in_memory;
    state.header.end_saved_lost = lost;
}

/// Copies the user stack from where the walk stopped, with its red zone, behind `words` words, as far as there is room.
/// Returns the number of words.
#[inline(always)]
fn stack_copy(state: &mut State, words: usize) -> usize {
    let from = stack_copy_begin(state.header.end_sp);
    let mut copied = 0;
    state.used = words as u64;
    for chunk in 0..STACK_COPY_BYTES_MAX / COPY_CHUNK {
        let source = from + (chunk * COPY_CHUNK) as u64;
        // SAFETY: a field of the map value; volatile as in `walk::unwind_step`.
        let place = unsafe { core::ptr::read_volatile(&raw const state.used) } as usize;
        if place > WORDS - COPY_CHUNK / 8 {
            break;
        }
        // SAFETY: there is room for a chunk, as was just checked.
        let target = unsafe { state.words.as_mut_ptr().add(place) };
        // SAFETY: a checked read of user memory into the room just described.
        if unsafe { bpf_probe_read_user(target.cast(), COPY_CHUNK as u32, source as *const _) } == 0
        {
            copied += COPY_CHUNK;
            state.used = (place + COPY_CHUNK / 8) as u64;
            continue;
        }
        // The stack ends on a page: take the rest of this one.
        let rest = COPY_CHUNK - (source as usize & (COPY_CHUNK - 1));
        // SAFETY: as above; `rest` is at most the chunk.
        if unsafe {
            bpf_probe_read_user(
                target.cast(),
                (rest & (2 * COPY_CHUNK - 1)) as u32,
                source as *const _,
            )
        } == 0
        {
            copied += rest;
        }
        break;
    }
    state.header.stack_bytes = copied as u16;
    copied / 8
}

/// Sends `words` words behind the header.
#[inline(always)]
fn send(context: &PerfEventContext, pointer: *mut State, words: usize) {
    if words > WORDS {
        return;
    }
    let ring = (&raw const SAMPLES).cast_mut().cast();
    // SAFETY: `SAMPLES` is a ring buffer map.
    let waiting = unsafe { bpf_ringbuf_query(ring, BPF_RB_AVAIL_DATA) };
    // SAFETY: this CPU's map value.
    let has_news = unsafe { (*pointer).python.has_news } != 0;
    let wake = if has_news || waiting >= WAKE_AT_BYTES {
        BPF_RB_FORCE_WAKEUP
    } else {
        BPF_RB_NO_WAKEUP
    };
    let bytes = (HEADER_BYTES + words * 8) as u64;
    // SAFETY: header and words lie one behind the other in the map value, and `words` was checked.
    if unsafe { bpf_ringbuf_output(ring, pointer.cast(), bytes, wake) } != 0 {
        lost(context);
    }
}

/// Counts a sample for which the ring buffer had no room; the first one on each CPU is logged.
#[inline(always)]
fn lost(context: &PerfEventContext) {
    if let Some(count) = maps::COUNTERS.get(counters::RING_FULL)
        && *count == 0
    {
        info!(
            context,
            "the sample buffer is full: samples are being lost and counted"
        );
    }
    maps::count(counters::RING_FULL);
}
