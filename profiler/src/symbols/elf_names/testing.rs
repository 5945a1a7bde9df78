//! ELF files made by hand, for tests.

use object::elf;

/// A file under construction, with one section of code at 0x1000 and one at 0x3000.
pub(super) struct FileOf {
    sections: Vec<Made>,
    symbols: Vec<u8>,
    strings: Vec<u8>,
}

struct Made {
    name: &'static str,
    kind: u32,
    flags: u32,
    address: u64,
    size: u64,
    bytes: Vec<u8>,
    link: u32,
    entry_bytes: u64,
}

/// Numbers of the sections that every file has.
pub(super) const INIT: u16 = 1;
pub(super) const TEXT: u16 = 2;
pub(super) const DATA: u16 = 3;

const CODE: u32 = elf::SHF_ALLOC | elf::SHF_EXECINSTR;

impl FileOf {
    /// `.init` from 0x1000 to 0x1010, `.text` from 0x3000 to 0x4000, `.data` from 0x8000 to 0x9000.
    pub(super) fn code() -> Self {
        let mut file = Self {
            sections: Vec::new(),
            symbols: vec![0; 24],
            strings: vec![0],
        };
        file.add("", elf::SHT_NULL, 0, 0, 0, &[]);
        file.add(".init", elf::SHT_NOBITS, CODE, 0x1000, 0x10, &[]);
        file.add(".text", elf::SHT_NOBITS, CODE, 0x3000, 0x1000, &[]);
        file.add(
            ".data",
            elf::SHT_NOBITS,
            elf::SHF_ALLOC,
            0x8000,
            0x1000,
            &[],
        );
        file
    }

    /// Adds a section, and gives its number.
    pub(super) fn add(
        &mut self,
        name: &'static str,
        kind: u32,
        flags: u32,
        address: u64,
        size: u64,
        bytes: &[u8],
    ) -> u16 {
        self.sections.push(Made {
            name,
            kind,
            flags,
            address,
            size,
            bytes: bytes.to_vec(),
            link: 0,
            entry_bytes: 0,
        });
        self.sections.len() as u16 - 1
    }

    /// Adds a section with bytes of code.
    pub(super) fn add_code(&mut self, name: &'static str, address: u64, bytes: &[u8]) {
        let size = bytes.len() as u64;
        self.add(name, elf::SHT_PROGBITS, CODE, address, size, bytes);
    }

    /// Adds a symbol, and gives its number.
    pub(super) fn symbol(
        &mut self,
        name: &str,
        (binding, type_): (u8, u8),
        section: u16,
        (at, bytes): (u64, u64),
    ) -> u32 {
        let offset = self.strings.len() as u32;
        self.strings.extend_from_slice(name.as_bytes());
        self.strings.push(0);
        self.symbols.extend_from_slice(&offset.to_le_bytes());
        self.symbols.extend_from_slice(&[binding << 4 | type_, 0]);
        self.symbols.extend_from_slice(&section.to_le_bytes());
        self.symbols.extend_from_slice(&at.to_le_bytes());
        self.symbols.extend_from_slice(&bytes.to_le_bytes());
        self.symbols.len() as u32 / 24 - 1
    }

    /// Adds a global function of `.text`.
    pub(super) fn function(&mut self, name: &str, at: u64, bytes: u64) {
        let global = (elf::STB_GLOBAL, elf::STT_FUNC);
        self.symbol(name, global, TEXT, (at, bytes));
    }

    /// Adds `.eh_frame` with these functions.
    pub(super) fn described(&mut self, functions: &[(u64, u64)]) {
        let bytes = eh_frame(functions);
        let size = bytes.len() as u64;
        let alloc = elf::SHF_ALLOC;
        self.add(".eh_frame", elf::SHT_PROGBITS, alloc, 0x6000, size, &bytes);
    }

