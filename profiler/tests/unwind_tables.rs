//! The tables that `unwind::compile` makes of real libraries, checked against gimli row by row; and what it makes of
//! damaged ones.
#![expect(
    clippy::print_stderr,
    reason = "says what was checked, and what was skipped and why"
)]

use std::fmt;
use std::fs;
use std::io::Write;
use std::ops::RangeInclusive;
use std::path::Path;
use std::time::{Duration, Instant};

use gimli::{
    BaseAddresses, CieOrFde, EhFrame, FrameDescriptionEntry, LittleEndian, UnwindContext,
    UnwindSection,
};
use object::{Object, ObjectSection};
use proptest::prelude::{ProptestConfig, any, prop};
use proptest::{prop_assert, proptest};
use pyprof_bpf::model::Svma;
use pyprof_bpf::unwind::{CompactTable, CompiledElf, UnwindError, compile, compile_file};

use libraries::{Libraries, small_library};
use oracle::{Place, Reader, by_gimli, by_rule, interrupted, is_plain, registers};
use profiler_common::unwind_row::{UnwindRule, cfa};

#[path = "unwind_tables/eval_loop.rs"]
mod eval_loop;
#[path = "unwind_tables/libraries.rs"]
mod libraries;
#[path = "unwind_tables/oracle.rs"]
mod oracle;

/// What was compared.
#[derive(Debug, Default)]
struct Counts {
    compile_time: Duration,
    rows_stored: usize,
    rules: usize,
    functions: usize,
    rows: usize,
    addresses: usize,
    gaps: usize,
    overlaps: usize,
    unsupported_rows: usize,
    from_other_register: usize,
    ends: usize,
    signal_frames: usize,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            compile_time,
            rows_stored,
            rules,
            functions,
            rows,
            addresses,
            gaps,
            overlaps,
            ..
        } = self;
        write!(
            f,
            "{functions} functions, {rows} rows, {addresses} addresses and {gaps} gaps compared"
        )?;
        write!(
            f,
            ", {overlaps} addresses in overlaps left out; {rows_stored} rows and {rules} rules stored"
        )?;
        let Self {
            unsupported_rows,
            from_other_register,
            ends,
            signal_frames,
            ..
        } = self;
        write!(
            f,
            ", of the file's rows {unsupported_rows} unsupported, {from_other_register} from other registers"
        )?;
        write!(
            f,
            ", {ends} ends, {signal_frames} signal frames; compiled in {compile_time:.1?}"
        )
    }
}

/// `.eh_frame` as gimli sees it.
struct EhFrameSection<'a> {
    section: EhFrame<Reader<'a>>,
    bases: BaseAddresses,
}

impl<'a> EhFrameSection<'a> {
    fn of(elf: &'a [u8]) -> Self {
        let file = object::File::parse(elf).expect("a real library");
        let section = file
            .section_by_name(".eh_frame")
            .expect("real libraries have it");
        let bases = BaseAddresses::default().set_eh_frame(section.address());
        Self {
            section: EhFrame::new(section.data().expect("it is in the file"), LittleEndian),
            bases,
        }
    }

    /// All functions that have code, by address.
    fn functions(&self) -> Vec<FrameDescriptionEntry<Reader<'a>>> {
        let mut functions = Vec::new();
        let mut entries = self.section.entries(&self.bases);
        while let Some(entry) = entries.next().expect("a real library") {
            if let CieOrFde::Fde(partial) = entry {
                let function = partial
                    .parse(EhFrame::cie_from_offset)
                    .expect("a real library");
                functions.push(function);
            }
        }
        functions.retain(|function| function.len() > 0);
        functions.sort_by_key(FrameDescriptionEntry::initial_address);
        functions
    }
}

/// Compares one address; `row` is in force there.
fn compare<S: gimli::UnwindContextStorage<usize>>(
    eh_frame: &EhFrameSection<'_>,
    row: &gimli::UnwindTableRow<usize, S>,
    table: &CompactTable,
    at: u64,
    counts: &mut Counts,
) {
    let registers = registers(at ^ 0x5eed, at);
    let rule = table
        .rule_at(Svma(at))
        .unwrap_or_else(|| panic!("no rule at {at:#x} for {row:?}"));
    let expected = by_gimli(&eh_frame.section, row, &registers);
    counts.addresses += 1;
    match (rule.cfa, expected) {
        (cfa::UNSUPPORTED, _) => {
            assert!(
                !is_plain(row),
                "a plain row is unsupported at {at:#x}: {row:?}"
            );
            counts.unsupported_rows += usize::from(at == row.start_address());
        }
        (cfa::END, Some(expected)) => {
            assert_eq!(expected.places[0], Place::Undefined, "{at:#x}");
            counts.ends += usize::from(at == row.start_address());
        }
        (cfa::SIGNAL, Some(expected)) => {
            assert_eq!(interrupted(&registers), expected, "{at:#x}");
            counts.signal_frames += usize::from(at == row.start_address());
        }
        (kind, Some(expected)) => {
            assert_eq!(
                by_rule(rule, &registers, &expected),
                expected,
                "{at:#x}: {rule:?} for {row:?}"
            );
            counts.from_other_register +=
                usize::from(kind == cfa::REG && at == row.start_address());
        }
        (_, None) => panic!("a rule where gimli has no frame address, at {at:#x}: {row:?}"),
    }
}

