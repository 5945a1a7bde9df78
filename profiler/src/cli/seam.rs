//! Where the session comes in.

use std::future::Future;

use tokio::sync::watch;

use crate::session::{Progress, RecordSettings, Recording, StopReason};

/// Samples until `stop` or an end of its own. Its first message to `progress` says that sampling is on.
#[expect(
    clippy::unused_async,
    reason = "the session it stands for is asynchronous"
)]
pub(crate) async fn record(
    _settings: RecordSettings,
    _stop: impl Future<Output = StopReason>,
    _progress: watch::Sender<Progress>,
) -> anyhow::Result<Recording> {
    anyhow::bail!("this build cannot record")
}
