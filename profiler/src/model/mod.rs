//! The values that flow through the pipeline. No I/O, no aya, no tokio: all of it can be built in a test.

mod address;
mod frame;
mod ids;
mod process;
mod quota;
mod sample;
mod stack;
mod visible;

pub use address::{Avma, CodeAddress, FileOffset, Svma};
pub use frame::{Frame, FrameKind, Location, LocationId, LocationTable, ResolveMiss};
pub use ids::{Hz, ImageId, KtimeNs, Pid, ThreadName, Tid};
pub use process::{ProcessChange, ProcessEvent};
pub use quota::Quota;
pub(crate) use quota::Usage;
pub use sample::{RawSample, SavedRegister, StackCopy};
pub use stack::{PythonEnd, PythonFrame, ResolvedStack, StackEnd, UnwoundStack, UserFrame};
#[cfg(test)]
pub(crate) use visible::as_compatible;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use visible::is_never_shown;
pub(crate) use visible::{Shower, begins_as_number, needs_next, visible};
