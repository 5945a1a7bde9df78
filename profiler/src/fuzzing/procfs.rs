//! Texts of `/proc`, whose names are chosen by the process that they tell of.
//!
//! Input: a byte that says which text, and the text.

use super::input::Input;
use crate::process::{MAPPINGS_MAX, PATH_BYTES_MAX, fuzzing as parsers, parse_mappings};

/// One of the texts that are read of a process.
pub fn procfs(data: &[u8]) {
    let mut input = Input::new(data);
    let which = input.byte();
    let text = input.bytes(usize::MAX);
    match which % 4 {
        0 => mappings(text),
        1 => parsers::stat(text),
        2 => parsers::status(text),
        _ => parsers::command_line(text),
    }
}

/// Each line is a mapping, or counted.
fn mappings(text: &[u8]) {
    let parsed = parse_mappings(text, |_| true).expect("memory can be read");
    assert!(parsed.mappings.len() <= MAPPINGS_MAX);
    let lines = text.split(|&byte| byte == b'\n').count();
    let lines = lines - usize::from(text.is_empty() || text.ends_with(b"\n"));
    let accounted = parsed.mappings.len() + parsed.left_out as usize + parsed.malformed as usize;
    assert_eq!(accounted, lines, "{parsed:?}");
    let mut path_bytes = 0;
    for mapping in &parsed.mappings {
        assert!(mapping.begin < mapping.end);
        assert!(mapping.contains(mapping.begin) && !mapping.contains(mapping.end));
        let _ = (mapping.may_hold_jit_code(), mapping.key());
        path_bytes = path_bytes.max(mapping.path().map_or(0, |path| path.as_os_str().len()));
    }
    assert!(path_bytes <= PATH_BYTES_MAX);
}
