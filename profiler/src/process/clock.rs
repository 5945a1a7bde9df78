//! From the kernel's clocks to the one that files are stamped with.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use crate::model::KtimeNs;

/// File times come from the last timer tick, up to 10 ms ago (`ktime_get_coarse_real_ts64`, kernel/time/timekeeping.c,
/// with `CONFIG_HZ_100`), and starts of processes are told in steps of 10 ms.
const COARSE: Duration = Duration::from_millis(20);

/// Now, by `CLOCK_BOOTTIME`.
pub fn now_since_boot() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32)
}

/// Now, by the clock of samples (`CLOCK_MONOTONIC`, as of `bpf_ktime_get_ns`).
pub fn now_monotonic() -> KtimeNs {
    let now = clock_gettime(ClockId::Monotonic);
    let nanoseconds = Duration::new(now.tv_sec.unsigned_abs(), now.tv_nsec as u32).as_nanos();
    KtimeNs(u64::try_from(nanoseconds).unwrap_or(u64::MAX))
}

/// A moment by the clock of file times, in seconds and nanoseconds since 1970, as early as it may have been.
///
/// `since_boot` is by `CLOCK_BOOTTIME`. Right as long as nobody has set the clock since.
pub fn file_time_at(since_boot: Duration) -> (i64, i64) {
    let now = clock_gettime(ClockId::Realtime);
    let ago = now_since_boot().saturating_sub(since_boot) + COARSE;
    let nanoseconds = i128::from(now.tv_sec) * 1_000_000_000 + i128::from(now.tv_nsec)
        - i128::try_from(ago.as_nanos()).unwrap_or(0);
    (
        nanoseconds.div_euclid(1_000_000_000) as i64,
        nanoseconds.rem_euclid(1_000_000_000) as i64,
    )
}

#[cfg(test)]
mod tests {
    use std::{os::unix::fs::MetadataExt as _, thread::sleep};

    use super::*;

    #[test]
    fn a_file_written_now_is_not_older_than_now() {
        let begin = now_since_boot();
        let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
        let written = (metadata.mtime(), metadata.mtime_nsec());
        assert!(written >= file_time_at(begin));
        sleep(2 * COARSE);
        assert!(written < file_time_at(begin + 4 * COARSE));
    }
}
