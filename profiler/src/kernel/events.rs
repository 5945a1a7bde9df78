//! One sampling event per online CPU, and the records that come with it.
//!
//! The event that drives the samples also carries the kernel's records of new executable mappings, `exec` and
//! throttling (`PERF_RECORD_MMAP2`, `_COMM`, `_THROTTLE`; `man 2 perf_event_open`). The BPF program attached to it
//! returns 0, so that it writes no sample records of its own.

use std::{
    fs, io,
    os::fd::{AsFd as _, AsRawFd as _, BorrowedFd},
};

use perf_event::{
    Builder, Sampler,
    data::Record,
    events::{Hardware, Software},
};

use super::error::KernelError;
use crate::model::{Hz, Pid};

/// Bytes of each CPU's record buffer. Only mappings, `exec` and throttling go there: some hundred records.
const RECORD_BUFFER_BYTES: usize = 128 << 10;
/// `PERF_RECORD_MMAP` (include/uapi/linux/perf_event.h).
const RECORD_MMAP: u32 = 1;
/// `PERF_RECORD_MMAP2`.
const RECORD_MMAP2: u32 = 10;
/// `PERF_RECORD_MISC_COMM_EXEC` (include/uapi/linux/perf_event.h).
const MISC_COMM_EXEC: u16 = 1 << 13;

/// Something that happened to a process, or to the sampling itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelEvent {
    /// A process got new executable memory.
    Mapped(Pid),
    /// A process runs another program now.
    Executed(Pid),
    /// So many records were lost: mappings must be read again.
    RecordsLost(u64),
    /// The kernel stopped an event until the next tick.
    Throttled,
}

/// The kernel's own limits on sampling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// `kernel.perf_event_max_sample_rate`, which the kernel lowers by itself.
    pub max_sample_rate: u64,
    /// `kernel.perf_cpu_time_max_percent`, above which it does.
    pub cpu_time_max_percent: u64,
}

impl RateLimits {
    /// Reads both sysctls.
    pub fn read() -> io::Result<Self> {
        let number = |name: &str| -> io::Result<u64> {
            let text = fs::read_to_string(format!("/proc/sys/kernel/{name}"))?;
            text.trim()
                .parse()
                .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, format!("{name}: {text}")))
        };
        Ok(Self {
            max_sample_rate: number("perf_event_max_sample_rate")?,
            cpu_time_max_percent: number("perf_cpu_time_max_percent")?,
        })
    }
}

/// The sampling events of all CPUs.
pub struct SamplingEvents {
    cpus: Vec<(u32, Sampler)>,
    frequency: Hz,
    hardware: bool,
    program: std::os::fd::OwnedFd,
}

impl std::fmt::Debug for SamplingEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SamplingEvents")
            .field("frequency", &self.frequency)
            .finish_non_exhaustive()
    }
}

impl SamplingEvents {
    /// Opens one event per online CPU and attaches the program: `cycles` where there is a PMU, else `cpu-clock`.
    ///
    /// Needs `CAP_PERFMON` (Linux 5.8+) or `CAP_SYS_ADMIN`. More than `kernel.perf_event_max_sample_rate` is refused.
    pub(super) fn attach(program: BorrowedFd<'_>, frequency: Hz) -> Result<Self, KernelError> {
        let program = program
            .try_clone_to_owned()
            .map_err(|source| KernelError::System {
                call: "dup",
                source,
            })?;
        let online = online_cpus().map_err(|source| KernelError::System {
            call: "reading online CPUs",
            source,
        })?;
        let mut events = Self {
            cpus: Vec::new(),
            frequency,
            hardware: true,
            program,
        };
        let first = *online.first().unwrap_or(&0);
        if events.open(first).is_err() {
            events.hardware = false;
            events
                .open(first)
                .map_err(|source| refused(source, frequency))?;
        }
        for &cpu in &online[1..] {
            events
                .open(cpu)
                .map_err(|source| refused(source, frequency))?;
        }
        for (_, sampler) in &mut events.cpus {
            sampler.enable().map_err(|source| KernelError::System {
                call: "PERF_EVENT_IOC_ENABLE",
                source,
            })?;
        }
        Ok(events)
    }

    /// The samples are driven by the CPU's cycle counter.
    pub const fn is_hardware(&self) -> bool {
        self.hardware
    }

