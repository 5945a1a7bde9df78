//! From a profile to bytes.
//!
//! [`write()`] turns a [`Profile`] into one [`Format`]; [`OutputFile`] puts the bytes in their place, whole or not at all.
//! Neither needs the process that was profiled. Every format takes names as they were recorded, which may hold any
//! character, and makes them safe for itself with `name`.

mod color;
mod error;
mod file;
mod flamegraph;
mod folded;
mod format;
mod functions;
mod label;
mod name;
mod reduce;
mod shortened;
mod svg;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod tests_of_size;

use std::io::Write;

use crate::profile::{Granularity, Profile, View};

pub use error::OutputError;
pub use file::{OutputFile, Owner, Waiting, WhileWaiting, Written, check_stdout, descriptor};
pub use format::Format;
pub use shortened::Shortened;

/// What a picture says and shows besides the stacks.
#[derive(Clone, Debug)]
pub struct OutputOptions {
    /// Which frames are shown. Default: [`View::Python`].
    pub view: View,
    /// What Python frames are told apart by. Default: [`Granularity::Functions`].
    pub granularity: Granularity,
    /// The heading of a picture, for example the command that was profiled. Shortened where it does not fit.
    pub title: String,
    /// Facts under the heading, for example `2,970 samples at 99 Hz (cpu-clock), 99.97 % complete`. The flame graph
    /// adds how it is used; shortened where both do not fit.
    pub subtitle: String,
    /// Longer facts, a sentence each: they go where a format has room for them (an SVG's description).
    pub notes: Vec<String>,
    /// Width of a picture in pixels. `None`, the default: as wide as the browser's window.
    pub width: Option<usize>,
}

impl Default for OutputOptions {
    fn default() -> Self {
        Self {
            view: View::default(),
            granularity: Granularity::default(),
            title: "Flame graph".to_owned(),
            subtitle: String::new(),
            notes: Vec::new(),
            width: None,
        }
    }
}

/// A profile in one format, ready to be written: as often as it takes to find a place for it.
#[derive(Debug)]
pub struct Rendered {
    content: Content,
    shortened: Shortened,
}

#[derive(Debug)]
enum Content {
    Picture(flamegraph::Picture),
    Folded(folded::Lines),
}

/// Renders a profile. Equal profiles give equal bytes.
///
/// What would be too large to be opened is shortened: each sample stays in it, and [`Rendered::shortened`] says what
/// does not. Fails when there are no samples.
pub fn render(
    profile: &Profile,
    format: Format,
    options: &OutputOptions,
) -> Result<Rendered, OutputError> {
    if profile.is_empty() {
        return Err(OutputError::NoSamples);
    }
    let (content, shortened) = match format {
        Format::Svg => {
            let rendered = flamegraph::render(profile, options);
            let (picture, shortened) = rendered.map_err(|source| OutputError::Write { source })?;
            (Content::Picture(picture), shortened)
        }
        Format::Folded => {
            let (lines, shortened) = folded::render(profile, options);
            (Content::Folded(lines), shortened)
        }
    };
    Ok(Rendered { content, shortened })
}

impl Rendered {
    /// What is not shown in full.
    pub fn shortened(&self) -> &Shortened {
        &self.shortened
    }

    /// Writes it. Fails when `out` does.
    pub fn write(&self, out: &mut dyn Write) -> Result<(), OutputError> {
        let written = match &self.content {
            Content::Picture(picture) => picture.write(out),
            Content::Folded(lines) => lines.write(out),
        };
        written.map_err(|source| OutputError::Write { source })
    }
}

/// Renders a profile and writes it.
pub fn write(
    profile: &Profile,
    format: Format,
    options: &OutputOptions,
    out: &mut dyn Write,
) -> Result<(), OutputError> {
    render(profile, format, options)?.write(out)
}
