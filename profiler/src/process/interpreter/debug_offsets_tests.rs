use proptest::prelude::*;

use super::{super::testing::LAYOUT, *};

/// The words of a process, the first two of which are always these.
const fn list<const N: usize>(version: u64, mut words: [u64; N]) -> [u64; N] {
    words[0] = COOKIE;
    words[1] = version;
    words
}

/// As processes of Debian's 3.13.18, 3.14.10 and 3.15.2 and of a free-threaded 3.13.5 have them.
pub(in crate::process::interpreter) const PYTHON_3_13: [u64; 73] = list(
    0x030d_12f0,
    [
        0, 0, 0, 283_408, 608, 632, 194_984, 7272, 7264, 7344, 7400, 7656, 7640, 7648, 16, 7752, 0,
        7768, 7760, 312, 0, 8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 208, 112, 120, 128,
        136, 68, 52, 96, 104, 200, 16, 8, 416, 24, 88, 168, 32, 24, 16, 40, 24, 16, 48, 32, 40, 24,
        16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40, 240, 200,
    ],
);
pub(in crate::process::interpreter) const PYTHON_3_13_FREE_THREADED: [u64; 73] = list(
    0x030d_05f0,
    [
        0, 0, 1, 328_320, 608, 632, 215_616, 7272, 7264, 7344, 7400, 7664, 7648, 7656, 16, 7760, 0,
        7784, 7776, 304, 0, 8, 16, 72, 152, 160, 232, 32, 80, 8, 0, 56, 72, 70, 224, 128, 136, 144,
        152, 84, 68, 112, 120, 216, 32, 24, 432, 40, 104, 184, 48, 40, 32, 56, 40, 32, 64, 48, 56,
        40, 32, 48, 32, 40, 56, 32, 48, 80, 48, 32, 56, 248, 200,
    ],
);
pub(in crate::process::interpreter) const PYTHON_3_14: [u64; 95] = list(
    0x030e_0af0,
    [
        0, 0, 0, 316_616, 784, 808, 225_864, 7280, 7272, 7344, 7360, 7408, 7688, 7672, 7680, 16,
        7784, 0, 7800, 7792, 7992, 0, 832, 0, 8, 16, 72, 152, 160, 232, 32, 88, 8, 0, 56, 80, 74,
        64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0, 16, 8, 416, 24, 88, 168, 40, 32,
        16, 40, 24, 16, 200, 24, 40, 32, 48, 32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16,
        40, 264, 192, 160, 24, 72, 67, 0, 8, 24, 304, 8076, 0, 4, 512,
    ],
);
pub(in crate::process::interpreter) const PYTHON_3_15: [u64; 96] = list(
    0x030f_02f0,
    [
        0, 0, 0, 346_568, 912, 936, 226_240, 7272, 7264, 7336, 7352, 7400, 7592, 7576, 7584, 16,
        7736, 0, 7752, 7744, 7944, 0, 888, 0, 8, 16, 72, 80, 88, 96, 176, 184, 256, 32, 36, 40,
        136, 288, 0, 88, 8, 0, 56, 80, 74, 64, 0, 216, 112, 120, 128, 136, 68, 52, 96, 104, 208, 0,
        16, 8, 424, 24, 88, 168, 32, 288, 944, 888, 40, 32, 16, 40, 24, 16, 200, 24, 40, 32, 48,
        32, 40, 24, 16, 32, 16, 24, 40, 16, 32, 64, 32, 16, 40, 56, 176, 112,
    ],
);

const RUNTIME: u64 = 0x7f00_0000_0000;
const CODE_TYPE: u64 = 0x7f00_0080_0000;

pub(in crate::process::interpreter) fn offsets(words: &[u64]) -> DebugOffsets {
    let mut all = [0; WORDS];
    all[..words.len()].copy_from_slice(words);
    DebugOffsets(all)
}

