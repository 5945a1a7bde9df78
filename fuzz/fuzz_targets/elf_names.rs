#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pyprof_bpf::fuzzing::elf_names(data));
