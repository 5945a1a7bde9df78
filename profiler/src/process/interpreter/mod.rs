//! The CPython inside a process: where it keeps its frames and code objects, whether that is surely so, and what the
//! code objects say.

mod layout;

pub use layout::{CodeLayout, Interpreter, LineTableKind};
