//! `/proc/PID/status` and `/proc/PID/stat`, as far as they matter here. Bytes in, values out.

use std::time::Duration;

use crate::model::Pid;

/// `PF_KTHREAD` (include/linux/sched.h, Linux 6.12).
const PF_KTHREAD: u64 = 0x0020_0000;

/// From `/proc/PID/status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Status {
    /// The process that this task belongs to.
    pub(super) tgid: u32,
    /// The process's pid in its innermost pid namespace. Same as `tgid` on kernels without namespaces.
    pub(super) ns_pid: u32,
    /// Real user id.
    pub(super) uid: u32,
    /// User and group id with which it makes and opens files (`setfsuid(2)`): the effective ones, as a rule.
    pub(super) file_ids: (u32, u32),
}

impl Status {
    /// Reads `Tgid`, `NStgid`, `Uid` and `Gid`. A name cannot forge a line: the kernel escapes newlines in it
    /// (`proc_task_name` in fs/proc/array.c, Linux 6.12), and the first of each is taken.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let field = |name: &str| {
            text.split(|&byte| byte == b'\n')
                .find_map(|line| line.strip_prefix(name.as_bytes()))
                .and_then(|value| std::str::from_utf8(value).ok())
        };
        let number = |value: &str| value.parse::<u32>().ok();
        let tgid = number(field("Tgid:")?.trim())?;
        let ns_pid = field("NStgid:")
            .and_then(|ids| ids.split_whitespace().next_back())
            .and_then(number);
        // Each: real, effective, saved, of files (proc(5)).
        let id = |name: &str, which: usize| number(field(name)?.split_whitespace().nth(which)?);
        Some(Self {
            tgid,
            ns_pid: ns_pid.unwrap_or(tgid),
            uid: id("Uid:", 0)?,
            file_ids: (id("Uid:", 3)?, id("Gid:", 3)?),
        })
    }
}

/// From `/proc/PID/stat`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stat {
    /// Short name, with bytes that are no text replaced.
    pub(super) comm: String,
    /// Parent process.
    pub(super) parent: u32,
    /// Start, in clock ticks since boot.
    pub(super) start_ticks: u64,
    /// What it runs, as far as that tells it from others.
    pub(super) image: Option<Image>,
    state: u8,
    flags: u64,
    cpu_ticks: u64,
}

/// Where a program and its stack begin. Both are at random places since its `exec`, and a `fork` leaves them where they
/// are (`dup_mmap`, kernel/fork.c): two processes with the same image had their last `exec` in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Image {
    code: [u64; 2],
    stack: u64,
}

impl Image {
    /// Where the stack begins.
    pub(super) const fn stack_begin(self) -> u64 {
        self.stack
    }

    /// `None` where the kernel keeps it from us: it shows 0 or 1 then (`do_task_stat`, fs/proc/array.c).
    fn of([begin, end, stack]: [u64; 3]) -> Option<Self> {
        let code = [begin, end];
        (begin > 1 && stack > 1).then_some(Self { code, stack })
    }
}

/// CPU time that a process has used so far; `None`: it is gone.
pub fn cpu_time_of(pid: Pid) -> Option<Duration> {
    let text = std::fs::read(format!("/proc/{pid}/stat")).ok()?;
    Stat::parse(&text).map(|stat| stat.cpu_time())
}

impl Stat {
    /// The name is in parentheses and may hold some itself: the last one ends it.
    pub(super) fn parse(text: &[u8]) -> Option<Self> {
        let open = text.iter().position(|&byte| byte == b'(')?;
        let close = text.iter().rposition(|&byte| byte == b')')?;
        let comm = String::from_utf8_lossy(text.get(open + 1..close)?).into_owned();
        let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
        // proc(5) counts fields from 1; the first of these is field 3.
        let fields: Vec<&str> = rest.split_whitespace().collect();
        let number = |field: usize| fields.get(field - 3)?.parse::<u64>().ok();
        Some(Self {
            comm,
            state: *fields.first()?.as_bytes().first()?,
            parent: u32::try_from(number(4)?).ok()?,
            flags: number(9)?,
            cpu_ticks: number(14)?.saturating_add(number(15)?),
            start_ticks: number(22)?,
            image: Image::of([number(26)?, number(27)?, number(28)?]),
        })
    }

    /// It has no user memory and never will.
    pub(super) fn is_kernel_thread(&self) -> bool {
        self.flags & PF_KTHREAD != 0
    }

    /// It has exited: a zombie, or on its way out.
    pub(super) fn is_dead(&self) -> bool {
        matches!(self.state, b'Z' | b'X' | b'x')
    }

    /// A signal has stopped it (SIGSTOP, Ctrl-Z).
    pub(super) fn is_stopped(&self) -> bool {
        self.state == b'T'
    }

    /// A tracer holds it.
    pub(super) fn is_traced(&self) -> bool {
        self.state == b't'
    }

    /// User and system time of all threads, living and exited.
    pub(super) fn cpu_time(&self) -> Duration {
        let per_second = rustix::param::clock_ticks_per_second().max(1);
        let (seconds, ticks) = (self.cpu_ticks / per_second, self.cpu_ticks % per_second);
        Duration::from_secs(seconds) + Duration::from_nanos(ticks * (1_000_000_000 / per_second))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_spaces_and_newlines_does_not_shift_the_fields() {
        let text =
            b"77 (a) R 1 (\n b) S 12 77 77 0 -1 4194304 9 0 0 0 250 50 0 0 20 0 1 0 98765 1 2 3 4096 8192 9999\n";
        let stat = Stat::parse(text).expect("parses");
        assert_eq!(stat.comm, "a) R 1 (\n b");
        assert_eq!((stat.parent, stat.start_ticks), (12, 98765));
        assert_eq!(stat.image, Image::of([4096, 8192, 9999]));
        assert_ne!(stat.image, None);
        assert_eq!(stat.cpu_time(), Duration::from_secs(3));
        assert!(!stat.is_kernel_thread() && !stat.is_dead());
    }

    #[test]
    fn an_image_that_is_hidden_is_none() {
        assert_eq!(Image::of([1, 1, 0]), None);
        assert_eq!(Image::of([0, 0, 0]), None);
    }

    #[test]
    fn the_last_namespace_is_the_processs_own() {
        let text =
            b"Name:\tpython\nTgid:\t4711\nNStgid:\t4711\t300\t2\nUid:\t1000\t0\t0\t7\nGid:\t100\t0\t0\t8\n";
        assert_eq!(
            Status::parse(text),
            Some(Status {
                tgid: 4711,
                ns_pid: 2,
                uid: 1000,
                file_ids: (7, 8)
            })
        );
        let old = b"Name:\tpython\nTgid:\t4711\nUid:\t1000\t0\t0\t0\nGid:\t0\t0\t0\t0\n";
        assert_eq!(Status::parse(old).map(|status| status.ns_pid), Some(4711));
    }

    #[test]
    fn other_text_is_refused() {
        for text in [&b""[..], b")(", b"1 (a) S", b"1 a S 1", b"1 (a) S x y z"] {
            assert_eq!(Stat::parse(text), None);
            assert_eq!(Status::parse(text), None);
        }
    }
}