fn row(minor: u8) -> &'static Row {
    let row = ROWS.iter().find(|row| row.version == (3, minor));
    row.expect("there is one")
}

fn layout(words: &[u64], minor: u8) -> Result<Interpreter, ImpossibleOffset> {
    offsets(words).layout(row(minor), RUNTIME, CODE_TYPE)
}

#[test]
fn the_layout_of_3_13_is_what_its_headers_say() {
    let Interpreter {
        frames,
        code,
        version,
    } = layout(&PYTHON_3_13, 13).expect("possible");
    assert_eq!(version, 0x030d_12f0);
    let expected = PythonLayout {
        interpreters: RUNTIME + 632,
        code_type: CODE_TYPE,
        code_mask: u64::MAX,
        interpreter_next: 7264,
        interpreter_threads: 7344,
        thread_prev: 0,
        thread_next: 8,
        thread_interpreter: 16,
        thread_id: 152,
        thread_frame: 72,
        cframe_frame: NO_FIELD,
        cframe_previous: NO_FIELD,
        frame_bytes: 72,
        frame_previous: 8,
        frame_code: 0,
        frame_instruction: 56,
        instruction_is_address: 1,
        frame_owner: 70,
        shim_owner: 3,
        frame_is_entry: NO_FIELD,
        frame_tlbc: NO_FIELD,
        code_begin: 8,
        code_bytes: 136,
        code_identity: 6,
        code_instructions: 200,
        code_tlbc: NO_FIELD,
        content_text: 0,
        content_file: 0,
        reserved: 0,
    };
    assert_eq!(frames, expected);
    // As in 3.12.
    let expected = CodeLayout {
        code_type: CODE_TYPE,
        ..LAYOUT
    };
    assert_eq!(code, expected);
}

#[test]
fn the_layouts_of_3_14_and_3_15_differ_in_little() {
    let Interpreter {
        frames: old, code, ..
    } = layout(&PYTHON_3_13, 13).expect("possible");
    let newer = |words: &[u64], minor| layout(words, minor).expect("possible");
    let python_3_14 = newer(&PYTHON_3_14, 14);
    let expected = PythonLayout {
        interpreters: RUNTIME + 808,
        code_mask: !3,
        interpreter_next: 7272,
        frame_bytes: 80,
        frame_owner: 74,
        code_instructions: 208,
        ..old
    };
    assert_eq!((python_3_14.frames, python_3_14.code), (expected, code));
    let python_3_15 = newer(&PYTHON_3_15, 15);
    let expected = PythonLayout {
        interpreters: RUNTIME + 936,
        interpreter_next: 7264,
        interpreter_threads: 7336,
        thread_id: 176,
        ..expected
    };
    assert_eq!((python_3_15.frames, python_3_15.code), (expected, code));
}

#[test]
fn without_gil_objects_begin_with_two_words_more() {
    let with = layout(&PYTHON_3_13, 13).expect("possible");
    let without = layout(&PYTHON_3_13_FREE_THREADED, 13).expect("possible");
    let expected = PythonLayout {
        code_begin: 24,
        code_instructions: 216,
        ..with.frames
    };
    assert_eq!(without.frames, expected);
    let code = with.code;
    let expected = CodeLayout {
        object_type: 24,
        identity: code.identity + 16,
        first_line: 84,
        file: 128,
        name: 136,
        qualified_name: Some(144),
        line_table: 152,
        text_length: 32,
        text_state: 48,
        text_ascii: 56,
        text_compact: 72,
        bytes_size: 32,
        bytes_data: 48,
        ..code
    };
    assert_eq!(without.code, expected);
}

