//! From attach to profile: the only module that knows all stages.
//!
//! The [`Engine`] samples until it is stopped, and gives a [`Window`] whenever one is cut. [`record()`] runs it for one window.

mod ending;
mod engine;
mod error;
mod limits;
mod rate;
mod record;
mod recording_thread;
mod settings;
mod stages;
mod stop;
mod summary;
mod window;

pub use crate::registry::{PythonFrom, PythonSource, TargetSummary, Unsampled};
pub use crate::symbols::{SymbolProcess, worker::run_if_called as run_symbol_process};
pub use engine::Engine;
pub use error::SessionError;
pub use limits::Limit;
pub use recording_thread::record;
pub use settings::RecordSettings;
pub use summary::{
    BpfStats, Progress, Remark, SampledEvent, Spread, StopReason, Summary, Throttling, Window,
};

/// Names of the threads that read hostile files, and catch the panics this may cause.
pub const CAREFUL_THREADS: [&str; 3] = [
    crate::process::interpreter::THREAD_NAME,
    crate::unwind::THREAD_NAME,
    crate::unwind::MAKER_NAME,
];
