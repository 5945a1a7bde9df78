//! Can `bpf-linker` read what a compiler hands it? LLVM's bitcode is read by the same
//! version or a newer one only.

use std::process::Command;

use crate::{bpf_toolchain::BpfToolchain, command};

/// Is the linker's LLVM at least as new as the compiler's? Unknown counts as yes: the
/// build will tell.
pub(crate) fn fits(toolchain: &BpfToolchain) -> bool {
    match (compiler(&toolchain.name), linker(toolchain)) {
        (Some(compiler), Some(linker)) => compiler <= linker,
        _ => true,
    }
}

/// Major version of the LLVM inside a toolchain's compiler.
fn compiler(name: &str) -> Option<u64> {
    let text = command::output(Command::new("rustup").args(["run", name, "rustc", "-vV"])).ok()?;
    major_after(&text, "LLVM version: ")
}

/// Major version of the LLVM that the linker loads; unknown when it has one built in.
fn linker(toolchain: &BpfToolchain) -> Option<u64> {
    let text = command::output(Command::new("ldd").arg(&toolchain.linker)).ok()?;
    major_after(&text, "libLLVM.so.").or_else(|| major_after(&text, "libLLVM-"))
}

/// The number that follows the first `mark`.
fn major_after(text: &str, mark: &str) -> Option<u64> {
    let rest = &text[text.find(mark)? + mark.len()..];
    let end = rest.find(|c: char| !c.is_ascii_digit())?;
    rest[..end].parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_both_ways_to_name_the_library() {
        assert_eq!(
            major_after("\tlibLLVM.so.22.1 => /usr/lib\n", "libLLVM.so."),
            Some(22)
        );
        assert_eq!(
            major_after("\tlibLLVM-14.so.1 => /usr/lib\n", "libLLVM-"),
            Some(14)
        );
        assert_eq!(major_after("statically linked", "libLLVM-"), None);
    }
}
