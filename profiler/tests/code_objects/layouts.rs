//! Where each CPython keeps what is read of a code object, on x86-64.

use pyprof_bpf::process::interpreter::{CodeLayout, LineTableKind};

/// Of `3.minor`.
pub(crate) fn of(minor: u32, is_free_threaded: bool, code_type: u64) -> CodeLayout {
    let mut layout = CodeLayout {
        code_type,
        object_type: 8,
        identity: 56,
        first_line: 68,
        file: 112,
        name: 120,
        qualified_name: Some(128),
        line_table: 136,
        lines: LineTableKind::Locations,
        text_length: 16,
        text_state: 32,
        text_interned_bits: 2,
        text_ascii: 40,
        text_compact: 56,
        bytes_size: 16,
        bytes_data: 32,
    };
    if minor <= 11 {
        layout.first_line = 72;
        layout.text_ascii = 48;
        layout.text_compact = 72;
    }
    if minor <= 10 {
        layout.identity = 40;
        layout.first_line = 40;
        layout.file = 104;
        layout.name = 112;
        layout.qualified_name = None;
        layout.line_table = 120;
        layout.lines = if minor == 10 {
            LineTableKind::Ranges
        } else {
            LineTableKind::Lnotab
        };
    }
    if is_free_threaded {
        layout.text_interned_bits = if minor >= 14 { 8 } else { 2 };
        for offset in [
            &mut layout.object_type,
            &mut layout.identity,
            &mut layout.first_line,
            &mut layout.file,
            &mut layout.name,
            &mut layout.line_table,
            &mut layout.text_length,
            &mut layout.text_state,
            &mut layout.text_ascii,
            &mut layout.text_compact,
            &mut layout.bytes_size,
            &mut layout.bytes_data,
        ] {
            *offset += 16;
        }
        layout.qualified_name = layout.qualified_name.map(|offset| offset + 16);
    }
    layout
}
