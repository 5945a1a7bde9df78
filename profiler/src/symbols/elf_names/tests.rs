use object::elf;

use super::testing::{DATA, FileOf, INIT, TEXT};
use super::*;

const GLOBAL: (u8, u8) = (elf::STB_GLOBAL, elf::STT_FUNC);
const LOCAL: (u8, u8) = (elf::STB_LOCAL, elf::STT_FUNC);
const WEAK: (u8, u8) = (elf::STB_WEAK, elf::STT_FUNC);
const LABEL: (u8, u8) = (elf::STB_LOCAL, elf::STT_NOTYPE);
const GLOBAL_LABEL: (u8, u8) = (elf::STB_GLOBAL, elf::STT_NOTYPE);

fn read(file: FileOf) -> ElfNames<'static> {
    ElfNames::read(file.finish(elf::SHT_SYMTAB).leak(), None).expect("an ELF file")
}

/// The name, `name@plt`, `+START` or `-`.
fn shown(names: &ElfNames<'_>, at: u64) -> String {
    let Some(symbol) = names.look_up(Svma(at)) else {
        return "-".to_owned();
    };
    assert!(symbol.start.0 <= at);
    match symbol.name {
        Some(name) if symbol.is_stub => format!("{}@plt", String::from_utf8_lossy(name)),
        Some(name) => String::from_utf8_lossy(name).into_owned(),
        None => format!("+{:#x}", symbol.start.0),
    }
}

fn check(names: &ElfNames<'_>, expected: &[(u64, &str)]) {
    for &(at, name) in expected {
        assert_eq!(shown(names, at), name, "at {at:#x}");
    }
}

#[test]
fn no_symbol_reaches_past_its_size_or_its_section() {
    let mut file = FileOf::code();
    file.symbol("_init", GLOBAL, INIT, (0x1000, 0));
    file.function("sized", 0x3010, 0x20);
    file.function("too_large", 0x3ff0, 0x5000);
    let names = read(file);
    check(
        &names,
        &[
            (0xfff, "-"),
            (0x1000, "_init"),
            (0x100f, "_init"),
            (0x1010, "-"),
            (0x2fff, "-"),
            (0x300f, "-"),
            (0x3010, "sized"),
            (0x302f, "sized"),
            (0x3030, "-"),
            (0x3fff, "too_large"),
            (0x4000, "-"),
            (u64::MAX, "-"),
        ],
    );
}

#[test]
fn assembler_without_sizes_reaches_to_the_next_symbol_or_the_end_of_its_function() {
    let mut file = FileOf::code();
    file.symbol("first", GLOBAL_LABEL, TEXT, (0x3000, 0));
    file.symbol("second", LABEL, TEXT, (0x3040, 0));
    file.symbol(
        "constants",
        (elf::STB_LOCAL, elf::STT_OBJECT),
        TEXT,
        (0x3050, 0),
    );
    file.symbol("described", GLOBAL, TEXT, (0x3100, 0));
    file.symbol("before_a_function", GLOBAL, TEXT, (0x3200, 0));
    file.symbol("last", GLOBAL, TEXT, (0x3300, 0));
    file.described(&[(0x3100, 0x3120), (0x3210, 0x3220)]);
    let names = read(file);
    check(
        &names,
        &[
            (0x303f, "first"),
            (0x3040, "second"),
            (0x304f, "second"),
            (0x3050, "-"),
            (0x311f, "described"),
            (0x3120, "-"),
            (0x320f, "before_a_function"),
            (0x3210, "+0x3210"),
            (0x3220, "-"),
            (0x3fff, "last"),
            (0x4000, "-"),
        ],
    );
}

