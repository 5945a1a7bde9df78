//! Names of kernel functions, from `/proc/kallsyms`.
//!
//! Read by ourselves: this keeps the module of a function, knows hidden addresses from missing ones, and takes half the
//! memory of a general symbolizer's table. No kernel image is looked for: its debug information has hundreds of MiB.

use std::{
    fs::File,
    io::{self, BufRead, BufReader},
};

use crate::model::{Frame, FrameKind, Location, ResolveMiss};

/// Functions kept. A kernel with every module loaded has about 200,000.
const SYMBOLS_MAX: usize = 1 << 20;

/// No function is this long: an address further behind the nearest symbol belongs to nothing that has a name.
const FUNCTION_BYTES_MAX: u64 = 1 << 20;

/// The running kernel's functions by address. About 5 MiB for 120,000.
#[derive(Debug, Default)]
pub struct KernelSymbols {
    /// Sorted by address.
    symbols: Vec<Symbol>,
    names: String,
    modules: Vec<Box<str>>,
}

#[derive(Clone, Copy, Debug)]
struct Symbol {
    address: u64,
    name: u32,
    name_length: u16,
    /// Index in `modules`, plus one; 0: part of the kernel itself.
    module: u16,
}

impl KernelSymbols {
    /// Reads from an open `/proc/kallsyms`; about 60 ms. The addresses are shown, rather than zeros, if whoever *opened*
    /// it had CAP_SYSLOG (`kernel.kptr_restrict` 0 or 1), or `kernel.perf_event_paranoid` is at most 1 and
    /// `kernel.kptr_restrict` 0 (`kallsyms_show_value` in kernel/ksyms_common.c, Linux 6.12): open it before giving up
    /// privileges.
    pub fn read(kallsyms: &File) -> io::Result<Self> {
        Self::parse(BufReader::with_capacity(64 << 10, kallsyms))
    }

    /// Parses `address type name` and, for modules, a tab and `[module]`; skips what is not in this form.
    pub fn parse(mut text: impl BufRead) -> io::Result<Self> {
        let mut table = Self::default();
        let mut line = String::new();
        while table.symbols.len() < SYMBOLS_MAX {
            line.clear();
            if text.read_line(&mut line)? == 0 {
                break;
            }
            table.take(&line);
        }
        table.symbols.sort_by_key(|symbol| symbol.address);
        table.symbols.shrink_to_fit();
        table.names.shrink_to_fit();
        Ok(table)
    }

    /// No address is known: the kernel hides them from us.
    pub fn is_hidden(&self) -> bool {
        self.symbols.is_empty()
    }

    /// The function that an address lies in; one frame always.
    pub fn locate(&self, address: u64) -> Location {
        let frame = |name: Box<str>, module: Option<Box<str>>, miss| Frame {
            kind: FrameKind::Kernel,
            name,
            file: None,
            line: None,
            first_line: None,
            module,
            miss,
        };
        let found = match self.find(address) {
            Some((name, module)) => frame(name.into(), module.map(Into::into), None),
            None if self.is_hidden() => {
                frame("[kernel]".into(), None, Some(ResolveMiss::KernelSymbols))
            }
            None => frame(
                format!("[kernel]+{address:#x}").into(),
                None,
                Some(ResolveMiss::NoSymbol),
            ),
        };
        Location {
            frames: vec![found],
        }
    }

    fn find(&self, address: u64) -> Option<(&str, Option<&str>)> {
        let after = self
            .symbols
            .partition_point(|symbol| symbol.address <= address);
        let symbol = self.symbols[..after].last()?;
        if address - symbol.address > FUNCTION_BYTES_MAX {
            return None;
        }
        let begin = symbol.name as usize;
        let name = self
            .names
            .get(begin..begin + usize::from(symbol.name_length))?;
        let module = usize::from(symbol.module)
            .checked_sub(1)
            .and_then(|index| self.modules.get(index));
        Some((name, module.map(AsRef::as_ref)))
    }

