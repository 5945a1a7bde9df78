//! Time for what is left to do when a recording has ended.
//!
//! People who press Ctrl-C want their profile within two seconds, whatever the targets do. So each part of the end has a
//! limit. Work is measured in CPU time, and waits by the clock: on a busy machine no less is done, and nobody who serves
//! our reads slowly is waited for.

use std::time::Duration;

/// CPU time for reading perf maps to their ends.
pub(super) const MAPS_WORK: Duration = Duration::from_millis(400);
/// CPU time for resolving the samples that are left in the ring buffer.
pub(super) const RING_WORK: Duration = Duration::from_millis(500);
/// Waits for code objects, of all processes together.
pub(super) const CODE_WAITS: Duration = Duration::from_millis(200);
/// Names that are missing then.
pub(super) const LAST_NAMES: Duration = Duration::from_secs(10);
/// At the end of a window that others follow: stacks that are finished in user space, and names.
pub(super) const CUT_WALKS: Duration = Duration::from_secs(1);
pub(super) const CUT_NAMES: Duration = Duration::from_secs(1);
