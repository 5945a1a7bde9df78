//! What has to change in a forked child before it does anything.

use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::gettid;

use super::evaluator;
use crate::PerfMap;

/// In [`STATE`]: asked.
const DONE: u32 = u32::MAX;
/// 0, or the id of a thread that is asking, or [`DONE`].
///
/// Not a `Once`: another thread may fork while one is being run, and the child would wait for it for ever. Here it asks
/// again, and being told twice does no harm. A signal handler that finds its own thread asking leaves it to that.
static STATE: AtomicU32 = AtomicU32::new(0);

/// Asks to be told. Cheap after the first time.
pub(crate) fn watch() {
    let state = STATE.load(Ordering::Acquire);
    if state == DONE {
        return;
    }
    let own = gettid().as_raw_nonzero().get().cast_unsigned();
    if state == own {
        return;
    }
    STATE.store(own, Ordering::Release);
    // Where there is no memory for it, a child goes on in its parent's file: no entry is lost.
    // SAFETY: `in_child` touches atomic words and descriptors only, as it must in the child of a process with threads.
    let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    STATE.store(DONE, Ordering::Release);
}

/// Called by `fork` in the child, in its only thread (pthread_atfork(3)).
extern "C" fn in_child() {
    PerfMap::of_this_process().forked();
    evaluator::forked();
}
