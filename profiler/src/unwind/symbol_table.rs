//! The symbols of an ELF file, for the few functions that unwinding must know by name.

use object::LittleEndian as Endian;
use object::ReadRef;
use object::elf::{FileHeader64, SHN_UNDEF, STB_LOCAL, STT_FUNC, Sym64};
use object::read::elf::{SectionHeader as _, SectionTable, Sym as _};

/// Larger tables of symbols, and of their names, are not looked through.
const BYTES_MAX: u64 = 8 << 20;

/// One table of symbols: `.dynsym` or `.symtab`.
#[derive(Clone, Copy, Debug)]
pub(super) struct SymbolTable<'a> {
    symbols: &'a [Sym64<Endian>],
    names: &'a [u8],
}

impl<'a> SymbolTable<'a> {
    /// The first table of this kind (`SHT_DYNSYM`, `SHT_SYMTAB`): a file has one of each at most, a hostile one may have
    /// any number. `None`: there is none, it is damaged or too large.
    pub(super) fn find<R: ReadRef<'a>>(
        kind: u32,
        sections: &SectionTable<'a, FileHeader64<Endian>, R>,
        data: R,
    ) -> Option<Self> {
        let table = sections.iter().find(|it| it.sh_type(Endian) == kind)?;
        let index = object::SectionIndex(table.sh_link(Endian) as usize);
        let strings = sections.section(index).ok()?;
        if table.sh_size(Endian) > BYTES_MAX || strings.sh_size(Endian) > BYTES_MAX {
            return None;
        }
        Some(Self {
            symbols: table.data_as_array(Endian, data).ok()?,
            names: strings.data(Endian, data).ok()?,
        })
    }

    /// A table made by hand.
    #[cfg(test)]
    pub(super) const fn new(symbols: &'a [Sym64<Endian>], names: &'a [u8]) -> Self {
        Self { symbols, names }
    }

    /// The symbols of what the file has itself.
    pub(super) fn defined(self) -> impl Iterator<Item = Symbol<'a>> {
        let defined = |symbol: &&Sym64<Endian>| symbol.st_shndx(Endian) != SHN_UNDEF;
        self.symbols.iter().filter(defined).map(move |symbol| {
            let name = self.names.get(symbol.st_name(Endian) as usize..);
            Symbol {
                symbol,
                name: name.unwrap_or_default(),
            }
        })
    }
}

/// One symbol.
#[derive(Clone, Copy, Debug)]
pub(super) struct Symbol<'a> {
    symbol: &'a Sym64<Endian>,
    /// From its name on; the names of others follow behind a zero.
    name: &'a [u8],
}

impl Symbol<'_> {
    /// Where it lies.
    pub(super) fn at(self) -> u64 {
        self.symbol.st_value(Endian)
    }

    /// It is that of a function.
    pub(super) fn is_function(self) -> bool {
        self.symbol.st_type() == STT_FUNC
    }

    /// It is not seen outside its object file, so `strip --discard-all` takes it away.
    pub(super) fn is_local(self) -> bool {
        self.symbol.st_bind() == STB_LOCAL
    }

    /// It has this name.
    pub(super) fn is_named(self, name: &[u8]) -> bool {
        self.after(name) == Some(0)
    }

    /// The byte behind `begin`, with which its name begins; zero, where that is all of it.
    pub(super) fn after(self, begin: &[u8]) -> Option<u8> {
        self.name.strip_prefix(begin)?.first().copied()
    }
}
