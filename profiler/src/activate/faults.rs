//! What CPython itself does wrong, by version, so that nobody's process crashes of it.

use profiler_common::trampoline::{CALL_OFFSET, caller_rule};

use super::{Switch, Version};
use crate::process::{Mapping, interpreter::ReadMemory};

/// Trampolines begin at the beginning of a page.
const PAGE: u64 = 4096;
/// Pages that are looked at.
const PAGES_MAX: usize = 65_536;
/// `endbr64`
const ENDBR64: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

/// Does switching it crash the process, now or later?
///
/// From 3.14.3 on, up to 3.15.2 at least: each time they are switched on, another watcher counts every code object that is
/// freed (`code_watcher_id`, Python/perf_trampoline.c; cpython issue 146522). Two of them count to zero while trampolines are
/// in use, which are unmapped then.
pub(super) fn is_fatal(version: Version, switch: Switch, were_on: impl Fn() -> bool) -> bool {
    let has_fault = matches!(version, Version(3, 14, Some(3..)) | Version(3, 15.., _));
    switch == Switch::On && has_fault && were_on()
}

/// The process has trampolines of CPython in its memory: they are on, or were.
pub(super) fn has_trampolines(memory: &dyn ReadMemory, mappings: &[Mapping]) -> bool {
    let pages = mappings
        .iter()
        .filter(|mapping| mapping.executable && mapping.path().is_none())
        .flat_map(|mapping| (mapping.begin.0..mapping.end.0).step_by(PAGE as usize));
    pages.take(PAGES_MAX).any(|page| {
        let mut code = [0; 12];
        memory.read(page, &mut code) && is_trampoline(code)
    })
}

fn is_trampoline(code: [u8; 12]) -> bool {
    // Both forms have their call at the same distance from the first instruction, which `endbr64` may precede.
    const { assert!(CALL_OFFSET == 6) };
    let skipped = if code.starts_with(&ENDBR64) { 4 } else { 0 };
    let word = code[skipped..].first_chunk().copied().unwrap_or_default();
    caller_rule(u64::from_le_bytes(word)).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_versions_with_the_fault_are_refused() {
        use Switch::{Off, On};
        let version = |minor, micro| Version(3, minor, Some(micro));
        for (version, switch, were_on, is_refused) in [
            (version(14, 2), On, true, false),
            (version(14, 10), On, true, true),
            (version(14, 10), On, false, false),
            (version(14, 10), Off, true, false),
            (version(15, 0), On, true, true),
            (Version(3, 15, None), On, true, true),
        ] {
            let found = is_fatal(version, switch, || were_on);
            assert_eq!(found, is_refused, "{version} {switch} {were_on}");
        }
    }

    #[test]
    fn both_kinds_of_trampolines_are_known() {
        for (code, expected) in [
            (
                &[
                    0x48, 0x83, 0xec, 8, 0xff, 0xd1, 0x48, 0x83, 0xc4, 8, 0xc3, 0x48,
                ][..],
                true,
            ),
            (
                &[0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3, 0, 0, 0, 0],
                true,
            ),
            (
                &[
                    0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5, 0xff, 0xd1, 0x5d, 0xc3,
                ],
                true,
            ),
            (
                &[0xf3, 0x0f, 0x1e, 0xfa, 0xf3, 0x0f, 0x1e, 0xfa, 0, 0, 0, 0],
                false,
            ),
            (&[0; 12], false),
        ] {
            let code = *code.first_chunk().expect("twelve bytes");
            assert_eq!(is_trampoline(code), expected, "{code:x?}");
        }
    }
}
