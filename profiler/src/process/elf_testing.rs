//! ELF files made up for tests.

/// A section of one.
#[derive(Clone, Debug)]
pub(crate) struct TestSection {
    pub(crate) name: &'static str,
    pub(crate) kind: u32,
    pub(crate) flags: u64,
    pub(crate) address: u64,
    pub(crate) link: u32,
    pub(crate) content: Vec<u8>,
}

impl TestSection {
    /// One that is not loaded.
    pub(crate) fn new(name: &'static str, kind: u32, content: impl Into<Vec<u8>>) -> Self {
        Self {
            name,
            kind,
            flags: 0,
            address: 0,
            link: 0,
            content: content.into(),
        }
    }
}

/// An x86-64 program with these sections, numbered from 1, and one segment: `segment` bytes of the file at an address.
pub(crate) fn elf_of(sections: &[TestSection], segment: Option<(u64, u64)>) -> Vec<u8> {
    let mut bytes = vec![0_u8; 64];
    let mut names = vec![0_u8];
    let mut headers = vec![0_u8; 64];
    let strings = TestSection::new(".shstrtab", object::elf::SHT_STRTAB, Vec::new());
    for section in sections.iter().chain([&strings]) {
        while !bytes.len().is_multiple_of(8) {
            bytes.push(0);
        }
        let name = names.len() as u32;
        names.extend_from_slice(section.name.as_bytes());
        names.push(0);
        let offset = bytes.len() as u64;
        let content = if section.name == ".shstrtab" && section.content.is_empty() {
            &names
        } else {
            &section.content
        };
        bytes.extend_from_slice(content);
        let entry_size: u64 = if section.kind == object::elf::SHT_SYMTAB {
            24
        } else {
            0
        };
        headers.extend_from_slice(&name.to_le_bytes());
        headers.extend_from_slice(&section.kind.to_le_bytes());
        for number in [section.flags, section.address, offset, content.len() as u64] {
            headers.extend_from_slice(&number.to_le_bytes());
        }
        headers.extend_from_slice(&section.link.to_le_bytes());
        headers.extend_from_slice(&[0; 4]);
        headers.extend_from_slice(&1_u64.to_le_bytes());
        headers.extend_from_slice(&entry_size.to_le_bytes());
    }
    let mut segments = Vec::new();
    if let Some((address, size)) = segment {
        segments.extend_from_slice(&object::elf::PT_LOAD.to_le_bytes());
        segments.extend_from_slice(&5_u32.to_le_bytes());
        for number in [0, address, address, size, size, 4096] {
            segments.extend_from_slice(&u64::to_le_bytes(number));
        }
    }
    let (segment_table, section_table) = (bytes.len(), bytes.len() + segments.len());
    bytes.extend_from_slice(&segments);
    bytes.extend_from_slice(&headers);
    let count = sections.len() as u16 + 2;
    bytes[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    let mut put = |at: usize, value: &[u8]| bytes[at..at + value.len()].copy_from_slice(value);
    put(16, &3_u16.to_le_bytes());
    put(18, &object::elf::EM_X86_64.to_le_bytes());
    put(20, &1_u32.to_le_bytes());
    put(32, &(segment_table as u64).to_le_bytes());
    put(40, &(section_table as u64).to_le_bytes());
    put(52, &64_u16.to_le_bytes());
    put(54, &56_u16.to_le_bytes());
    put(56, &u16::from(segment.is_some()).to_le_bytes());
    put(58, &64_u16.to_le_bytes());
    put(60, &count.to_le_bytes());
    put(62, &(count - 1).to_le_bytes());
    bytes
}

/// An entry of a symbol table: a function.
pub(crate) fn symbol(name: u32, section: u16, address: u64, size: u64) -> Vec<u8> {
    let mut bytes = name.to_le_bytes().to_vec();
    bytes.extend_from_slice(&[0x12, 0]);
    bytes.extend_from_slice(&section.to_le_bytes());
    bytes.extend_from_slice(&address.to_le_bytes());
    bytes.extend_from_slice(&size.to_le_bytes());
    bytes
}
