//! Bytes of the ring buffer → [`RingRecord`].

use std::{
    io,
    os::fd::{AsFd as _, OwnedFd},
    time::Duration,
};

use aya::maps::{Map, MapData, RingBuf};
use profiler_common::{
    process_event::{PROCESS_EVENT_BYTES, ProcessEvent as WireEvent},
    python::PythonEnd as WirePythonEnd,
    record::{KIND_BYTES, kind},
    sample::{HEADER_BYTES, SampleHeader, StackEnd as WireEnd, flags, stack_copy_begin},
};

use super::error::KernelError;
use crate::model::{
    Avma, KtimeNs, Pid, ProcessChange, ProcessEvent, PythonEnd, RawSample, SavedRegister,
    StackCopy, StackEnd, ThreadName, Tid,
};

/// What is in the ring, in the order in which it happened.
#[derive(Debug)]
pub enum RingRecord<'a> {
    /// A sample of a target.
    Sample(RawSample<'a>),
    /// Something happened to a process.
    Process(ProcessEvent),
}

/// The ring buffer of samples. Its descriptor becomes readable only when much is waiting: read on a timer as well.
pub struct SampleRing {
    ring: RingBuf<MapData>,
    words: Vec<u64>,
    malformed: u64,
}

impl SampleRing {
    pub(super) fn new(map: Map) -> Result<Self, KernelError> {
        let ring = RingBuf::try_from(map).map_err(KernelError::map("SAMPLES"))?;
        Ok(Self {
            ring,
            words: Vec::new(),
            malformed: 0,
        })
    }

    /// Hands the waiting records to `each` as long as that wants more. True: it did not, and there may be more.
    ///
    /// A sample borrows a buffer that is used again for the next one.
    pub fn drain(&mut self, mut each: impl FnMut(RingRecord<'_>) -> bool) -> bool {
        while let Some(item) = self.ring.next() {
            let wants_more = if let Some(record) = parse(&item, &mut self.words) {
                each(record)
            } else {
                self.malformed += 1;
                true
            };
            if !wants_more {
                return true;
            }
        }
        false
    }

    /// A descriptor of it, to wait for.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.ring.as_fd().try_clone_to_owned()
    }

    /// Records that were not well formed: 0, unless kernel and user side disagree.
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }
}

impl std::fmt::Debug for SampleRing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SampleRing")
            .field("malformed", &self.malformed)
            .finish_non_exhaustive()
    }
}

/// Reads one record. `words` is the buffer that a sample borrows.
pub(crate) fn parse<'a>(record: &'a [u8], words: &'a mut Vec<u64>) -> Option<RingRecord<'a>> {
    match u32::from_ne_bytes(*record.first_chunk::<KIND_BYTES>()?) {
        kind::SAMPLE => parse_sample(record, words).map(RingRecord::Sample),
        _ => parse_event(record).map(RingRecord::Process),
    }
}

fn parse_event(record: &[u8]) -> Option<ProcessEvent> {
    if record.len() < PROCESS_EVENT_BYTES {
        return None;
    }
    // SAFETY: the kernel side writes a whole `ProcessEvent` (see `tell` in profiler-ebpf/src/follow.rs), every bit
    // pattern of it is valid, and the length was checked above.
    let event = unsafe { record.as_ptr().cast::<WireEvent>().read_unaligned() };
    let change = match event.kind {
        kind::FORK => ProcessChange::Forked {
            parent: Pid(event.parent),
            ns_pid: event.ns_pid,
        },
        kind::EXEC => ProcessChange::Executed {
            stack: Some(event.stack).filter(|&stack| stack != 0),
        },
        kind::EXIT => ProcessChange::Exited {
            cpu_time: Duration::from_nanos(event.cpu_ns),
        },
        _ => return None,
    };
    Some(ProcessEvent {
        ktime: KtimeNs(event.ktime_ns),
        boottime: Duration::from_nanos(event.boottime_ns),
        pid: Pid(event.pid),
        change,
    })
}

fn parse_sample<'a>(record: &'a [u8], words: &'a mut Vec<u64>) -> Option<RawSample<'a>> {
    if record.len() < HEADER_BYTES {
        return None;
    }
    // SAFETY: the kernel side writes a whole `SampleHeader` first (see `send` in profiler-ebpf/src/emit.rs), every bit
    // pattern of it is valid, and the length was checked above.
    let header = unsafe { record.as_ptr().cast::<SampleHeader>().read_unaligned() };
    words.clear();
    let (chunks, []) = record[HEADER_BYTES..].as_chunks::<8>() else {
        return None;
    };
    words.extend(chunks.iter().map(|&bytes| u64::from_ne_bytes(bytes)));

    let (native, rest) = words.split_at_checked(usize::from(header.native_words))?;
    let (python, rest) = rest.split_at_checked(usize::from(header.python_words))?;
    let (kernel, rest) = rest.split_at_checked(usize::from(header.kernel_words))?;
    let at = Avma(header.end_address);
    let unfinished = (header.flags & flags::STACK_COPY != 0).then(|| {
        let stack = &record[record.len() - 8 * rest.len()..];
        StackCopy {
            ip: at,
            sp: header.end_sp & !7,
            bp: header.end_bp,
            saved: saved_registers(&header),
            is_leaf: header.flags & flags::END_IS_LEAF != 0,
            begin: stack_copy_begin(header.end_sp),
            stack: &stack[..stack.len().min(usize::from(header.stack_bytes))],
        }
    });
    Some(RawSample {
        ktime: KtimeNs(header.ktime_ns),
        pid: Pid(header.tgid),
        tid: Tid(header.tid),
        thread_name: ThreadName(header.comm),
        in_kernel: header.flags & flags::KERNEL_MODE != 0,
        guessed: header.flags & flags::GUESSED != 0,
        end: end(header.stack_end, at)?,
        python_end: python_end(header.python_end)?,
        python_is_counted: header.flags & flags::PYTHON_COUNTED != 0,
        python_is_unconfirmed: header.flags & flags::PYTHON_UNCONFIRMED != 0,
        native,
        python,
        kernel,
        unfinished,
    })
}

