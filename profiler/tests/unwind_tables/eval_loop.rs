//! Which code of real interpreters is taken for the evaluation loop, checked against their symbols.

use std::fs;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use object::{Object, ObjectSymbol, SymbolKind};
use profiler_common::unwind_row::rule_flags;
use proptest::prelude::{ProptestConfig, any, prop};
use proptest::{prop_assert, proptest};
use pyprof_bpf::model::Svma;
use pyprof_bpf::unwind::{CompactTable, CompiledElf, LoopEvidence, LoopPart, compile};

use super::libraries::{Libraries, interpreters};
use super::{TIME_MAX, compile_anything};

/// The function, and what the names of its parts and copies begin with.
const LOOP: &str = "_PyEval_EvalFrameDefault";
/// Parts that are smaller may be reached by nothing but a table of jumps: code behind `Py_UNREACHABLE()`, which never
/// runs (4 bytes in 3.11.7, 8 in 3.12.1).
const PART_BYTES_MIN: u64 = 64;

/// Where the loop lies by its symbols; empty where there is none.
fn by_symbols(elf: &[u8]) -> Vec<Range<u64>> {
    let file = object::File::parse(elf).expect("a real library");
    let symbols = file.symbols().chain(file.dynamic_symbols());
    let of_loop = symbols.filter(|symbol| {
        let name = symbol.name().unwrap_or_default();
        let suffix = name.strip_prefix(LOOP);
        let is_defined = symbol.is_definition() && symbol.kind() == SymbolKind::Text;
        is_defined && suffix.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    });
    let mut ranges: Vec<Range<u64>> = of_loop
        .map(|symbol| symbol.address()..symbol.address() + symbol.size())
        .collect();
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup();
    ranges
}

fn range(part: &LoopPart) -> Range<u64> {
    part.begin.0..part.end.0
}

/// Each row in a part is marked, and no other one is.
fn check_marks(CompiledElf { table, .. }: &CompiledElf, parts: &[LoopPart]) {
    let mut marked = 0;
    for at in row_addresses(table) {
        let rule = table.rule_at(Svma(at)).copied().unwrap_or_default();
        let is_marked = rule.flags & rule_flags::EVALUATION_LOOP != 0;
        let is_inside = parts.iter().any(|part| range(part).contains(&at));
        assert_eq!(is_marked, is_inside, "{at:#x}");
        marked += usize::from(is_marked);
    }
    assert!(marked >= parts.len());
}

/// Where rows begin.
pub(crate) fn row_addresses(table: &CompactTable) -> impl Iterator<Item = u64> {
    let pages = (u64::from(table.first_page)..).zip(&table.pages);
    pages.flat_map(|(number, page)| {
        let first = page.first_row as usize;
        let rows = &table.rows[first..first + usize::from(page.count)];
        rows.iter()
            .map(move |row| (number << 12) + u64::from(row.offset))
    })
}

/// As `strip` leaves it. `None`: there is no `strip`.
fn stripped(path: &Path) -> Option<Vec<u8>> {
    let to = tempfile::NamedTempFile::new().expect("a folder for temporary files");
    let mut strip = Command::new("strip");
    let status = strip.arg("-o").arg(to.path()).arg(path).status().ok()?;
    assert!(status.success(), "strip {}", path.display());
    Some(fs::read(to.path()).expect("it was just written"))
}

/// A library whose loop has a cold part, as a compiler with a profile makes one of CPython's. `None`: no compiler is
/// there, or not one that does so.
fn small_interpreter() -> Option<tempfile::NamedTempFile> {
    const SOURCE: &str = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/unwind_tables/eval_loop.c"
    );
    let library = tempfile::NamedTempFile::new().expect("a folder for temporary files");
    let mut cc = Command::new("cc");
    cc.args(["-O2", "-shared", "-fPIC", SOURCE, "-o"]);
    let status = cc.arg(library.path()).status().ok()?;
    assert!(status.success(), "cc {SOURCE}");
    let elf = fs::read(library.path()).expect("it was just written");
    (by_symbols(&elf).len() == 2).then_some(library)
}

/// Checks a file with its symbols and without them, and tells what was found.
fn check(path: &Path) {
    let elf = fs::read(path).expect("it was just found");
    let expected = by_symbols(&elf);
    let compiled = compile(&elf).expect("a real library");
    let parts = &compiled.evaluation_loop;
    check_marks(&compiled, parts);
    let by_name = parts.iter().filter(|it| it.found == LoopEvidence::Name);
    assert_eq!(
        by_name.map(range).collect::<Vec<_>>(),
        expected,
        "{}",
        path.display()
    );
    if expected.is_empty() {
        assert_eq!(*parts, [], "{}", path.display());
        return;
    }
    for part in parts {
        let bytes = part.end.0 - part.begin.0;
        eprintln!("{}: {bytes} bytes by {:?}", path.display(), part.found);
    }
    let Some(stripped) = stripped(path) else {
        eprintln!("skipped: without symbols: there is no `strip`");
        return;
    };
    let compiled = compile(&stripped).expect("only symbols are gone");
    check_marks(&compiled, &compiled.evaluation_loop);
    let large = |parts: &[LoopPart]| {
        let ranges = parts.iter().map(range);
        let large = ranges.filter(|range| range.end - range.start >= PART_BYTES_MIN);
        large.collect::<Vec<_>>()
    };
    assert_eq!(
        large(&compiled.evaluation_loop),
        large(parts),
        "{} without symbols",
        path.display()
    );
}

#[test]
fn the_evaluation_loop_of_interpreters_is_marked_and_nothing_else() {
    let found = interpreters();
    if found.is_empty() {
        eprintln!("skipped: there is no Python");
    }
    for path in found.iter().chain(&Libraries::find().paths) {
        check(path);
    }
}

#[test]
fn a_cold_part_is_found_by_jumps_where_its_symbol_is_gone() {
    let Some(library) = small_interpreter() else {
        eprintln!("skipped: there is no `cc` that makes cold parts");
        return;
    };
    check(library.path());
    let Some(stripped) = stripped(library.path()) else {
        eprintln!("skipped: there is no `strip`");
        return;
    };
    let parts = compile(&stripped).expect("a whole file").evaluation_loop;
    let by_jumps = parts
        .iter()
        .filter(|part| matches!(part.found, LoopEvidence::Jumps(4..)));
    assert_eq!((by_jumps.count(), parts.len()), (1, 2));
}

/// Of the small interpreter, stripped; or what is as small.
fn hostile_start() -> Vec<u8> {
    let stripped = small_interpreter().and_then(|library| stripped(library.path()));
    stripped.unwrap_or_else(super::small_library)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 8, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_interpreter_neither_panics_nor_hangs(seeds in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..32), 64)) {
        let whole = hostile_start();
        for flips in seeds {
            let mut elf = whole.clone();
            for (index, byte) in flips {
                let at = index.index(elf.len());
                elf[at] = byte;
            }
            prop_assert!(compile_anything(&elf) < TIME_MAX);
        }
    }
}
