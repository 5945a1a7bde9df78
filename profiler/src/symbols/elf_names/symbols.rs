//! Symbol tables: which of their entries name code, and which of two names is the better one.

use std::borrow::Cow;

use object::elf;

use super::{
    Section,
    input::{NameRef, Strings},
};
use crate::process::{u16_at, u32_at, u64_at};

/// Most symbols of code that are kept of a file. The largest libraries have some 500,000.
const SYMBOLS_MAX: usize = 1 << 20;

/// Bytes of a name that are looked at to choose between two.
const COMPARED_BYTES: usize = 255;

/// Most segments of code that are looked at of a file without section headers; linkers make one.
const SEGMENTS_MAX: usize = 8;

const SYMBOL_BYTES: usize = 24;

/// Which of a file's two symbol tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    /// `.symtab`
    Full,
    /// `.dynsym`
    Dynamic,
}

/// A symbol of something in a section of code.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) start: u64,
    /// `start`: its size is not stated.
    pub(super) end: u64,
    /// Where its section ends.
    pub(super) section_end: u64,
    pub(super) name: NameRef,
    /// The better name has the higher one.
    pub(super) rank: u32,
    pub(super) kind: EntryKind,
}

/// What a symbol is worth where it has no size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// A function, or a label that other files see.
    Function,
    /// A local label without a type.
    Label,
    /// Something that is not run, such as a table of constants: it ends what is before it, and names nothing.
    Data,
}

/// The symbols of all tables.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) entries: Vec<Entry>,
    /// There are more of them: it is not known where those without a size end.
    pub(super) is_cut: bool,
    has_full: bool,
}

/// The symbols that relocations refer to by number.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dynamic<'f> {
    symbols: &'f [u8],
    strings: u8,
}

impl Tables {
    /// Adds the symbols of one table, if the file has it. `keep`: how the names in it are kept.
    pub(super) fn add<'f, 's>(
        &mut self,
        sections: &[Section<'s>],
        wanted: Wanted,
        strings: &mut Strings<'f>,
        keep: impl Fn(&'s [u8]) -> Cow<'f, [u8]>,
    ) -> Option<Dynamic<'s>> {
        let kind = match wanted {
            Wanted::Full => elf::SHT_SYMTAB,
            Wanted::Dynamic => elf::SHT_DYNSYM,
        };
        let table = sections
            .iter()
            .find(|it| it.kind == kind && !it.bytes.is_empty())?;
        let names = strings.add(keep(sections.get(table.link)?.bytes))?;
        self.has_full |= wanted == Wanted::Full;
        for symbol in table.bytes.chunks_exact(SYMBOL_BYTES) {
            let Some(entry) = entry(symbol, names, sections, strings) else {
                continue;
            };
            if self.entries.len() >= SYMBOLS_MAX {
                self.is_cut = true;
                break;
            }
            self.entries.push(entry);
        }
        Some(Dynamic {
            symbols: table.bytes,
            strings: names,
        })
    }

    /// There is a table of all symbols.
    pub(super) const fn has_full(&self) -> bool {
        self.has_full
    }
}

impl Dynamic<'_> {
    /// The name of the symbol with this number.
    pub(super) fn name(self, number: u32) -> Option<NameRef> {
        let at = (number as usize).checked_mul(SYMBOL_BYTES)?;
        let symbol = self.symbols.get(at..at.checked_add(SYMBOL_BYTES)?)?;
        let name = u32_at(symbol, 0);
        (name != 0).then(|| NameRef::new(self.strings, name))
    }
}

fn entry(
    symbol: &[u8],
    names: u8,
    sections: &[Section<'_>],
    strings: &Strings<'_>,
) -> Option<Entry> {
    let (info, section) = (symbol[4], u16_at(symbol, 6));
    let (binding, type_) = (info >> 4, info & 15);
    if section == elf::SHN_UNDEF || section >= elf::SHN_LORESERVE {
        return None;
    }
    let start = u64_at(symbol, 8);
    let section = match sections.first() {
        // Made of segments: the numbers are those of sections whose headers are lost.
        Some(first) if first.is_code() => sections
            .iter()
            .take(SEGMENTS_MAX)
            .find(|it| it.is_code() && it.range.contains(&start))?,
        _ => sections.get(usize::from(section))?,
    };
    if !section.is_code() || !section.range.contains(&start) {
        return None;
    }
    let is_function = matches!(type_, elf::STT_FUNC | elf::STT_GNU_IFUNC);
    let is_local = binding == elf::STB_LOCAL;
    let kind = match type_ {
        _ if is_function => EntryKind::Function,
        elf::STT_NOTYPE if is_local => EntryKind::Label,
        elf::STT_NOTYPE => EntryKind::Function,
        elf::STT_OBJECT => EntryKind::Data,
        _ => return None,
    };
    let name = NameRef::new(names, u32_at(symbol, 0));
    let text = strings.start_of(name, COMPARED_BYTES);
    if text.is_empty() || is_mark(text, kind) {
        return None;
    }
    let binding = match binding {
        elf::STB_LOCAL => 0,
        elf::STB_WEAK => 1,
        _ => 2,
    };
    let underscores = text.iter().take_while(|&&byte| byte == b'_').count();
    let length = text.iter().position(|&byte| byte == b'@');
    let length = length.unwrap_or(text.len()).min(COMPARED_BYTES);
    let rank = u32::from(is_function) << 24
        | binding << 16
        | (255 - underscores.min(255) as u32) << 8
        | (255 - length as u32);
    Some(Entry {
        start,
        end: start
            .saturating_add(u64_at(symbol, 16))
            .min(section.range.end),
        section_end: section.range.end,
        name,
        rank,
        kind,
    })
}

/// Marks of assemblers and compilers that name no function: `$x` and the like say what kind of bytes follow, `.L…` are
/// labels that were left over, `.annobin_…` says how a piece was compiled.
fn is_mark(name: &[u8], kind: EntryKind) -> bool {
    match name {
        [b'$', b'a' | b'd' | b't' | b'x'] | [b'$', b'a' | b'd' | b't' | b'x', b'.', ..] => true,
        [b'.', ..] => kind == EntryKind::Label,
        _ => false,
    }
}