#[test]
fn labels_inside_of_a_function_are_part_of_it() {
    let mut file = FileOf::code();
    file.symbol("assembler", GLOBAL, TEXT, (0x3000, 0));
    file.symbol("loop", LABEL, TEXT, (0x3010, 0));
    file.symbol("other_entry", GLOBAL_LABEL, TEXT, (0x3020, 0));
    file.symbol("compiled", GLOBAL, TEXT, (0x3100, 0x40));
    file.symbol("inside", LABEL, TEXT, (0x3110, 0));
    file.described(&[(0x3000, 0x3040), (0x3100, 0x3140)]);
    let names = read(file);
    check(
        &names,
        &[
            (0x3010, "assembler"),
            (0x3020, "other_entry"),
            (0x303f, "other_entry"),
            (0x3120, "compiled"),
            (0x3140, "-"),
        ],
    );
}

#[test]
fn of_symbols_within_one_another_the_inner_one_counts() {
    let mut file = FileOf::code();
    file.function("outer", 0x3000, 0x100);
    file.function("inner", 0x3020, 0x20);
    file.function("innermost", 0x3030, 0x8);
    file.function("across", 0x30f0, 0x20);
    let names = read(file);
    check(
        &names,
        &[
            (0x3000, "outer"),
            (0x3020, "inner"),
            (0x3037, "innermost"),
            (0x3038, "inner"),
            (0x3040, "outer"),
            (0x30f0, "across"),
            (0x3100, "across"),
            (0x310f, "across"),
            (0x3110, "-"),
        ],
    );
}

#[test]
fn of_several_names_the_public_and_plain_one_is_taken() {
    let mut file = FileOf::code();
    for (name, kind) in [
        ("local", LOCAL),
        ("weak", WEAK),
        ("__global", GLOBAL),
        ("global_of_that", GLOBAL),
        ("global", GLOBAL),
        ("globbl", GLOBAL),
        ("label", GLOBAL_LABEL),
    ] {
        file.symbol(name, kind, TEXT, (0x3000, 0x10));
    }
    file.symbol("longer", LOCAL, TEXT, (0x3000, 0x20));
    file.symbol("without_size", GLOBAL, TEXT, (0x3000, 0));
    file.symbol("memcpy@@GLIBC_2.14", GLOBAL, TEXT, (0x3100, 0x10));
    let names = read(file);
    check(
        &names,
        &[
            (0x3000, "global"),
            (0x3010, "longer"),
            (0x3020, "-"),
            (0x3100, "memcpy"),
        ],
    );
}

#[test]
fn what_names_no_code_is_no_name() {
    let mut file = FileOf::code();
    for (name, kind, section) in [
        ("", GLOBAL, TEXT),
        ("undefined", GLOBAL, elf::SHN_UNDEF),
        ("absolute", GLOBAL, elf::SHN_ABS),
        ("in_data", GLOBAL, DATA),
        ("elsewhere", GLOBAL, INIT),
        ("no_section", GLOBAL, 77),
        ("section", (elf::STB_LOCAL, elf::STT_SECTION), TEXT),
        ("file.c", (elf::STB_LOCAL, elf::STT_FILE), TEXT),
        ("variable", (elf::STB_GLOBAL, elf::STT_OBJECT), TEXT),
        ("thread_local", (elf::STB_GLOBAL, elf::STT_TLS), TEXT),
        ("$x", LABEL, TEXT),
        ("$d.17", LABEL, TEXT),
        (".L3", LABEL, TEXT),
        (".annobin_file.c", LABEL, TEXT),
    ] {
        file.symbol(name, kind, section, (0x3000, 0x10));
    }
    check(&read(file), &[(0x3000, "-"), (0x3008, "-")]);
}

#[test]
fn a_function_without_a_symbol_is_known_by_where_it_begins() {
    let mut file = FileOf::code();
    file.function("named", 0x3000, 0x10);
    // The second lies in no code; the others overlap.
    file.described(&[
        (0x3000, 0x3040),
        (0x7000, 0x7100),
        (0x3100, 0x3200),
        (0x3180, 0x3190),
    ]);
    let names = read(file);
    check(
        &names,
        &[
            (0x300f, "named"),
            (0x3010, "+0x3000"),
            (0x3040, "-"),
            (0x7000, "-"),
            (0x317f, "+0x3100"),
            (0x3180, "+0x3180"),
            (0x3190, "-"),
        ],
    );
}

