//! What has to change in a forked child before it does anything.

use std::sync::Once;

use super::evaluator;
use crate::PerfMap;

/// Asks to be told. Cheap after the first time.
pub(crate) fn watch() {
    static ASKED: Once = Once::new();
    ASKED.call_once(|| {
        // Where there is no memory for it, a child goes on in its parent's file: no entry is lost.
        // SAFETY: `in_child` touches atomic words and descriptors only, as it must in the child of a process with
        // threads.
        let _ = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    });
}

/// Called by `fork` in the child, in its only thread (pthread_atfork(3)).
extern "C" fn in_child() {
    PerfMap::of_this_process().forked();
    evaluator::forked();
}
