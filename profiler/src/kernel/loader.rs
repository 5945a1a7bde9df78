//! The BPF object, its constants and sizes, into the kernel.

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
};

use aya::{
    Ebpf, EbpfLoader, VerifierLogLevel,
    maps::{HashMap, Map, MapData, PerCpuArray},
    programs::{PerfEvent, RawTracePoint},
};
use aya_log::EbpfLogger;
use profiler_common::{
    config::{global, user_regs},
    python::{PythonLayout, ThreadKey, ThreadState},
    target::TargetTables,
    unwind_row::{CHUNK_ROWS, Page, ProcessMappings, UnwindRule},
};

use super::{
    counters::Counters,
    error::KernelError,
    events::SamplingEvents,
    features::{Features, RegistersFrom},
    memory::MappedArray,
    ring::SampleRing,
};
use crate::model::Hz;

/// The object that `build.rs` built or took from the repository.
static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/pyprof-bpf.bpf.o"));

/// The program's name (profiler-ebpf/src/main.rs).
const PROGRAM: &str = "sample";
/// The programs that follow processes, by the tracepoints that they are for.
const TRACEPOINTS: [(&str, &str); 3] = [
    ("process_fork", "sched_process_fork"),
    ("process_exec", "sched_process_exec"),
    ("process_exit", "sched_process_exit"),
];
/// Lists of mappings, 20 KiB each, besides one for each target and a quarter of that: room for new lists of targets that map
/// something, and, where others than those named can become targets, for these. Processes with the same mappings share a
/// list, and one without a sample needs none. Where there are more, walks of the others are finished in user space.
const SLOTS_SPARE: u32 = 64;
const SLOTS_SPARE_OF_TREES: u32 = 512;
/// 80 MiB.
const SLOTS_MAX: u32 = 4096;
/// Processes at a time, at least; the table has room for twice as many as there are at the beginning. An entry takes 64
/// bytes.
const PROCESSES_MIN: u32 = 4096;
const PROCESSES_MAX: u32 = 65_536;
/// Places for layouts besides one for each process: a layout that nobody has any more rests before it is replaced.
const LAYOUTS_SPARE: u32 = 1024;
/// Threads whose states are remembered, at least; the table has room for eight of each process. An entry takes 80 bytes.
const THREADS_MIN: u32 = 16_384;
const THREADS_PER_TARGET: u32 = 8;
const THREADS_MAX: u32 = 131_072;
/// `RULES` in profiler-ebpf/src/maps.rs.
const RULES_MAX: usize = 65536;

/// How much room there is for unwind rows and samples: kernel memory, allocated at load.
#[derive(Clone, Copy, Debug)]
pub struct MapSizes {
    /// Chunks of [`CHUNK_ROWS`] rows, 64 KiB each.
    pub chunks: u32,
    /// Pages of text, 8 bytes each.
    pub pages: u32,
    /// Lists of mappings, 20 KiB each.
    pub slots: u32,
    /// Processes that can be targets at a time, 64 bytes each.
    pub processes: u32,
    /// Interpreters' layouts, 80 bytes each.
    pub layouts: u32,
    /// Threads whose states are remembered, 80 bytes each.
    pub threads: u32,
    /// Bytes of the ring buffer of samples, a power of two; `None`: as the object has it.
    pub ring_bytes: Option<u32>,
}

/// Which processes become known without being named.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Following {
    /// Children of targets are targets, from their first instruction on.
    pub forks: bool,
    /// Every `exec` on the machine is told.
    pub all_execs: bool,
}

/// Most chunks: 128 MiB, enough for 1 GiB of text. All of it is allocated, and a process can map a sparse file of any size
/// as code.
const CHUNKS_MAX: u64 = 2048;

impl MapSizes {
    /// For `targets` processes whose executable files have `bytes` bytes of text, with as much again for what they will load.
    pub fn for_targets(targets: usize, bytes: u64, following: Following) -> Self {
        let targets = u32::try_from(targets).unwrap_or(u32::MAX);
        let spare = if following == Following::default() {
            SLOTS_SPARE
        } else {
            SLOTS_SPARE_OF_TREES
        };
        let processes = targets
            .saturating_mul(2)
            .clamp(PROCESSES_MIN, PROCESSES_MAX);
        // Measured: 40 (libpython) to 80 (OpenBLAS) bytes of text a row.
        let rows = bytes / 16 + (2 << 20);
        let chunks = rows.div_ceil(CHUNK_ROWS as u64).min(CHUNKS_MAX);
        let pages = (bytes / 2048 + 131_072).min(1 << 22);
        Self {
            chunks: chunks as u32,
            pages: pages as u32,
            slots: targets
                .saturating_add(targets / 4)
                .saturating_add(spare)
                .min(SLOTS_MAX),
            processes,
            layouts: processes + LAYOUTS_SPARE,
            threads: targets
                .saturating_mul(THREADS_PER_TARGET)
                .clamp(THREADS_MIN, THREADS_MAX),
            ring_bytes: None,
        }
    }
}

