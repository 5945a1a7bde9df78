//! Stages on their own, as programs below `profiler/examples` that print JSON.

use std::process::Command;

use anyhow::{Context as _, Result};

use super::table::{Table, number};
use crate::{
    command, host,
    pythons::{self, Python},
};

/// Times the perf map is read.
const TURNS: usize = 3;
/// Entries of the perf map.
const ENTRIES: &str = "1000000";
/// CPU seconds and memory in MiB for it that should do.
const MAP_CPU_GOAL: f64 = 0.5;
const MAP_MEMORY_GOAL: f64 = 150.0;

/// Prints the files that a Python has mapped as code once it has loaded what it can.
const ASK_FOR_FILES: &str = "
for name in ('ssl', 'numpy'):
    try:
        __import__(name)
    except ImportError:
        pass
for line in open('/proc/self/maps'):
    fields = line.split(None, 5)
    if 'x' in fields[1] and len(fields) == 6 and fields[5][0] == '/':
        print(fields[5].rstrip())
";
/// The files worth a row: how their names begin.
const FILES: [&str; 6] = [
    "libpython3",
    "python3",
    "libc.so",
    "libcrypto",
    "libopenblas",
    "libscipy_openblas",
];

const MAP: &str = "A perf map of 1,000,000 entries";
const TABLES: &str = "Unwind tables, built from files";

/// Fills in both sections.
pub(super) fn measure(python: &Python, table: &mut Table) -> Result<()> {
    for turn in 0..TURNS {
        eprintln!("perf map: turn {} of {TURNS}", turn + 1);
        let json = example("perf_map_load", &[ENTRIES.to_owned()])?;
        let get = |key: &str| number(&json, key).with_context(|| format!("no {key} in {json}"));
        let (cpu, entries) = (get("cpu_s")?, get("entries")?);
        let mut add = |what: &str, value, unit, goal| table.add(MAP, what, value, unit, goal);
        add("CPU to read it", cpu, "s", Some(MAP_CPU_GOAL));
        add("entries read", entries / cpu / 1e6, "M/s", None);
        add("memory", get("rss_mib")?, "MiB", Some(MAP_MEMORY_GOAL));
        add("look-ups", get("lookups_per_s")? / 1e6, "M/s", None);
        add("ten entries more", get("append_10_us")?, "us", None);
    }

    eprintln!("unwind tables");
    // With numpy's libraries where they are.
    let asked = pythons::environment(python).unwrap_or_else(|_| python.path.clone());
    let mapped = command::output(Command::new(asked).args(["-c", ASK_FOR_FILES]))?;
    let mut files: Vec<String> = Vec::new();
    for path in mapped.lines() {
        let is_wanted = FILES.iter().any(|begin| name_of(path).starts_with(begin));
        if is_wanted && !files.iter().any(|known| known == path) {
            files.push(path.to_owned());
        }
    }
    // A program in front of a library holds next to nothing.
    if files
        .iter()
        .any(|path| name_of(path).starts_with("libpython"))
    {
        files.retain(|path| !name_of(path).starts_with("python"));
    }
    let (mut cpu, mut text) = (0.0, 0.0);
    for line in example("unwind_table_build", &files)?.lines() {
        let get = |key: &str| number(line, key).with_context(|| format!("no {key} in {line}"));
        let name = line.split('"').nth(3).unwrap_or_default();
        let rate = get("ms_per_text_mib")?;
        table.add(
            TABLES,
            format!("{name}: CPU a MiB of text"),
            rate,
            "ms",
            None,
        );
        cpu += get("cpu_ms")?;
        text += get("text_mib")?;
    }
    table.add(TABLES, "all of these, text", text, "MiB", None);
    table.add(TABLES, "all of these, CPU", cpu, "ms", None);
    Ok(())
}

fn name_of(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or_default()
}

/// What an example of the profiler prints.
fn example(name: &str, arguments: &[String]) -> Result<String> {
    let mut cargo = Command::new("cargo");
    cargo.args(["run", "--quiet", "--release", "--package", "pyprof-bpf"]);
    cargo.args(["--example", name, "--"]).args(arguments);
    command::output(cargo.current_dir(host::workspace()))
}
