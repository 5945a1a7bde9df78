//! One recording, from attach to profile: the only module that knows all stages.

mod ended;
mod ending;
mod error;
mod finish;
mod followed;
mod limits;
mod python_frames;
mod rate;
mod record;
mod recording_thread;
mod settings;
mod stop;
mod summary;
mod targets;
mod unmet;

pub use crate::symbols::{SymbolProcess, worker::run_if_called as run_symbol_process};
pub use error::SessionError;
pub use limits::Limit;
pub use recording_thread::record;
pub use settings::{PythonFrom, RecordSettings};
pub use summary::{
    BpfStats, Progress, PythonSource, Recording, Remark, SampledEvent, Spread, StopReason, Summary,
    TargetSummary, Throttling, Unsampled,
};

/// Names of the threads that read hostile files, and catch the panics this may cause.
pub const CAREFUL_THREADS: [&str; 3] = [
    crate::process::interpreter::THREAD_NAME,
    crate::unwind::THREAD_NAME,
    crate::unwind::MAKER_NAME,
];
