//! The formats, by name and by file extension.

use std::path::Path;

use super::OutputError;

/// A format of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// A flame graph: an SVG to be opened in a browser.
    Svg,
    /// Text, one line per stack: `root;…;leaf COUNT`.
    Folded,
}

impl Format {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::Svg, Self::Folded];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Svg => "svg",
            Self::Folded => "folded",
        }
    }

    /// The ends of file names that mean it, the usual one first.
    pub const fn file_extensions(self) -> &'static [&'static str] {
        match self {
            Self::Svg => &["svg"],
            Self::Folded => &["folded", "collapsed", "txt"],
        }
    }

    /// The format that a file's name asks for, whatever its case.
    pub fn from_path(path: &Path) -> Result<Self, OutputError> {
        let extension = path
            .extension()
            .and_then(|extension| extension.to_str())
            .unwrap_or_default();
        Self::ALL
            .into_iter()
            .find(|format| {
                format
                    .file_extensions()
                    .iter()
                    .any(|known| known.eq_ignore_ascii_case(extension))
            })
            .ok_or_else(|| OutputError::UnknownExtension {
                path: path.to_owned(),
            })
    }

    /// The usual extension of each, for a message.
    pub(super) fn extensions() -> String {
        Self::ALL
            .map(|format| format!(".{}", format.file_extensions()[0]))
            .join(" or ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_name_tells_the_format() {
        assert_eq!(
            Format::from_path(Path::new("/tmp/a.b/out.SVG")).ok(),
            Some(Format::Svg)
        );
        assert_eq!(
            Format::from_path(Path::new("out.folded")).ok(),
            Some(Format::Folded)
        );
        assert_eq!(
            Format::from_path(Path::new("out.collapsed")).ok(),
            Some(Format::Folded)
        );
    }

    #[test]
    fn an_unknown_file_name_is_told_what_would_do() {
        for path in ["out", "out.png", ".svg", "-"] {
            let message = Format::from_path(Path::new(path))
                .expect_err(path)
                .to_string();
            assert!(
                message.contains(path) && message.contains(".svg or .folded"),
                "{message}"
            );
        }
    }
}
