//! Why a file has no names at all.

/// An ELF file that nothing is read of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ElfNamesError {
    /// It does not begin as one.
    #[error("not a 64-bit little-endian ELF file")]
    NotElf,
    /// Its section headers lie outside of it, or there are none.
    #[error("no section headers")]
    NoSections,
}