/// What the kernel says of the program's running time (`kernel.bpf_stats_enabled`).
#[derive(Clone, Copy, Debug, Default)]
pub struct ProgramStats {
    /// How often it ran, for any process.
    pub runs: u64,
    /// Nanoseconds in it.
    pub run_time_ns: u64,
    /// Instructions the verifier looked at (Linux 5.16+).
    pub verified_instructions: Option<u32>,
}

/// The maps of the unwinder, for `unwind/table.rs` to fill.
pub struct UnwindMaps {
    pub(crate) rows: MappedArray<u32>,
    pub(crate) pages: MappedArray<Page>,
    pub(crate) rules: MappedArray<UnwindRule>,
    pub(crate) mappings: MappedArray<ProcessMappings>,
    pub(crate) layouts: MappedArray<PythonLayout>,
    pub(crate) processes: HashMap<MapData, u32, TargetTables>,
    pub(crate) threads: HashMap<MapData, ThreadKey, ThreadState>,
}

/// The loaded program and its maps. Dropping it removes them from the kernel.
pub struct KernelSide {
    ebpf: Ebpf,
    counters: PerCpuArray<MapData, u64>,
    sizes: MapSizes,
    flush_log: Option<Box<dyn FnMut() + Send>>,
    stats: Option<OwnedFd>,
    follows: bool,
}

impl std::fmt::Debug for KernelSide {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KernelSide")
            .field("sizes", &self.sizes)
            .finish_non_exhaustive()
    }
}

impl KernelSide {
    /// Loads the object and its programs; nothing is sampled yet, and what becomes of processes is told from now on.
    ///
    /// Needs `CAP_BPF` and `CAP_PERFMON` (Linux 5.8+), or `CAP_SYS_ADMIN`. Takes some 20 ms, most of it the verifier's.
    pub fn load(
        features: &Features,
        sizes: MapSizes,
        kernel_stacks: bool,
        following: Following,
    ) -> Result<Self, KernelError> {
        let (way, stack_offset, regs_offset) = match features.registers {
            RegistersFrom::Helper => (user_regs::HELPER, 0, 0),
            RegistersFrom::TaskStack {
                stack_offset,
                regs_offset,
            } => (user_regs::TASK_STACK, stack_offset, regs_offset),
        };
        let (namespace_device, namespace_inode) = features.pid_namespace.unwrap_or((0, 0));
        let kernel_stacks = u8::from(kernel_stacks);
        let task_offsets = features.task_offsets.unwrap_or_default();
        let follow_forks = u8::from(following.forks);
        let tell_all_execs = u8::from(following.all_execs);
        let mut loader = EbpfLoader::new();
        if let Some(bytes) = sizes.ring_bytes {
            loader.map_max_entries("SAMPLES", bytes);
        }
        let mut ebpf = loader
            .verifier_log_level(VerifierLogLevel::STATS)
            .override_global(global::USER_REGS, &way, true)
            .override_global(global::TASK_STACK_OFFSET, &stack_offset, true)
            .override_global(global::TASK_REGS_OFFSET, &regs_offset, true)
            .override_global(global::KERNEL_STACKS, &kernel_stacks, true)
            .override_global(global::PID_NS_DEV, &namespace_device, true)
            .override_global(global::PID_NS_INO, &namespace_inode, true)
            .override_global(global::TASK_OFFSETS, &task_offsets, true)
            .override_global(global::FOLLOW_FORKS, &follow_forks, true)
            .override_global(global::TELL_ALL_EXECS, &tell_all_execs, true)
            .map_max_entries("PROCESS_MAPPINGS", sizes.slots)
            .map_max_entries("PYTHON_LAYOUTS", sizes.layouts)
            .map_max_entries("PROCESSES", sizes.processes)
            .map_max_entries("THREADS", sizes.threads)
            .map_max_entries("ROWS", sizes.chunks)
            .map_max_entries("PAGES", sizes.pages)
            .load(OBJECT)
            .map_err(KernelError::load)?;
        // Before the program: it refers to the log's map.
        let flush_log = match EbpfLogger::init(&mut ebpf) {
            Ok(mut logger) => Some(Box::new(move || logger.flush()) as Box<dyn FnMut() + Send>),
            Err(error) => {
                tracing::debug!("no log from the BPF program: {error}");
                None
            }
        };
        let program: &mut PerfEvent = ebpf
            .program_mut(PROGRAM)
            .ok_or_else(|| KernelError::Object(format!("no program {PROGRAM}")))?
            .try_into()
            .map_err(KernelError::program)?;
        program.load().map_err(KernelError::program)?;
        let follows = features.task_offsets.is_some()
            && attach_tracepoints(&mut ebpf)
                .inspect_err(|error| tracing::debug!("processes cannot be followed: {error}"))
                .is_ok();
        let counters = take(&mut ebpf, "COUNTERS")?;
        let counters = PerCpuArray::try_from(counters).map_err(KernelError::map("COUNTERS"))?;
        Ok(Self {
            ebpf,
            counters,
            sizes,
            flush_log,
            stats: None,
            follows,
        })
    }

