//! The CPython inside a process: where it keeps its frames and code objects, whether that is surely so, and what the
//! code objects say.

#![forbid(unsafe_code)]

mod check;
mod code;
mod code_object;
mod code_type;
mod debug_offsets;
#[cfg(test)]
mod fake_process;
mod frame;
mod layout;
mod lines;
mod locate;
mod memory;
mod object;
mod offsets;
mod patient;
mod refusal;
mod requests;
mod self_check;
#[cfg(test)]
mod testing;
mod text;
mod threads;
mod wait_budget;

pub use check::{Examined, examine};
pub use code::{Code, CodeMiss, identity_at, read_code};
pub use debug_offsets::ImpossibleOffset;
pub use layout::{CodeLayout, Interpreter, LineTableKind};
pub use lines::{LINE_TABLE_BYTES_MAX, LineMap};
pub use locate::{NotLocated, Runtime, locate};
pub use memory::{ADDRESS_END, Memory, ReadMemory};
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use offsets::built_in;
pub(crate) use patient::THREAD_NAME;
pub use patient::{PatientReader, Progress, Reading};
pub use refusal::{Misfit, Obstacle, Refusal, Remedy, Version};
pub use requests::{RequestSupport, is_free_threaded, request_support};
pub use self_check::NotYet;
pub use text::read_text;
pub use threads::{THREADS_MAX, threads};
pub use wait_budget::WAIT_AT_ONCE;