    /// Opens, but does not enable, the event of one CPU.
    fn open(&mut self, cpu: u32) -> io::Result<()> {
        let mut builder = if self.hardware {
            Builder::new(Hardware::CPU_CYCLES)
        } else {
            Builder::new(Software::CPU_CLOCK)
        };
        builder
            .any_pid()
            .one_cpu(cpu as usize)
            .include_kernel()
            .sample_frequency(u64::from(self.frequency.0))
            .mmap(true)
            .mmap2(true)
            .comm(true)
            .comm_exec(true)
            .wakeup_watermark(RECORD_BUFFER_BYTES / 4);
        let mut counter = builder.build()?;
        counter.set_bpf(self.program.as_fd().as_raw_fd())?;
        self.cpus.push((cpu, counter.sampled(RECORD_BUFFER_BYTES)?));
        Ok(())
    }

    /// Follows CPUs that went off or came on. Returns true when something changed. Costs one small file read.
    pub fn follow_cpus(&mut self) -> io::Result<bool> {
        let online = online_cpus()?;
        let before = self.cpus.len();
        self.cpus.retain(|(cpu, _)| online.contains(cpu));
        let mut changed = self.cpus.len() != before;
        for cpu in online {
            if self.cpus.iter().any(|(known, _)| *known == cpu) {
                continue;
            }
            self.open(cpu)?;
            if let Some((_, sampler)) = self.cpus.last_mut() {
                sampler.enable()?;
            }
            changed = true;
        }
        Ok(changed)
    }

    /// Stops sampling; records that are waiting can still be drained.
    pub fn stop(&mut self) {
        for (_, sampler) in &mut self.cpus {
            // An event that is gone has stopped as well.
            let _ = sampler.disable();
        }
    }

    /// Hands every waiting record of interest to `each`. Mappings of processes that are not wanted, of which a busy
    /// machine has many, are not even parsed.
    pub fn drain(&mut self, is_wanted: impl Fn(Pid) -> bool, mut each: impl FnMut(KernelEvent)) {
        for (_, sampler) in &mut self.cpus {
            while let Some(record) = sampler.next_record() {
                if matches!(record.ty(), RECORD_MMAP | RECORD_MMAP2) {
                    // Both begin with the pid, and records lie on 8-byte boundaries.
                    let pid = record.data().first().and_then(|part| part.first_chunk());
                    if !pid.is_some_and(|&pid| is_wanted(Pid(u32::from_ne_bytes(pid)))) {
                        continue;
                    }
                }
                let executed = record.misc() & MISC_COMM_EXEC != 0;
                let event = match record.parse_record() {
                    Ok(Record::Mmap2(map)) => Some(KernelEvent::Mapped(Pid(map.pid))),
                    Ok(Record::Mmap(map)) => Some(KernelEvent::Mapped(Pid(map.pid))),
                    Ok(Record::Comm(comm)) if executed => {
                        Some(KernelEvent::Executed(Pid(comm.pid)))
                    }
                    Ok(Record::Lost(lost)) => Some(KernelEvent::RecordsLost(lost.lost)),
                    Ok(Record::Throttle(_)) => Some(KernelEvent::Throttled),
                    Ok(_) => None,
                    Err(_) => Some(KernelEvent::RecordsLost(1)),
                };
                if let Some(event) = event {
                    each(event);
                }
            }
        }
    }
}

/// Says what to do about a refused event.
fn refused(source: io::Error, frequency: Hz) -> KernelError {
    match RateLimits::read() {
        Ok(limits) if u64::from(frequency.0) > limits.max_sample_rate => KernelError::Frequency {
            asked: frequency,
            limit: limits.max_sample_rate,
        },
        _ if source.kind() == io::ErrorKind::PermissionDenied && paranoid_level() > 2 => {
            KernelError::Paranoid
        }
        _ => KernelError::event(source),
    }
}

/// `kernel.perf_event_paranoid`, which has a level 3 on Debian, Ubuntu and Android: no perf events but for
/// `CAP_SYS_ADMIN`.
fn paranoid_level() -> i32 {
    let text = fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    text.trim().parse().unwrap_or_default()
}

/// CPUs that are online now.
fn online_cpus() -> io::Result<Vec<u32>> {
    parse_cpu_list(&fs::read_to_string("/sys/devices/system/cpu/online")?).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "/sys/devices/system/cpu/online is not a CPU list",
        )
    })
}

/// Parses `0-3,8` (Documentation/admin-guide/cputopology.rst).
fn parse_cpu_list(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse().ok()?);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_have_ranges_and_gaps() {
        assert_eq!(parse_cpu_list("0\n"), Some(vec![0]));
        assert_eq!(parse_cpu_list("0-2,5,7-8\n"), Some(vec![0, 1, 2, 5, 7, 8]));
        assert_eq!(parse_cpu_list(""), None);
    }
}
