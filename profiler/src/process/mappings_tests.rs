use std::path::PathBuf;

use proptest::prelude::*;

use super::*;

const PYTHON: &[u8] = include_bytes!("../../tests/data/maps/python.txt");
const ODD_NAMES: &[u8] = include_bytes!("../../tests/data/maps/odd_names.txt");
const MALFORMED: &[u8] = include_bytes!("../../tests/data/maps/malformed.txt");

fn executable(text: &[u8]) -> ParsedMappings {
    parse_mappings(text, |mapping| mapping.executable).expect("reading from memory cannot fail")
}

fn file(path: &[u8], deleted: bool) -> MappingKind {
    MappingKind::File {
        path: Path::new(OsStr::from_bytes(path)).into(),
        deleted,
    }
}

#[test]
fn keeps_executable_mappings_only() {
    let parsed = executable(PYTHON);
    assert_eq!((parsed.malformed, parsed.left_out), (0, 0));
    let kinds: Vec<_> = parsed
        .mappings
        .iter()
        .map(|mapping| mapping.kind.clone())
        .collect();
    assert_eq!(
        kinds,
        [
            file(b"/usr/local/bin/python3.12", false),
            MappingKind::Anonymous,
            file(b"/usr/local/lib/libpython3.12.so.1.0", false),
            file(b"/usr/lib/x86_64-linux-gnu/libc.so.6", false),
            MappingKind::Vdso,
            MappingKind::Special,
        ]
    );
    assert_eq!(
        parsed.mappings[2],
        Mapping {
            begin: Avma(0x7f1c_1710_6000),
            end: Avma(0x7f1c_1737_9000),
            file_offset: FileOffset(0x10_6000),
            executable: true,
            kind: file(b"/usr/local/lib/libpython3.12.so.1.0", false),
            device: (0xfe, 0),
            inode: 902,
            head: Some(Avma(0x7f1c_1700_0000)),
            copy: CodeCopy::None,
        }
    );
}

#[test]
fn names_may_hold_spaces_newlines_and_bytes_that_are_not_utf8() {
    let kinds: Vec<_> = executable(ODD_NAMES)
        .mappings
        .into_iter()
        .map(|mapping| mapping.kind)
        .collect();
    assert_eq!(
        kinds,
        [
            file(b"/srv/with space/mod.so", false),
            file(b"/srv/two\nlines.so", false),
            file(b"/srv/old.so", true),
            file(b"/memfd:doublemapper", true),
            MappingKind::Anonymous,
            file(b"/srv/\xff\xfe.so", false),
        ]
    );
}

#[test]
fn jit_code_lies_in_anonymous_memory_or_in_files_that_never_had_a_name() {
    let jit: Vec<_> = executable(ODD_NAMES)
        .mappings
        .iter()
        .map(Mapping::may_hold_jit_code)
        .collect();
    assert_eq!(jit, [false, false, false, true, true, false]);
}

#[test]
fn lines_that_are_no_mappings_are_counted_and_skipped() {
    let parsed = executable(MALFORMED);
    let paths: Vec<_> = parsed
        .mappings
        .iter()
        .filter_map(|m| m.path().map(PathBuf::from))
        .collect();
    assert_eq!(paths, [PathBuf::from("/ok.so"), PathBuf::from("/last.so")]);
    assert_eq!(parsed.malformed, 9);
}

#[test]
fn a_line_of_any_length_is_skipped_without_being_held() {
    let mut text = b"7f0000000000-7f0000001000 r-xp 00000000 08:01 11 /".to_vec();
    text.resize(4 << 20, b'a');
    text.extend_from_slice(b"\n7f0000005000-7f0000006000 r-xp 00000000 08:01 12 /next.so\n");
    let parsed = executable(&text);
    assert_eq!(parsed.malformed, 1);
    assert_eq!(parsed.mappings.len(), 1);
}

#[test]
fn more_mappings_than_the_cap_are_left_out_and_counted() {
    let text = (0..MAPPINGS_MAX + 5)
        .map(|i| {
            format!(
                "{:x}-{:x} r-xp 00000000 00:00 0 \n",
                0x1000 + i * 0x2000,
                0x2000 + i * 0x2000
            )
        })
        .collect::<Vec<_>>()
        .concat();
    let parsed = executable(text.as_bytes());
    assert_eq!(parsed.mappings.len(), MAPPINGS_MAX);
    assert_eq!(parsed.left_out, 5);
}

