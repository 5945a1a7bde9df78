//! How long does a perf map take to be read, how much memory, and how fast are its look-ups?
//!
//! ```text
//! cargo run --release --example perf_map_load -- /tmp/perf-1234.map
//! cargo run --release --example perf_map_load -- 1000000
//! ```
//!
//! Takes a map, or how many lines to generate, and prints one line of JSON. Generated lines are 70 bytes long, like those of
//! a program that makes functions all the time: arenas one below the other, addresses ascending in each.
//! `append_10_us` is the time of one refresh after ten more lines were added to the generated map.

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use pyprof_bpf::model::Avma;
use pyprof_bpf::symbols::perf_map::{
    PerfMapFile, PerfMapLimits, PerfMapLocation, PerfMapState, parse_line,
};
use rustix::time::{ClockId, clock_gettime};

const LOOKUPS: u64 = 5_000_000;

fn main() -> anyhow::Result<()> {
    let argument = std::env::args()
        .nth(1)
        .context("give a perf map, or a number of lines")?;
    let scratch = tempfile::tempdir().context("make a scratch directory")?;
    let (location, generated) = match argument.parse::<u64>() {
        Ok(lines) => (generate(scratch.path(), lines)?, Some(lines)),
        Err(_) => (location_of(&PathBuf::from(&argument))?, None),
    };
    let path = location.path();
    let bytes = fs::metadata(&path)
        .with_context(|| format!("look at {}", path.display()))?
        .len();

    let (rss_before, cpu_before) = (rss_kib()?, cpu_seconds());
    let mut file = PerfMapFile::new(location, PerfMapLimits::default());
    file.refresh();
    let (cpu, rss_kib) = (
        cpu_seconds() - cpu_before,
        rss_kib()?.saturating_sub(rss_before),
    );
    if let PerfMapState::Refused(refusal) = file.state() {
        bail!("{} is not read: {refusal}", path.display());
    }

    let (lookups_per_s, found) = look_up(&file, &starts(&fs::read(&path)?));
    let append_10_us = match generated {
        Some(lines) => {
            append(&path, lines..lines + 10)?;
            let before = cpu_seconds();
            file.refresh();
            (cpu_seconds() - before) * 1e6
        }
        None => 0.0,
    };
    let heap_mib = file.map().heap_bytes() as f64 / f64::from(1 << 20);
    writeln!(
        std::io::stdout(),
        r#"{{"entries":{},"bytes":{bytes},"cpu_s":{cpu:.3},"rss_mib":{:.1},"heap_mib":{heap_mib:.1},"lookups_per_s":{lookups_per_s:.0},"found":{found:.3},"append_10_us":{append_10_us:.1}}}"#,
        file.map().len(),
        rss_kib as f64 / 1024.0,
    )?;
    Ok(())
}

/// Where the map with this path is, as its own process would say.
fn location_of(path: &Path) -> anyhow::Result<PerfMapLocation> {
    use std::os::unix::fs::MetadataExt as _;
    let name = path
        .file_name()
        .and_then(|name| name.to_str())
        .unwrap_or_default();
    let pid = name
        .strip_prefix("perf-")
        .and_then(|name| name.strip_suffix(".map"));
    let ns_pid = pid.and_then(|pid| pid.parse().ok());
    let metadata = fs::metadata(path).with_context(|| format!("look at {}", path.display()))?;
    Ok(PerfMapLocation {
        directory: path.parent().context("a map is in a directory")?.into(),
        ns_pid: ns_pid.with_context(|| format!("{name} is not called perf-PID.map"))?,
        owner_uid: metadata.uid(),
    })
}

fn generate(directory: &Path, lines: u64) -> anyhow::Result<PerfMapLocation> {
    let path = directory.join("perf-1.map");
    File::create(&path).context("make a map")?;
    append(&path, 0..lines)?;
    location_of(&path)
}

fn append(path: &Path, lines: std::ops::Range<u64>) -> anyhow::Result<()> {
    let mut file = BufWriter::new(File::options().append(true).open(path)?);
    for line in lines {
        writeln!(
            file,
            "{:x} c py::make.<locals>.f{line:07}:/srv/site-packages/shop/x.py",
            address(line)
        )?;
    }
    file.flush().context("write a map")
}

fn address(line: u64) -> u64 {
    0x7f00_0000_0000 - ((line / 2048) << 16) + line % 2048 * 32
}

/// Where the entries of a map start.
fn starts(map: &[u8]) -> Vec<u64> {
    let lines = map.split(|&byte| byte == b'\n');
    lines
        .filter_map(|line| Some(parse_line(line).ok()?.start))
        .collect()
}

/// Look-ups per second of CPU time, of entries picked at random, and the share that found a name.
fn look_up(file: &PerfMapFile, starts: &[u64]) -> (f64, f64) {
    let before = cpu_seconds();
    let mut random = 1_u64;
    let mut found = 0_u64;
    for _ in 0..LOOKUPS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let start = starts.get((random >> 33) as usize % starts.len().max(1));
        let name = start.and_then(|&start| file.map().name_at(Avma(start)));
        found += u64::from(name.is_some_and(|name| !name.bytes.is_empty()));
    }
    let lookups = LOOKUPS as f64;
    (lookups / (cpu_seconds() - before), found as f64 / lookups)
}

fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

fn rss_kib() -> anyhow::Result<u64> {
    let status = fs::read_to_string("/proc/self/status").context("read /proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number
        .and_then(|number| number.parse().ok())
        .context("no VmRSS in /proc/self/status")
}
