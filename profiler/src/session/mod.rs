//! One recording, from attach to profile: the only module that knows all stages.

mod settings;
mod summary;

pub use settings::RecordSettings;
pub use summary::{Progress, Recording, SampledEvent, StopReason, Summary, TargetSummary, Throttling};