    fn take(&mut self, line: &str) {
        let mut words = line.split_ascii_whitespace();
        let (Some(address), Some(kind), Some(name)) = (words.next(), words.next(), words.next())
        else {
            return;
        };
        let Ok(address) = u64::from_str_radix(address, 16) else {
            return;
        };
        let is_code = matches!(kind, "t" | "T" | "w" | "W");
        // Hidden addresses are zero; so are those of per-CPU variables.
        if address == 0 || !is_code {
            return;
        }
        let (Ok(begin), Ok(length)) = (u32::try_from(self.names.len()), u16::try_from(name.len()))
        else {
            return;
        };
        let module = words.next().map_or(0, |module| self.module(module));
        self.names.push_str(name);
        self.symbols.push(Symbol {
            address,
            name: begin,
            name_length: length,
            module,
        });
    }

    /// The number of a module. They come one after the other, so that the last one is asked first.
    fn module(&mut self, name: &str) -> u16 {
        let known = self.modules.iter().rposition(|module| **module == *name);
        let index = known.unwrap_or_else(|| {
            self.modules.push(name.into());
            self.modules.len() - 1
        });
        u16::try_from(index + 1).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const READABLE: &[u8] = include_bytes!("../../tests/data/kallsyms/readable.txt");
    const RESTRICTED: &[u8] = include_bytes!("../../tests/data/kallsyms/restricted.txt");

    fn located(
        table: &KernelSymbols,
        address: u64,
    ) -> (String, Option<String>, Option<ResolveMiss>) {
        let frame = table.locate(address).frames.remove(0);
        assert_eq!(frame.kind, FrameKind::Kernel);
        (frame.name.into(), frame.module.map(Into::into), frame.miss)
    }

    #[test]
    fn an_address_belongs_to_the_function_before_it() {
        let table = KernelSymbols::parse(READABLE).expect("memory");
        assert_eq!(located(&table, 0xffff_ffff_8100_0120).0, "do_one_thing");
        assert_eq!(located(&table, 0xffff_ffff_8100_03ff).0, "do_one_thing");
        assert_eq!(located(&table, 0xffff_ffff_8100_0400).0, "do_another_thing");
    }

    #[test]
    fn functions_of_modules_name_them() {
        let table = KernelSymbols::parse(READABLE).expect("memory");
        assert_eq!(
            located(&table, 0xffff_ffff_c020_1004),
            ("ext4_read".into(), Some("[ext4]".into()), None)
        );
        let (name, module, _) = located(&table, 0xffff_ffff_c030_0010);
        assert_eq!(
            (name.as_str(), module.as_deref()),
            ("bpf_prog_6deef7357e7b4530_on_sample", Some("[bpf]"))
        );
    }

    #[test]
    fn addresses_far_from_any_function_have_no_name() {
        let table = KernelSymbols::parse(READABLE).expect("memory");
        assert_eq!(located(&table, 0x1000).2, Some(ResolveMiss::NoSymbol));
        assert_eq!(located(&table, u64::MAX).2, Some(ResolveMiss::NoSymbol));
        assert_eq!(
            located(&table, 0xffff_ffff_8200_0100).2,
            Some(ResolveMiss::NoSymbol),
            "data is no code"
        );
    }

    #[test]
    fn hidden_addresses_are_a_reason_of_their_own() {
        let table = KernelSymbols::parse(RESTRICTED).expect("memory");
        assert!(table.is_hidden());
        let expected = ("[kernel]".into(), None, Some(ResolveMiss::KernelSymbols));
        assert_eq!(located(&table, 0xffff_ffff_8100_0120), expected);
    }

    #[test]
    fn the_running_kernel_can_be_read() {
        let Ok(file) = File::open("/proc/kallsyms") else {
            return;
        };
        let table = KernelSymbols::read(&file).expect("reads");
        if let Some(middle) = table.symbols.get(table.symbols.len() / 2) {
            assert_eq!(located(&table, middle.address + 1).2, None);
        }
    }
}
