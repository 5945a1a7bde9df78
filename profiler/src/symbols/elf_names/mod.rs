//! Which function an address of an ELF file is in: by symbol, by jump stub, or by unwind information alone.
//!
//! * **Job:** names an address only if something in the file says that the function covers it.
//! * **Gets** the bytes of small ELF files that hold the symbol tables, relocations, jump stubs and `.eh_frame` of one
//!   module ([`ElfFile`](crate::process::ElfFile) copies them), all of them hostile.
//! * **Gives** the function, with a name that is not demangled, or its first address.
//! * **Must not know** files, paths, processes and threads. Memory and time are bounded by the limits in this folder.
//!
//! # What covers an address
//!
//! 1. In a section of jump stubs (`.plt`, `.plt.sec`, …): the function that the stub jumps to, by its relocation.
//! 2. A symbol with a size, from its address to its size, and not past its section. Of several, the one that begins
//!    last.
//! 3. A symbol without a size, which is how hand-written assembler is often left: up to the next symbol, the end of its
//!    section or the end of its `.eh_frame` function, whichever comes first. Local labels inside of a function that its
//!    own symbol begins do not count.
//! 4. The `.eh_frame` function without a name.
//!
//! Of several symbols that begin at one address, the name is that of a function rather than of a label, global rather
//! than weak rather than local, then the one with fewer leading underscores, then the shorter one, then the first in the
//! table.

mod cover;
mod error;
mod frames;
mod input;
mod mini_debug_info;
mod stubs;
mod symbols;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

pub(crate) use error::ElfNamesError;

use crate::model::Svma;
use cover::Cover;
use frames::Functions;
use input::{Section, Strings, is_stub_section, sections};
use stubs::{Stubs, Target};
use symbols::{Tables, Wanted};

/// The functions of one module.
#[derive(Debug)]
pub(crate) struct ElfNames<'f> {
    strings: Strings<'f>,
    cover: Cover,
    functions: Functions,
    stubs: Stubs,
}

/// What an address is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Symbol<'n> {
    /// Its name as the file has it, not demangled, without a version; of a jump stub, the name of the function that it
    /// jumps to. `None`: it has none, but it is known where it begins.
    pub(crate) name: Option<&'n [u8]>,
    /// Its first address.
    pub(crate) start: Svma,
    /// It is a jump stub.
    pub(crate) is_stub: bool,
}

impl<'f> ElfNames<'f> {
    /// Reads an ELF file, and the one with its symbols that was split off it, where there is one. Fails if `own` is no ELF
    /// file; what is damaged elsewhere has no names.
    pub(crate) fn read(own: &'f [u8], separate: Option<&'f [u8]>) -> Result<Self, ElfNamesError> {
        let sections = sections(own)?;
        let code = sections.iter().filter(|section| section.is_code());
        let functions = Functions::read(&sections, code.map(|it| it.range.clone()).collect());
        let mut strings = Strings::default();
        let mut tables = Tables::default();
        tables.add(&sections, Wanted::Full, &mut strings, Cow::Borrowed);
        if let Some(separate) = separate.and_then(|file| input::sections(file).ok()) {
            tables.add(&separate, Wanted::Full, &mut strings, Cow::Borrowed);
        }
        if !tables.has_full()
            && let Some(packed) = sections.iter().find(|it| it.is_called(b".gnu_debugdata"))
            && let Some(unpacked) = mini_debug_info::unpack(packed.bytes)
            && let Ok(inner) = input::sections(&unpacked)
        {
            tables.add(&inner, Wanted::Full, &mut strings, |names| {
                Cow::Owned(names.to_vec())
            });
        }
        let dynamic = tables.add(&sections, Wanted::Dynamic, &mut strings, Cow::Borrowed);
        let stubs = Stubs::read(own, &sections, dynamic);
        let cover = Cover::new(tables, &functions);
        Ok(Self {
            strings,
            cover,
            functions,
            stubs,
        })
    }

    /// What an address is in. `None`: nothing is known of it.
    pub(crate) fn look_up(&self, at: Svma) -> Option<Symbol<'_>> {
        if let Some(stub) = self.stubs.at(at.0) {
            let name = match stub.target {
                Some(Target::Named(name)) => Some(self.strings.get(name)),
                Some(Target::Address(function)) => self.name_of_function_at(function),
                None => None,
            };
            return Some(Symbol {
                name: name.filter(|name| !name.is_empty()),
                start: Svma(stub.start),
                is_stub: true,
            });
        }
        let named = self.cover.at(at.0).map(|(start, name)| Symbol {
            name: Some(self.strings.get(name)),
            start: Svma(start),
            is_stub: false,
        });
        named.or_else(|| {
            let function = self.functions.at(at.0)?;
            Some(Symbol {
                name: None,
                start: Svma(function.start),
                is_stub: false,
            })
        })
    }

    /// Bytes of memory that it takes, about.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn bytes(&self) -> usize {
        self.strings.bytes() + self.cover.bytes() + self.functions.bytes() + self.stubs.bytes()
    }

    fn name_of_function_at(&self, address: u64) -> Option<&[u8]> {
        let (start, name) = self.cover.at(address)?;
        (start == address).then(|| self.strings.get(name))
    }
}