/// Compares the first, a middle and the last address of each row, and the gaps between functions.
fn check(elf: &[u8]) -> Counts {
    let begun = Instant::now();
    let compiled = compile(elf).expect("a real library");
    let compile_time = begun.elapsed();
    let eh_frame = EhFrameSection::of(elf);
    let functions = eh_frame.functions();
    let mut context = UnwindContext::new();
    let mut counts = Counts {
        compile_time,
        rows_stored: compiled.table.rows.len(),
        rules: compiled.table.rules.len(),
        functions: functions.len(),
        ..Counts::default()
    };
    for (n, function) in functions.iter().enumerate() {
        let next = functions
            .get(n + 1)
            .map_or(u64::MAX, FrameDescriptionEntry::initial_address);
        let mut rows = function
            .rows(&eh_frame.section, &eh_frame.bases, &mut context)
            .expect("a real library");
        while let Some(row) = rows.next_row().expect("a real library") {
            let (begin, end) = (row.start_address(), row.end_address());
            if begin >= end {
                continue;
            }
            counts.rows += 1;
            for at in [begin, begin + (end - begin) / 2, end - 1] {
                if at < next {
                    compare(&eh_frame, row, &compiled.table, at, &mut counts);
                } else {
                    counts.overlaps += 1;
                }
            }
        }
        let end = function.end_address();
        if next > end && next != u64::MAX {
            counts.gaps += 1;
            let last = compiled.table.rule_at(Svma(end - 1));
            let expected = if next - end < 16 { last } else { None };
            let in_gap = compiled.table.rule_at(Svma(end));
            // Stubs that `.eh_frame` says nothing about have rules of their own.
            let is_stub = next - end >= 16
                && in_gap.is_some_and(|rule| matches!(rule.cfa, cfa::RSP | cfa::PLT));
            assert!(in_gap == expected || is_stub, "gap at {end:#x}: {in_gap:?}");
        }
    }
    let stats = compiled.table.stats;
    assert_eq!(
        (
            stats.malformed_entries,
            stats.dropped_rows,
            stats.dropped_rules
        ),
        (0, 0, 0)
    );
    assert_eq!(stats.rows_read as usize, counts.rows);
    counts
}

#[test]
fn every_row_of_real_libraries_means_what_gimli_says() {
    let libraries = Libraries::find();
    for reason in &libraries.skipped {
        eprintln!("skipped: {reason}");
    }
    match libraries::vdso() {
        Some(elf) => check_and_tell("[vdso]", &elf),
        None => eprintln!("skipped: [vdso]: not mapped, or not readable"),
    }
    for path in &libraries.paths {
        let elf = fs::read(path).expect("it was just found");
        check_and_tell(&path.display().to_string(), &elf);
    }
}

fn check_and_tell(name: &str, elf: &[u8]) {
    let counts = check(elf);
    eprintln!("{name}: {counts}");
    assert!(
        counts.unsupported_rows * 100 <= counts.rows,
        "more than 1 % unsupported"
    );
}

/// A copy without section headers, as left by `strip --strip-section-headers` or by packers.
fn without_section_headers(elf: &[u8]) -> Vec<u8> {
    let mut copy = elf.to_vec();
    copy[40..48].fill(0); // e_shoff
    copy[60..64].fill(0); // e_shnum, e_shstrndx
    copy
}

#[test]
fn section_headers_are_not_needed() {
    for path in Libraries::find().paths {
        let elf = fs::read(&path).expect("it was just found");
        let whole = compile(&elf).expect("a real library");
        let stripped =
            compile(&without_section_headers(&elf)).expect("the segments are still there");
        assert_eq!(stripped.segments, whole.segments);
        // Without symbols there is no loop.
        assert_eq!(stripped.evaluation_loop, []);
        // LLVM's linker describes no jump stubs: they are known by their section alone.
        let stubs = stub_ranges(&elf);
        let is_stub = |at: u64| stubs.iter().any(|range| range.contains(&at));
        let rows = |elf: &CompiledElf| {
            let mut rows = unmarked(&elf.table);
            rows.retain(|(at, _)| !is_stub(*at));
            rows
        };
        assert!(rows(&stripped) == rows(&whole), "{}", path.display());
    }
}

