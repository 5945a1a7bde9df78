//! How long does the unwind table of a file take to be built, by the size of its code?
//!
//! ```text
//! cargo run --release --example unwind_table_build -- /lib/x86_64-linux-gnu/libc.so.6 …
//! ```
//!
//! Prints one line of JSON for each file: the median CPU time of several builds, the file being in the page cache.
//! Writing the rows to the kernel is not part of it: that is a copy of `table_mib`.

use std::{fs::File, io::Write as _, path::Path};

use anyhow::Context as _;
use pyprof_bpf::unwind::{CompiledElf, compile_file};
use rustix::time::{ClockId, clock_gettime};

/// Builds of each file.
const TURNS: usize = 7;
const MIB: f64 = (1 << 20) as f64;

fn main() -> anyhow::Result<()> {
    for path in std::env::args_os().skip(1) {
        let path = Path::new(&path);
        let mut times = Vec::with_capacity(TURNS);
        let mut compiled = None;
        for _ in 0..TURNS {
            let file = File::open(path).with_context(|| format!("open {}", path.display()))?;
            let before = cpu_seconds();
            compiled = Some(
                compile_file(&file)
                    .with_context(|| format!("build the table of {}", path.display()))?,
            );
            times.push(cpu_seconds() - before);
        }
        times.sort_by(f64::total_cmp);
        if let Some(compiled) = &compiled {
            print(path, times[TURNS / 2], compiled)?;
        }
    }
    Ok(())
}

fn print(path: &Path, seconds: f64, compiled: &CompiledElf) -> anyhow::Result<()> {
    let CompiledElf {
        segments, table, ..
    } = compiled;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let code = segments.iter().filter(|segment| segment.executable);
    let text_mib = code.map(|segment| segment.file_bytes).sum::<u64>() as f64 / MIB;
    let (rows, rules) = (table.rows.len(), table.rules.len());
    // As the kernel holds them: four bytes a row, eight a page of text.
    let table_mib = (4 * rows + 8 * table.pages.len()) as f64 / MIB;
    let cpu_ms = seconds * 1e3;
    let rate = cpu_ms / text_mib;
    writeln!(
        std::io::stdout(),
        r#"{{"file":"{name}","text_mib":{text_mib:.2},"rows":{rows},"rules":{rules},"table_mib":{table_mib:.2},"cpu_ms":{cpu_ms:.2},"ms_per_text_mib":{rate:.3}}}"#
    )?;
    Ok(())
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
