//! What `cli` takes from the stages below it, in one place: formats, files, the recording itself.

use std::{
    fs::{self, File, OpenOptions},
    future::Future,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use tokio::sync::watch;

use crate::session::{Progress, RecordSettings, Recording, StopReason};

/// A file format for profiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// Interactive flame graph.
    Svg,
    /// One line per stack.
    Folded,
}

impl Format {
    /// The format that a file's extension stands for.
    pub(crate) fn of_path(path: &Path) -> Option<Self> {
        let extension = path.extension()?.to_str()?;
        match extension.to_ascii_lowercase().as_str() {
            "svg" => Some(Self::Svg),
            "folded" => Some(Self::Folded),
            _ => None,
        }
    }

    /// The usual extension, without the dot.
    pub(crate) const fn extension(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Folded => "folded",
        }
    }
}

/// Which frames of a stack are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// Python frames, and the native function the innermost of them called.
    Python,
    /// All frames.
    Mixed,
    /// Native frames.
    Native,
}

/// A file to be written at the end of a recording, made certain of at its beginning.
///
/// The bytes go to a file beside it which takes the name when it is complete; dropped before that, nothing remains.
#[derive(Debug)]
pub(crate) struct OutputFile {
    path: PathBuf,
    unfinished: PathBuf,
    file: File,
    committed: bool,
}

impl OutputFile {
    /// Creates the unfinished file, which fails where the finished one could not be written.
    pub(crate) fn prepare(path: &Path) -> io::Result<Self> {
        if path.is_dir() {
            return Err(io::Error::from(io::ErrorKind::IsADirectory));
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut hidden = std::ffi::OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".{}", std::process::id()));
        let unfinished = path.with_file_name(hidden);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&unfinished)?;
        Ok(Self {
            path: path.to_owned(),
            unfinished,
            file,
            committed: false,
        })
    }

    /// Writes the bytes and gives the file its name.
    pub(crate) fn commit(mut self, bytes: &[u8]) -> io::Result<PathBuf> {
        self.file.write_all(bytes)?;
        fs::rename(&self.unfinished, &self.path)?;
        self.committed = true;
        Ok(self.path.clone())
    }
}

impl Drop for OutputFile {
    fn drop(&mut self) {
        if !self.committed {
            // Nothing useful can be done about a leftover that cannot be removed.
            let _ = fs::remove_file(&self.unfinished);
        }
    }
}

/// A profile as the bytes of a file.
pub(crate) fn render(
    _recording: &Recording,
    format: Format,
    _view: View,
    _subtitle: &str,
    _notes: &[String],
) -> anyhow::Result<Vec<u8>> {
    anyhow::bail!("this build cannot write {} files", format.extension())
}

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