/// `tlbc_index` and `co_tlbc` are words of every list, and zero in one with the GIL.
#[test]
fn copies_of_instructions_are_of_free_threaded_builds_only() {
    let mut words = PYTHON_3_14;
    (words[38], words[49]) = (72, 176);
    let with = layout(&words, 14).expect("possible");
    assert_eq!(
        (with.frames.frame_tlbc, with.frames.code_tlbc),
        (NO_FIELD, NO_FIELD)
    );
    words[2] = 1;
    let without = layout(&words, 14).expect("possible");
    assert_eq!(
        (without.frames.frame_tlbc, without.frames.code_tlbc),
        (72, 176)
    );
    assert_eq!(without.frames.frame_bytes, 80);
    assert_eq!(without.code.text_interned_bits, 8);
}

#[test]
fn the_words_of_one_version_make_no_layout_of_another() {
    let all: [(&[u64], u8); 4] = [
        (&PYTHON_3_13, 13),
        (&PYTHON_3_13_FREE_THREADED, 13),
        (&PYTHON_3_14, 14),
        (&PYTHON_3_15, 15),
    ];
    for (words, own) in all {
        for minor in [13, 14, 15] {
            let layout = layout(words, minor);
            assert_eq!(
                layout.is_ok(),
                minor == own,
                "3.{own} as 3.{minor}: {layout:?}"
            );
        }
    }
}

#[test]
fn what_is_no_list_has_no_cookie_and_no_version() {
    assert!(offsets(&PYTHON_3_14).has_cookie());
    let nothing = offsets(&[]);
    assert!(!nothing.has_cookie());
    assert!(nothing.version().is_err());
    assert!(offsets(&[COOKIE, 1 << 32 | 0x030e_00f0]).version().is_err());
    assert!(offsets(&[COOKIE, 0x020e_00f0]).version().is_err());
}

#[test]
fn an_offset_past_its_structure_is_named() {
    let mut words = PYTHON_3_14;
    words[27] = 840;
    let fault = layout(&words, 14).expect_err("past its end");
    assert_eq!(fault.to_string(), "PyThreadState.thread_id cannot be 840");
    for (word, value) in [
        (9, 7341),
        (31, 0),
        (33, 8),
        (43, 64),
        (43, 65_528),
        (80, 44),
    ] {
        let mut words = PYTHON_3_14;
        words[word] = value;
        assert!(layout(&words, 14).is_err(), "word {word} cannot be {value}");
    }
}

fn any_word() -> impl Strategy<Value = u64> {
    prop_oneof![
        0..300_u64,
        (0..2000_u64).prop_map(|word| word * 8),
        any::<u64>()
    ]
}

proptest! {
    #[test]
    fn any_words_make_a_layout_that_keeps_its_promises_or_none(
        damage in prop::collection::vec((0..WORDS, any_word()), 0..20),
        minor in 13_u8..16,
    ) {
        let mut words = match minor {
            13 => offsets(&PYTHON_3_13),
            14 => offsets(&PYTHON_3_14),
            _ => offsets(&PYTHON_3_15),
        };
        for (word, value) in damage {
            words.0[word] = value;
        }
        words.0[1] = 0x030d_00f0;
        if let Ok(Interpreter { frames, code, .. }) = words.layout(row(minor), RUNTIME, CODE_TYPE) {
            prop_assert!(usize::from(frames.frame_bytes) <= FRAME_BYTES_MAX);
            for at in [frames.frame_previous, frames.frame_code, frames.frame_instruction] {
                prop_assert!(at.is_multiple_of(8) && at + 8 <= frames.frame_bytes);
            }
            prop_assert!(frames.frame_owner < frames.frame_bytes);
            let is_read = |at: u16| at == NO_FIELD || at + 4 <= frames.frame_bytes;
            prop_assert!(is_read(frames.frame_tlbc));
            let read = usize::from(frames.code_bytes);
            prop_assert!(read.is_multiple_of(8) && read <= CODE_BYTES_MAX);
            prop_assert_eq!(frames.code_begin + frames.code_bytes, code.line_table + 8);
            prop_assert_eq!(frames.code_begin + 8 * frames.code_identity, code.identity);
            prop_assert!(frames.code_identity > 0);
        }
    }
}