#[test]
fn jump_stubs_have_the_names_of_what_they_jump_to() {
    let mut file = FileOf::code();
    let slot = |at: u64, code: u64| ((at as i64 - (code as i64 + 6)) as i32).to_le_bytes();
    let jump = |at: u64, to_slot: u64| [&[0xff, 0x25][..], &slot(to_slot, at)].concat();
    let push = |number: u32| [&[0x68][..], &number.to_le_bytes()].concat();
    let mut lazy = vec![0x90; 16];
    for (at, number) in [(0x2010, 0), (0x2020, 1), (0x2030, 2)] {
        let mut stub = jump(at, 0x8018 + u64::from(number) * 8);
        stub.extend(push(number));
        stub.resize(16, 0x90);
        lazy.extend(stub);
    }
    // By number alone, as with -z ibtplt.
    lazy.extend([&[0xf3, 0x0f, 0x1e, 0xfa][..], &push(1), &[0x90; 7]].concat());
    file.add_code(".plt", 0x2000, &lazy);
    let mut short = jump(0x2100, 0x8100);
    short.extend([0x66, 0x90]);
    short.extend(jump(0x2108, 0x8108));
    short.extend([0x66, 0x90]);
    file.add_code(".plt.got", 0x2100, &short);
    let got = elf::SHF_ALLOC | elf::SHF_WRITE;
    file.add(".got", elf::SHT_NOBITS, got, 0x8100, 0x100, &[]);

    let undefined = |file: &mut FileOf, name| file.symbol(name, GLOBAL, elf::SHN_UNDEF, (0, 0));
    let malloc = undefined(&mut file, "malloc@GLIBC_2.2.5");
    let free = undefined(&mut file, "free");
    let ifunc = (elf::STB_LOCAL, elf::STT_GNU_IFUNC);
    file.symbol("memcpy", ifunc, TEXT, (0x3000, 0x10));
    file.function("own", 0x3100, 0x10);
    // What some linkers leave in the sections of stubs.
    file.symbol("_init", GLOBAL, INIT, (0x1000, 0));
    file.relocations(
        ".rela.plt",
        &[
            (0x8018, elf::R_X86_64_JUMP_SLOT, malloc, 0),
            (0x8020, elf::R_X86_64_IRELATIVE, 0, 0x3000),
            (0x8028, elf::R_X86_64_IRELATIVE, 0, 0x3800),
        ],
    );
    file.relocations(
        ".rela.dyn",
        &[
            (0x8100, elf::R_X86_64_GLOB_DAT, free, 0),
            (0x8108, elf::R_X86_64_RELATIVE, 0, 0x3100),
            (0x8800, elf::R_X86_64_RELATIVE, 0, 0x3100),
        ],
    );
    let file = file.finish(elf::SHT_DYNSYM);
    let names = ElfNames::read(&file, None).expect("an ELF file");
    check(
        &names,
        &[
            (0x1fff, "-"),
            (0x2000, "+0x2000"),
            (0x200f, "+0x2000"),
            (0x2010, "malloc@plt"),
            (0x201f, "malloc@plt"),
            (0x2028, "memcpy@plt"),
            (0x2030, "+0x2030"),
            (0x2044, "memcpy@plt"),
            (0x2050, "-"),
            (0x2106, "free@plt"),
            (0x2108, "own@plt"),
            (0x2110, "-"),
        ],
    );
}

#[test]
fn symbols_that_were_split_off_name_the_file_they_come_from() {
    let mut own = FileOf::code();
    own.function("exported", 0x3000, 0x10);
    own.described(&[(0x3000, 0x3010), (0x3100, 0x3110)]);
    let own = own.finish(elf::SHT_DYNSYM);
    let mut separate = FileOf::code();
    separate.function("hidden", 0x3100, 0);
    let separate = separate.finish(elf::SHT_SYMTAB);
    let expected = [(0x3000, "exported"), (0x310f, "hidden"), (0x3110, "-")];
    check(
        &ElfNames::read(&own, Some(&separate)).expect("an ELF file"),
        &expected,
    );
    assert_eq!(
        shown(
            &ElfNames::read(&own, Some(b"")).expect("an ELF file"),
            0x3100
        ),
        "+0x3100"
    );
}

