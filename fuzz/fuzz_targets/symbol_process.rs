#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| pyprof_bpf::fuzzing::symbol_process(data));
