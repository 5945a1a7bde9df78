//! `.gnu_debugdata` ("MiniDebugInfo"): a small ELF file, compressed by xz, with the symbols of a stripped file's own
//! functions. Fedora and its relatives ship it.

use std::io::Read as _;

use lzma_rust2::XzReader;

/// Bytes of it that are unpacked. The largest in Fedora have some 20 MiB.
const UNPACKED_BYTES_MAX: usize = 32 << 20;

/// Memory for unpacking, in KiB: `xz -9` wants a dictionary of 64 MiB.
const UNPACKING_KIB_MAX: u32 = 66 << 10;

/// The file in it. `None`: it is damaged, or larger than is unpacked.
pub(super) fn unpack(packed: &[u8]) -> Option<Vec<u8>> {
    let mut reader = XzReader::new_mem_limit(packed, false, UNPACKING_KIB_MAX)
        .take(UNPACKED_BYTES_MAX as u64 + 1);
    let mut unpacked = Vec::new();
    reader.read_to_end(&mut unpacked).ok()?;
    (unpacked.len() <= UNPACKED_BYTES_MAX).then_some(unpacked)
}