#[test]
fn what_is_no_elf_file_is_refused() {
    for file in [&b""[..], b"\x7fELF", &[0x7f; 64]] {
        assert_eq!(
            ElfNames::read(file, None).err(),
            Some(ElfNamesError::NotElf)
        );
    }
    let mut file = FileOf::code().finish(elf::SHT_SYMTAB);
    file[40] ^= 0x80;
    file[47] = 1;
    let error = ElfNames::read(&file, None).err();
    assert_eq!(error, Some(ElfNamesError::NoSections));
}

/// A file whose symbols lie one within the other, or all at one address, must cost no more than its size.
#[test]
fn many_symbols_at_one_address_are_read_at_once() {
    let mut file = FileOf::code();
    for number in 0..200_000_u64 {
        file.symbol("same", GLOBAL, TEXT, (0x3000, number % 3 * 0x100));
        file.symbol(
            "nested",
            GLOBAL,
            TEXT,
            (0x3000 + number % 0x800, 0x1000 - number % 0x800),
        );
    }
    let names = read(file);
    check(
        &names,
        &[(0x3000, "same"), (0x3fff, "nested"), (0x4000, "-")],
    );
}

/// Files made by GNU ld, as `nm` and `objdump` show them.
fn linked(file: &str) -> ElfNames<'static> {
    let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../fuzz/corpus/elf_names/");
    let bytes = std::fs::read(format!("{corpus}{file}")).expect("it is there");
    ElfNames::read(bytes.leak(), None).expect("an ELF file")
}

#[test]
fn linked_files_are_read_as_their_linker_meant_them() {
    let stubs = [
        (0x360, "+0x360"),
        (0x370, "ext2@plt"),
        (0x38f, "ext1@plt"),
        (0x390, "by_cpu@plt"),
        (0x3a0, "ext3@plt"),
    ];
    let public = [(0x3e7, "visible"), (0x415, "by_cpu"), (0x41d, "calls")];
    let whole = linked("symbols");
    check(&whole, &stubs);
    check(&whole, &public);
    let static_functions = [(0x3aa, "label"), (0x3ad, "chosen"), (0x3e6, "hidden")];
    check(&whole, &static_functions);
    check(&whole, &[(0x3a8, "assembler"), (0x3ac, "second")]);

    let stripped = linked("stripped");
    check(&stripped, &stubs);
    check(&stripped, &public);
    let starts = [(0x3aa, "assembler"), (0x3ad, "+0x3ad"), (0x3e6, "+0x3b0")];
    check(&stripped, &starts);

    check(
        &linked("indirect-branch-tracking"),
        &[
            (0x410, "ext3@plt"),
            (0x42f, "ext2@plt"),
            (0x430, "ext1@plt"),
            (0x440, "by_cpu@plt"),
            (0x4d5, "calls"),
        ],
    );
}

#[test]
fn static_functions_are_named_by_mini_debug_info() {
    let names = linked("mini-debug-info");
    check(
        &names,
        &[
            (0x370, "ext2@plt"),
            (0x3ad, "chosen"),
            (0x3b0, "hidden"),
            (0x3e6, "hidden"),
            (0x3e7, "visible"),
            (0x41d, "calls"),
        ],
    );
}

/// 40 KB that unpack to 256 MiB, and 260 bytes that want a dictionary of 4 GiB.
#[test]
fn mini_debug_info_that_wants_too_much_memory_is_left_out() {
    for file in ["mini-debug-info-bomb", "mini-debug-info-of-4-gib"] {
        let names = linked(file);
        check(&names, &[(0x3b0, "+0x3b0"), (0x3e7, "visible")]);
        assert!(names.bytes() < 1 << 20, "{}", names.bytes());
    }
}