    /// How much room there is.
    pub const fn sizes(&self) -> &MapSizes {
        &self.sizes
    }

    /// What becomes of processes is told in the ring. False: this kernel has no BTF, or forbids tracepoints.
    pub const fn follows(&self) -> bool {
        self.follows
    }

    /// The unwinder's maps. Once only.
    pub fn take_unwind_maps(&mut self) -> Result<UnwindMaps, KernelError> {
        let processes = take(&mut self.ebpf, "PROCESSES")?;
        let threads = take(&mut self.ebpf, "THREADS")?;
        Ok(UnwindMaps {
            rows: MappedArray::new(
                take(&mut self.ebpf, "ROWS")?,
                self.sizes.chunks as usize * CHUNK_ROWS,
            )?,
            pages: MappedArray::new(take(&mut self.ebpf, "PAGES")?, self.sizes.pages as usize)?,
            rules: MappedArray::new(take(&mut self.ebpf, "RULES")?, RULES_MAX)?,
            mappings: MappedArray::new(
                take(&mut self.ebpf, "PROCESS_MAPPINGS")?,
                self.sizes.slots as usize,
            )?,
            layouts: MappedArray::new(
                take(&mut self.ebpf, "PYTHON_LAYOUTS")?,
                self.sizes.layouts as usize,
            )?,
            processes: HashMap::try_from(processes).map_err(KernelError::map("PROCESSES"))?,
            threads: HashMap::try_from(threads).map_err(KernelError::map("THREADS"))?,
        })
    }

    /// The ring buffer of samples. Once only.
    pub fn take_ring(&mut self) -> Result<SampleRing, KernelError> {
        SampleRing::new(take(&mut self.ebpf, "SAMPLES")?)
    }

    /// Starts sampling on every online CPU.
    pub fn attach(&mut self, frequency: Hz) -> Result<SamplingEvents, KernelError> {
        let program: &PerfEvent = self
            .ebpf
            .program(PROGRAM)
            .ok_or_else(|| KernelError::Object(format!("no program {PROGRAM}")))?
            .try_into()
            .map_err(KernelError::program)?;
        let descriptor = program.fd().map_err(KernelError::program)?;
        SamplingEvents::attach(descriptor.as_fd(), frequency)
    }

    /// What the program counted so far.
    pub fn counters(&self) -> Result<Counters, KernelError> {
        Counters::read(&self.counters)
    }

    /// Passes on what the program logged: rare events only.
    pub fn flush_log(&mut self) {
        if let Some(flush) = &mut self.flush_log {
            flush();
        }
    }

    /// Has the kernel measure running times until this is dropped (Linux 5.8+, `CAP_SYS_ADMIN`).
    pub fn enable_stats(&mut self) -> Result<(), KernelError> {
        let descriptor = aya::sys::enable_stats(aya::sys::Stats::RunTime).map_err(|error| {
            KernelError::System {
                call: "BPF_ENABLE_STATS",
                source: io::Error::other(error.to_string()),
            }
        })?;
        self.stats = Some(descriptor);
        Ok(())
    }

    /// The kernel's own figures about the program; times only while BPF statistics are on.
    pub fn program_stats(&self) -> Result<ProgramStats, KernelError> {
        let program = self
            .ebpf
            .program(PROGRAM)
            .ok_or_else(|| KernelError::Object(format!("no program {PROGRAM}")))?;
        let program: &PerfEvent = program.try_into().map_err(KernelError::program)?;
        let info = program.info().map_err(KernelError::program)?;
        Ok(ProgramStats {
            runs: info.run_count(),
            run_time_ns: info.run_time().as_nanos() as u64,
            verified_instructions: info.verified_instruction_count(),
        })
    }
}

/// Loads the programs that follow processes, and has them run from now on.
fn attach_tracepoints(ebpf: &mut Ebpf) -> Result<(), KernelError> {
    for (name, tracepoint) in TRACEPOINTS {
        let program: &mut RawTracePoint = ebpf
            .program_mut(name)
            .ok_or_else(|| KernelError::Object(format!("no program {name}")))?
            .try_into()
            .map_err(KernelError::program)?;
        program.load().map_err(KernelError::program)?;
        program.attach(tracepoint).map_err(KernelError::program)?;
    }
    Ok(())
}

/// Takes a map out of the object.
fn take(ebpf: &mut Ebpf, name: &'static str) -> Result<Map, KernelError> {
    ebpf.take_map(name)
        .ok_or_else(|| KernelError::Object(format!("no map {name}")))
}

#[cfg(test)]
#[path = "loader_tests.rs"]
mod tests;
