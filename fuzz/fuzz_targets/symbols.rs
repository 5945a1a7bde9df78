#![no_main]

libfuzzer_sys::fuzz_target!(
    // The process that parses symbols is this program once more.
    init: pyprof_bpf::fuzzing::be_symbol_process(),
    |data: &[u8]| pyprof_bpf::fuzzing::symbols(data)
);
