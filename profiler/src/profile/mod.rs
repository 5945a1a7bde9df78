//! Counts of stacks.

/// A finished profile: stacks with names and counts.
#[derive(Clone, Debug, Default)]
pub struct Profile {
    /// How good the samples are.
    pub quality: Quality,
}

/// Where every sample went.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quality {
    /// Samples in the profile.
    pub samples: u64,
}