#[test]
fn of_too_many_mappings_the_largest_stay() {
    let small = |i: usize, path: &str| {
        let begin = 0x1000 + i * 0x2000;
        format!("{begin:x}-{:x} r-xp 0 08:01 1 {path}\n", begin + 0x1000)
    };
    let mut text: String = (0..3 * MAPPINGS_MAX).map(|i| small(i, "")).collect();
    text += "7f0000000000-7f0000300000 r-xp 0 08:01 2 /lib/libpython3.12.so.1.0\n";
    text += &small(1 << 32, "/small.so");
    let parsed = executable(text.as_bytes());
    assert_eq!(parsed.mappings.len(), MAPPINGS_MAX);
    assert_eq!(parsed.left_out as usize, 2 * MAPPINGS_MAX + 2);
    let paths: Vec<_> = parsed.mappings.iter().filter_map(Mapping::path).collect();
    assert_eq!(
        paths,
        ["/small.so", "/lib/libpython3.12.so.1.0"].map(Path::new)
    );
    assert!(parsed.mappings.is_sorted_by_key(|mapping| mapping.begin));
}

#[test]
fn names_longer_than_the_budget_together_are_left_out() {
    let text = (0..2000)
        .map(|i| {
            format!(
                "{:x}-{:x} r-xp 0 0:0 1 /{i:04}{}\n",
                0x1000 + i * 0x2000,
                0x2000 + i * 0x2000,
                "x".repeat(4000)
            )
        })
        .collect::<Vec<_>>()
        .concat();
    let parsed = executable(text.as_bytes());
    assert!(parsed.mappings.len() * 4005 <= PATH_BYTES_MAX);
    assert_eq!(parsed.mappings.len() + parsed.left_out as usize, 2000);
}

#[test]
fn mappings_of_one_file_share_its_path() {
    let text = "1000-2000 r-xp 0 0:0 1 /a.so\n2000-3000 r-xp 1000 0:0 1 /a.so\n";
    let mappings = executable(text.as_bytes()).mappings;
    let (MappingKind::File { path: first, .. }, MappingKind::File { path: second, .. }) =
        (&mappings[0].kind, &mappings[1].kind)
    else {
        panic!("both are files")
    };
    assert!(Arc::ptr_eq(first, second));
}

#[test]
fn an_address_becomes_an_offset_in_the_file() {
    let mapping = &executable(PYTHON).mappings[2];
    assert_eq!(
        mapping.file_offset_of(Avma(0x7f1c_1710_6010)),
        Some(FileOffset(0x10_6010))
    );
    assert_eq!(mapping.file_offset_of(mapping.end), None);
}

#[test]
fn names_of_perf_records_are_understood() {
    assert_eq!(
        MappingKind::from_kernel_name(b"//anon"),
        MappingKind::Anonymous
    );
    assert_eq!(
        MappingKind::from_kernel_name(b"//toolong"),
        MappingKind::Special
    );
    assert_eq!(
        MappingKind::from_kernel_name(b"anon_inode:[perf_event]"),
        MappingKind::Special
    );
    assert_eq!(MappingKind::from_kernel_name(b"[vdso]"), MappingKind::Vdso);
}

#[test]
fn own_mappings_hold_the_code_of_this_test() {
    let parsed = read_executable_mappings(Pid(std::process::id())).expect("own maps can be read");
    let here = Avma(own_mappings_hold_the_code_of_this_test as *const () as u64);
    let mapping = parsed
        .mappings
        .iter()
        .find(|mapping| mapping.contains(here))
        .expect("this code is mapped");
    assert_eq!(mapping.path(), std::env::current_exe().ok().as_deref());
    assert_eq!(parsed.malformed, 0);
}

proptest! {
    #[test]
    fn any_bytes_can_be_parsed(text in proptest::collection::vec(any::<u8>(), 0..2000)) {
        for mapping in parse_mappings(&text[..], |_| true).expect("memory").mappings {
            prop_assert!(mapping.begin < mapping.end);
        }
    }

    #[test]
    fn any_line_like_text_can_be_parsed(text in "[0-9a-f]{1,20}-[0-9a-f]{1,20} [r-][w-][x-][ps] [0-9a-f]{1,17} [0-9a-f]{1,3}:[0-9a-f]{1,9} [0-9]{1,21} {1,20}.{0,20}") {
        let _ = parse_mappings(text.as_bytes(), |_| true).expect("memory");
    }
}
