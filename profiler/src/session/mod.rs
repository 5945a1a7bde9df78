//! One recording, from attach to profile: the only module that knows all stages.

mod ending;
mod error;
mod finish;
mod limits;
mod rate;
mod record;
mod recording_thread;
mod settings;
mod stages;
mod stop;
mod summary;

pub use crate::registry::{PythonFrom, PythonSource, TargetSummary, Unsampled};
pub use crate::symbols::{SymbolProcess, worker::run_if_called as run_symbol_process};
pub use error::SessionError;
pub use limits::Limit;
pub use recording_thread::record;
pub use settings::RecordSettings;
pub use summary::{
    BpfStats, Progress, Recording, Remark, SampledEvent, Spread, StopReason, Summary, Throttling,
};

/// Names of the threads that read hostile files, and catch the panics this may cause.
pub const CAREFUL_THREADS: [&str; 3] = [
    crate::process::interpreter::THREAD_NAME,
    crate::unwind::THREAD_NAME,
    crate::unwind::MAKER_NAME,
];
