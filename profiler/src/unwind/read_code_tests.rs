//! Small functions, and the C library of this machine, whose own description says what must come out.

use super::*;

fn read(code: &[u8], functions: &[u64]) -> Vec<(u64, UnwindRule)> {
    let library = CLibrary {
        roots: Vec::new(),
        never_return: Vec::new(),
        functions: functions.to_vec(),
        code: vec![Section {
            data: code,
            svma: 0x1000,
        }],
    };
    read_code(&library, |_| false)
}

fn shown(code: &[u8], functions: &[u64]) -> Vec<(u64, u8, i32)> {
    let rows = read(code, functions).into_iter();
    rows.map(|(at, rule)| (at - 0x1000, rule.cfa, rule.cfa_off))
        .collect()
}

#[test]
fn pushes_and_room_are_added_up() {
    // push %r12; push %rbp; sub $0x18,%rsp; call +0; add $0x18,%rsp; pop %rbp; pop %r12; ret
    let code = [
        0x41, 0x54, 0x55, 0x48, 0x83, 0xec, 0x18, 0xff, 0xd0, 0x48, 0x83, 0xc4, 0x18, 0x5d, 0x41,
        0x5c, 0xc3,
    ];
    let rows = read(&code, &[0x1000]);
    let offsets: Vec<(u64, i32)> = rows
        .iter()
        .map(|(at, rule)| (at - 0x1000, rule.cfa_off))
        .collect();
    assert_eq!(
        offsets,
        [
            (0, 8),
            (2, 16),
            (3, 24),
            (7, 48),
            (13, 24),
            (14, 16),
            (16, 8),
            (17, 0)
        ]
    );
    let inside = rows[3].1;
    assert_eq!(
        (inside.cfa, inside.bp, inside.bp_off),
        (cfa::RSP, bp::AT_CFA, -24)
    );
    assert_eq!(inside.saved, [0, 2, 0, 0, 0], "r12 is two words below");
    assert_eq!(rows[7].1, NONE, "behind the function nothing is known");
}

#[test]
fn a_frame_is_left_by_its_register() {
    // push %rbp; mov %rsp,%rbp; and $-32,%rsp; call *%rax; leave; ret
    let code = [
        0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xe4, 0xe0, 0xff, 0xd0, 0xc9, 0xc3,
    ];
    assert_eq!(
        shown(&code, &[0x1000]),
        [
            (0, cfa::RSP, 8),
            (1, cfa::RSP, 16),
            (8, cfa::RBP, 16),
            (11, cfa::RSP, 8),
            (12, cfa::NONE, 0)
        ]
    );
}

#[test]
fn both_ways_of_a_branch_are_followed_and_must_agree() {
    // test %eax,%eax; je +1; push %rax; ret: `ret` is met with two depths.
    let code = [0x85, 0xc0, 0x74, 0x01, 0x50, 0xc3];
    assert_eq!(
        shown(&code, &[0x1000]),
        [(0, cfa::RSP, 8), (5, cfa::NONE, 0)]
    );
    // test; je +2; push %rax; pop %rax; ret: they agree.
    let code = [0x85, 0xc0, 0x74, 0x02, 0x50, 0x58, 0xc3];
    assert_eq!(
        shown(&code, &[0x1000]),
        [
            (0, cfa::RSP, 8),
            (5, cfa::RSP, 16),
            (6, cfa::RSP, 8),
            (7, cfa::NONE, 0)
        ]
    );
}

#[test]
fn a_call_that_does_not_return_does_not_run_into_the_next_function() {
    // push %rax; call +1 (0x1007); nop; ret — the function that is called is known as one.
    let code = [0x50, 0xe8, 1, 0, 0, 0, 0x90, 0xc3];
    assert_eq!(
        shown(&code, &[0x1000]),
        [
            (0, cfa::RSP, 8),
            (1, cfa::RSP, 16),
            (6, cfa::NONE, 0),
            (7, cfa::RSP, 8),
            (8, cfa::NONE, 0)
        ]
    );
}

#[test]
fn a_loop_that_is_aligned_behind_a_call_is_followed() {
    // push %rax; call *%rax; nop; call *%rax; jne -4 (to the call); pop %rax; ret
    let code = [0x50, 0xff, 0xd0, 0x90, 0xff, 0xd0, 0x75, 0xfc, 0x58, 0xc3];
    assert_eq!(
        shown(&code, &[0x1000]),
        [
            (0, cfa::RSP, 8),
            (1, cfa::RSP, 16),
            (3, cfa::NONE, 0),
            (4, cfa::RSP, 16),
            (9, cfa::RSP, 8),
            (10, cfa::NONE, 0)
        ]
    );
}

#[test]
fn any_bytes_are_read_to_an_end() {
    let mut seed = 0x2545_f491_4f6c_dd1d_u64;
    let mut bytes = || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed as u8
    };
    for _ in 0..200 {
        let code: Vec<u8> = (0..2000).map(|_| bytes()).collect();
        let rows = read(&code, &[0x1000, 0x1001, 0x1400, 0, u64::MAX]);
        assert!(rows.is_sorted_by(|a, b| a.0 < b.0));
    }
}

/// glibc describes all of its functions: where both know something of an instruction, they say the same.
#[test]
fn what_is_read_is_what_a_library_says_of_itself() {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps
        .lines()
        .find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.contains("/libc.so")));
    let Some(path) = path else {
        return; // a static test program has none
    };
    let data = std::fs::read(path).unwrap();
    let elf = crate::unwind::elf::ElfView::parse(&*data).unwrap();
    let library = elf.c_library.as_ref().expect("it has exit(main(…))");
    let read: Vec<(u64, UnwindRule)> = read_code(library, |_| false);
    let mut described = Vec::new();
    let mut stats = crate::unwind::CompileStats::default();
    let library_less = crate::unwind::elf::ElfView {
        c_library: None,
        ..crate::unwind::elf::ElfView::parse(&*data).unwrap()
    };
    crate::unwind::eh_frame::rules(
        &library_less,
        &|_| Vec::new(),
        &crate::unwind::interrupt::Interrupt::new(&|| false),
        &mut stats,
        |at, rule| {
            described.push((at, rule));
        },
    )
    .unwrap();
    let (mut same, mut other) = (0_u32, Vec::new());
    for (at, rule) in read
        .iter()
        .filter(|(_, rule)| matches!(rule.cfa, cfa::RSP | cfa::RBP))
    {
        let below = described.partition_point(|(begin, _)| begin <= at);
        let Some((_, theirs)) = below.checked_sub(1).map(|index| described[index]) else {
            continue;
        };
        let theirs: UnwindRule = theirs;
        if !matches!(theirs.cfa, cfa::RSP | cfa::RBP) {
            continue;
        }
        // The same address may be said by either register.
        let differs = theirs.cfa == rule.cfa && theirs.cfa_off != rule.cfa_off;
        if differs {
            other.push((*at, *rule, theirs));
        } else {
            same += 1;
        }
    }
    let wrong = other.len() as f64 / f64::from(same + 1);
    assert!(
        same > 10_000 && wrong < 0.003,
        "{same} the same, {} others: {:x?}",
        other.len(),
        &other[..other.len().min(5)]
    );
}