fn saved_registers(header: &SampleHeader) -> [SavedRegister; 5] {
    let mut saved = [SavedRegister::Unknown; 5];
    for (n, (register, &value)) in saved.iter_mut().zip(&header.end_saved).enumerate() {
        *register = if header.end_saved_lost >> n & 1 != 0 {
            SavedRegister::Unknown
        } else if header.end_saved_in_memory >> n & 1 != 0 {
            SavedRegister::At(value)
        } else {
            SavedRegister::Value(value)
        };
    }
    saved
}

fn end(code: u16, at: Avma) -> Option<StackEnd> {
    let wire = WireEnd::ALL.into_iter().find(|&end| end as u16 == code)?;
    Some(match wire {
        WireEnd::Root => StackEnd::Root,
        WireEnd::ZeroReturnAddress => StackEnd::ZeroReturnAddress,
        WireEnd::NoRule => StackEnd::NoRule(at),
        WireEnd::UnknownJit => StackEnd::UnknownJit(at),
        WireEnd::NoMapping => StackEnd::NoMapping(at),
        WireEnd::ReadFault => StackEnd::ReadFault(at),
        WireEnd::NotUp => StackEnd::NotUp(at),
        WireEnd::DepthLimit => StackEnd::DepthLimit,
        WireEnd::Unsupported => StackEnd::Unsupported(at),
        WireEnd::NoUserRegisters => StackEnd::NoUserRegisters,
    })
}

fn python_end(code: u16) -> Option<PythonEnd> {
    let wire = WirePythonEnd::ALL
        .into_iter()
        .find(|&end| end as u16 == code)?;
    Some(match wire {
        WirePythonEnd::NotRead => PythonEnd::NotRead,
        WirePythonEnd::Whole => PythonEnd::Whole,
        WirePythonEnd::NoThreadState => PythonEnd::NoThreadState,
        WirePythonEnd::NotFound => PythonEnd::NotFound,
        WirePythonEnd::ReadFault => PythonEnd::ReadFault,
        WirePythonEnd::NotCode => PythonEnd::NotCode,
        WirePythonEnd::DepthLimit => PythonEnd::DepthLimit,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(native: u16, kernel: u16, words: &[u64]) -> Vec<u8> {
        let mut bytes = vec![0u8; HEADER_BYTES];
        bytes[..KIND_BYTES].copy_from_slice(&kind::SAMPLE.to_ne_bytes());
        let pid = std::mem::offset_of!(SampleHeader, tgid);
        bytes[pid..pid + 4].copy_from_slice(&42u32.to_ne_bytes());
        let counts = std::mem::offset_of!(SampleHeader, native_words);
        bytes[counts..counts + 2].copy_from_slice(&native.to_ne_bytes());
        bytes[counts + 4..counts + 6].copy_from_slice(&kernel.to_ne_bytes());
        for word in words {
            bytes.extend(word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn lists_follow_the_header_in_order() {
        let mut words = Vec::new();
        let bytes = record(2, 1, &[1, 2, 3]);
        let Some(RingRecord::Sample(sample)) = parse(&bytes, &mut words) else {
            panic!("well formed");
        };
        assert_eq!(
            (sample.pid, sample.native, sample.kernel),
            (Pid(42), &[1, 2][..], &[3][..])
        );
        assert_eq!(sample.end, StackEnd::Root);
    }

    #[test]
    fn a_record_shorter_than_it_says_is_refused() {
        let mut words = Vec::new();
        assert!(parse(&record(4, 0, &[1, 2, 3]), &mut words).is_none());
        assert!(parse(&[0; 10], &mut words).is_none());
    }

    #[test]
    fn each_record_says_what_it_is() {
        assert_eq!(std::mem::offset_of!(WireEvent, kind), 0);
        assert_eq!(std::mem::offset_of!(SampleHeader, kind), 0);
        // As long as a sample: the length says nothing.
        let mut bytes = [0; HEADER_BYTES];
        let pid_at = std::mem::offset_of!(WireEvent, pid);
        bytes[0] = kind::EXEC as u8;
        bytes[pid_at] = 42;
        let mut words = Vec::new();
        let Some(RingRecord::Process(event)) = parse(&bytes, &mut words) else {
            panic!("well formed");
        };
        assert_eq!(
            (event.pid, event.change),
            (Pid(42), ProcessChange::Executed { stack: None })
        );
        assert!(parse(&bytes[..PROCESS_EVENT_BYTES - 1], &mut words).is_none());
        bytes[0] = 77;
        assert!(parse(&bytes, &mut words).is_none());
    }
}