/// Where the sections of jump stubs lie, with the address behind each, where their rules end.
fn stub_ranges(elf: &[u8]) -> Vec<RangeInclusive<u64>> {
    let file = object::File::parse(elf).expect("a real library");
    let stubs = file
        .sections()
        .filter(|section| section.name().is_ok_and(|name| name.starts_with(".plt")));
    let ranges = stubs.map(|section| section.address()..=section.address() + section.size());
    ranges.collect()
}

/// Each rule without its marks, where it begins to be in force.
fn unmarked(table: &CompactTable) -> Vec<(u64, UnwindRule)> {
    let rows = eval_loop::row_addresses(table).map(|at| {
        let rule = table.rule_at(Svma(at)).copied().unwrap_or_default();
        (at, UnwindRule { flags: 0, ..rule })
    });
    let mut rows: Vec<_> = rows.collect();
    rows.dedup_by_key(|(_, rule)| *rule);
    rows
}

/// Where `.eh_frame` lies in the file.
fn eh_frame_range(elf: &[u8]) -> (usize, usize) {
    let file = object::File::parse(elf).expect("a real library");
    let section = file
        .section_by_name(".eh_frame")
        .expect("real libraries have it");
    let (offset, bytes) = section.file_range().expect("it is in the file");
    (offset as usize, bytes as usize)
}

/// Compiles, looks up every page's borders, and tells how long it took.
fn compile_anything(elf: &[u8]) -> Duration {
    let begun = Instant::now();
    match compile(elf) {
        Ok(compiled) => {
            let first = u64::from(compiled.table.first_page) << 12;
            for page in 0..=compiled.table.pages.len() as u64 {
                for at in [0, 1, 4095] {
                    let _ = compiled.table.rule_at(Svma(first + (page << 12) + at));
                }
            }
            let rules = compiled.table.rules.len();
            assert!(
                compiled
                    .table
                    .rows
                    .iter()
                    .all(|row| (row.rule as usize) < rules)
            );
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    begun.elapsed()
}

/// Generous: the machine that runs the tests may be busy.
const TIME_MAX: Duration = Duration::from_secs(5);

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn flipped_bytes_neither_panic_nor_hang(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..32)) {
        let mut elf = small_library();
        for (index, byte) in flips {
            let at = index.index(elf.len());
            elf[at] = byte;
        }
        prop_assert!(compile_anything(&elf) < TIME_MAX);
    }

    #[test]
    fn flipped_bytes_in_the_headers_neither_panic_nor_hang(flips in prop::collection::vec((0_usize..800, any::<u8>()), 1..6)) {
        let mut elf = small_library();
        for (at, byte) in flips {
            elf[at] = byte;
        }
        prop_assert!(compile_anything(&elf) < TIME_MAX);
    }

    #[test]
    fn flipped_bytes_in_eh_frame_neither_panic_nor_hang(flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..16)) {
        let mut elf = small_library();
        let (begin, bytes) = eh_frame_range(&elf);
        for (index, byte) in flips {
            elf[begin + index.index(bytes)] = byte;
        }
        prop_assert!(compile_anything(&elf) < TIME_MAX);
    }

    #[test]
    fn a_file_cut_short_neither_panics_nor_hangs(end in any::<prop::sample::Index>()) {
        let mut elf = small_library();
        elf.truncate(end.index(elf.len()));
        prop_assert!(compile_anything(&elf) < TIME_MAX);
    }
}

#[test]
fn a_file_gives_the_same_table_as_its_bytes() {
    for path in Libraries::find().paths {
        let from_bytes =
            compile(&fs::read(&path).expect("it was just found")).expect("a real library");
        let file = fs::File::open(&path).expect("it was just found");
        let from_file = compile_file(&file).expect("a real library");
        assert_eq!(from_file.segments, from_bytes.segments);
        assert!(from_file.table == from_bytes.table, "{}", path.display());
    }
}

/// A sparse file costs its maker nothing, so it must not cost the profiler what it claims to hold.
#[test]
fn a_section_of_a_sparse_file_is_not_read_for_its_size_alone() {
    let mut elf = small_library();
    let headers = u64::from_le_bytes(elf[40..48].try_into().expect("eight bytes")) as usize;
    for header in elf[headers..].chunks_exact_mut(64) {
        header[32..40].copy_from_slice(&(1_u64 << 40).to_le_bytes()); // sh_size
    }
    let mut file = tempfile::tempfile().expect("a folder for temporary files");
    file.write_all(&elf).expect("room for a small file");
    file.set_len(1 << 42)
        .expect("a file system with sparse files");
    let begun = Instant::now();
    let compiled = compile_file(&file).expect("the program headers still lead to the information");
    assert!(begun.elapsed() < TIME_MAX);
    assert!(!compiled.table.rows.is_empty());
}

#[test]
fn what_is_not_a_library_is_refused() {
    let script = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml"))
        .expect("cargo needs it, too");
    assert_eq!(compile(&script).map(|_| ()), Err(UnwindError::NotElf));
}