    /// Adds relocations of slots: the slot, the type, the number of a symbol, and an addend.
    pub(super) fn relocations(&mut self, name: &'static str, all: &[(u64, u32, u32, u64)]) {
        let mut bytes = Vec::new();
        for (slot, kind, symbol, addend) in all {
            bytes.extend_from_slice(&slot.to_le_bytes());
            bytes.extend_from_slice(&kind.to_le_bytes());
            bytes.extend_from_slice(&symbol.to_le_bytes());
            bytes.extend_from_slice(&addend.to_le_bytes());
        }
        let size = bytes.len() as u64;
        self.add(name, elf::SHT_RELA, elf::SHF_ALLOC, 0x5000, size, &bytes);
    }

    /// The file, with its symbols in a table of this kind.
    pub(super) fn finish(mut self, kind: u32) -> Vec<u8> {
        let symbols = std::mem::take(&mut self.symbols);
        let strings = std::mem::take(&mut self.strings);
        let size = symbols.len() as u64;
        let table = self.add("", kind, 0, 0, size, &symbols);
        let size = strings.len() as u64;
        let of_names = self.add("", elf::SHT_STRTAB, 0, 0, size, &strings);
        self.sections[usize::from(table)].link = of_names.into();

        let mut names = vec![0];
        let name_at: Vec<u32> = self
            .sections
            .iter()
            .map(|section| {
                let at = names.len() as u32;
                names.extend_from_slice(section.name.as_bytes());
                names.push(0);
                at
            })
            .collect();
        let size = names.len() as u64;
        let own_names = self.add("", elf::SHT_STRTAB, 0, 0, size, &names);

        let mut file = vec![0; 64];
        let mut headers = Vec::new();
        for (index, section) in self.sections.iter().enumerate() {
            let name = name_at.get(index).copied().unwrap_or(0);
            headers.extend_from_slice(&name.to_le_bytes());
            headers.extend_from_slice(&section.kind.to_le_bytes());
            headers.extend_from_slice(&u64::from(section.flags).to_le_bytes());
            headers.extend_from_slice(&section.address.to_le_bytes());
            headers.extend_from_slice(&(file.len() as u64).to_le_bytes());
            headers.extend_from_slice(&section.size.to_le_bytes());
            headers.extend_from_slice(&section.link.to_le_bytes());
            headers.extend_from_slice(&[0; 12]);
            headers.extend_from_slice(&section.entry_bytes.to_le_bytes());
            file.extend_from_slice(&section.bytes);
        }
        let table = file.len() as u64;
        file.extend_from_slice(&headers);
        file[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        file[18..20].copy_from_slice(&elf::EM_X86_64.to_le_bytes());
        file[40..48].copy_from_slice(&table.to_le_bytes());
        file[60..62].copy_from_slice(&(self.sections.len() as u16).to_le_bytes());
        file[62..64].copy_from_slice(&own_names.to_le_bytes());
        file
    }
}

/// One CIE, and an FDE for each function; addresses are stated as they are.
pub(super) fn eh_frame(functions: &[(u64, u64)]) -> Vec<u8> {
    let mut section = Vec::new();
    let mut entry = |id: u32, content: &[u8]| {
        let padding = (4 - content.len() % 4) % 4;
        section.extend_from_slice(&((content.len() + padding + 4) as u32).to_le_bytes());
        section.extend_from_slice(&id.to_le_bytes());
        section.extend_from_slice(content);
        section.resize(section.len() + padding, 0);
        section.len()
    };
    // Version 1, "zR", factors 1 and -8, return address in register 16, addresses of eight bytes.
    let mut end = entry(0, b"\x01zR\0\x01\x78\x10\x01\x04\x0c\x07\x08\x90\x01");
    for (begin, end_of_function) in functions {
        let mut content = begin.to_le_bytes().to_vec();
        content.extend_from_slice(&(end_of_function - begin).to_le_bytes());
        content.push(0);
        end = entry(end as u32 + 4, &content);
    }
    section.extend_from_slice(&[0; 4]);
    section
}
