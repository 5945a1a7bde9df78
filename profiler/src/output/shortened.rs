//! What of a profile a file does not show in full.

/// What was left out of one file so that it can be opened. Every sample is in the file all the same.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Shortened {
    /// Frames that are shown, with those that stand for others.
    pub frames: u64,
    /// Frames that are merged into others, which are called `…` in a picture and `[merged]` in folded stacks.
    pub merged: u64,
    /// The share of the samples (0 to 1) that end in merged frames.
    pub merged_share: f64,
    /// Functions whose names are cut, as a line of text would be too long.
    pub names: u64,
}

impl Shortened {
    /// Nothing is left out.
    pub fn is_nothing(&self) -> bool {
        self.merged == 0 && self.names == 0
    }
}
