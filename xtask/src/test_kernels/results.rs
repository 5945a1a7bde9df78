//! What the guest saw, and what is thought of it.

use std::fmt;

use super::{checks::Check, packages::Kernel};

/// Fewer samples say nothing: an emulated CPU on a busy machine takes some hundreds.
const SAMPLES_MIN: u64 = 100;
/// Stacks that must have the frames of their workload: start and end of a program are other ones.
const NAMED_MIN: f64 = 0.95;
/// Stacks that must have one of the frames that only a part of them can have.
const SOME_MIN: f64 = 0.2;

/// All that the guest wrote (init.sh says how).
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Guest {
    /// Such as `5.10.0-32-amd64`.
    pub(super) release: String,
    /// Debian's own version of it, `5.10.223-1`.
    pub(super) version: String,
    /// In the order in which they ran.
    pub(super) checks: Vec<Seen>,
    /// It came to its end.
    pub(super) finished: bool,
}

/// What was seen of one check.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Seen {
    name: String,
    /// The program's words.
    said: Vec<String>,
    /// Frames, outermost first, and how often they were met.
    stacks: Vec<(Vec<String>, u64)>,
    exit: Option<u8>,
}

impl Guest {
    pub(super) fn parse(text: &str) -> Self {
        let mut guest = Self::default();
        for line in text.lines() {
            let line = line.trim_end();
            let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
            match (word, guest.checks.last_mut()) {
                ("kernel", _) => rest.clone_into(&mut guest.release),
                ("version", _) => debian_version(rest).clone_into(&mut guest.version),
                ("check", _) => guest.checks.push(Seen {
                    name: rest.to_owned(),
                    ..Seen::default()
                }),
                ("said", Some(seen)) => seen.said.push(rest.to_owned()),
                ("stack", Some(seen)) => seen.stacks.extend(stack(rest)),
                ("exit", Some(seen)) => seen.exit = rest.parse().ok(),
                ("done", _) => guest.finished = true,
                _ => {}
            }
        }
        guest
    }
}

/// `…) #1 SMP Debian 5.10.223-1 (2024-08-10)`
fn debian_version(text: &str) -> &str {
    let rest = text.split_once(" Debian ").map_or("", |(_, rest)| rest);
    rest.split(' ').next().unwrap_or_default()
}

fn stack(line: &str) -> Option<(Vec<String>, u64)> {
    let (frames, count) = line.rsplit_once(' ')?;
    let frames = frames.split(';').map(str::to_owned).collect();
    Some((frames, count.parse().ok()?))
}

impl Seen {
    fn samples(&self) -> u64 {
        self.stacks.iter().map(|(_, count)| count).sum()
    }

    /// Of all samples, those with such a stack. Without samples there is none.
    fn share(&self, is_such: impl Fn(&[String]) -> bool) -> f64 {
        let such = self.stacks.iter().filter(|(frames, _)| is_such(frames));
        let such: u64 = such.map(|(_, count)| count).sum();
        such as f64 / self.samples().max(1) as f64
    }

    /// What the verifier looked at, where the kernel says so (5.16 and later).
    fn verified_instructions(&self) -> Option<u64> {
        let words = self.said.iter().flat_map(|line| line.split(' '));
        let mut counts = words.filter_map(|word| word.strip_prefix("verified_instructions="));
        counts.next()?.parse().ok().filter(|&count| count > 0)
    }
}

/// What is thought of one kernel: a line for each check.
#[derive(Debug, Default)]
pub(super) struct Judged {
    pub(super) lines: Vec<String>,
    pub(super) failed: usize,
    release: String,
    version: String,
}

/// Holds every check against what was seen of it.
pub(super) fn judge(guest: &Guest, checks: &[Check]) -> Judged {
    let mut judged = Judged {
        release: guest.release.clone(),
        version: guest.version.clone(),
        ..Judged::default()
    };
    for check in checks {
        let seen = guest.checks.iter().find(|seen| seen.name == check.name);
        let faults = seen.map_or_else(|| vec!["it did not run".to_owned()], |it| faults(it, check));
        judged.lines.push(line(check, seen, faults.is_empty()));
        if !faults.is_empty() {
            judged.failed += 1;
            judged
                .lines
                .extend(faults.iter().map(|fault| format!("    {fault}")));
            let said = seen.map_or(&[][..], |seen| &seen.said);
            judged
                .lines
                .extend(said.iter().map(|line| format!("    | {line}")));
        }
    }
    judged
}

/// Everything that is not as it must be.
fn faults(seen: &Seen, check: &Check) -> Vec<String> {
    let mut faults = Vec::new();
    if seen.exit != Some(0) {
        let code = seen.exit.map_or("none".to_owned(), |code| code.to_string());
        faults.push(format!("exit code {code}"));
    }
    if seen.samples() < SAMPLES_MIN {
        faults.push(format!("fewer than {SAMPLES_MIN} samples"));
        return faults; // shares of so few mean nothing
    }
    if seen.share(is_complete) < check.complete {
        faults.push("stacks are cut short".to_owned());
    }
    for wanted in check.frames {
        let share = seen.share(|frames| has(frames, wanted));
        if share < NAMED_MIN {
            let percent = percent(share);
            faults.push(format!("{wanted} is in {percent} of the stacks only"));
        }
    }
    let share = seen.share(|frames| check.some.iter().any(|wanted| has(frames, wanted)));
    if !check.some.is_empty() && share < SOME_MIN {
        let (wanted, percent) = (check.some.join(" or "), percent(share));
        faults.push(format!("{wanted} is in {percent} of the stacks only"));
    }
    faults
}

fn is_complete(frames: &[String]) -> bool {
    !matches!(frames[0].as_str(), "[truncated]" | "[no frames]")
}

/// A frame of that name; one that ends in a colon is followed by a file.
fn has(frames: &[String], wanted: &str) -> bool {
    frames
        .iter()
        .any(|frame| frame == wanted || (wanted.ends_with(':') && frame.starts_with(wanted)))
}

fn line(check: &Check, seen: Option<&Seen>, passed: bool) -> String {
    let verified = seen.and_then(Seen::verified_instructions);
    format!(
        "{:<10} {:>7} {:>9} {:>9} {:>9}  {}",
        check.name,
        seen.map_or(0, Seen::samples),
        percent(seen.map_or(0.0, |it| it.share(is_complete))),
        percent(seen.map_or(0.0, |it| {
            it.share(|frames| check.frames.iter().all(|wanted| has(frames, wanted)))
        })),
        verified.map_or("n/a".to_owned(), |count| count.to_string()),
        if passed { "ok" } else { "FAILED" }
    )
}

fn percent(share: f64) -> String {
    // Rounded down: a stack that is missing must not be hidden.
    format!("{:.1} %", (1000.0 * share).floor() / 10.0)
}

/// All kernels, for the end.
#[derive(Debug, Default)]
pub(super) struct Table {
    lines: Vec<String>,
    passed: usize,
    failed: usize,
}

impl Table {
    pub(super) fn add(&mut self, kernel: &Kernel, judged: Judged) {
        let Judged {
            lines,
            failed,
            release,
            version,
        } = judged;
        let suite = kernel.suite;
        self.lines
            .push(format!("{release} (Debian {version}, {suite})"));
        let checks = lines.iter().filter(|line| !line.starts_with(' '));
        self.lines
            .extend(checks.clone().map(|line| format!("  {line}")));
        self.passed += checks.count() - failed;
        self.failed += failed;
    }

    /// One that could not be tried.
    pub(super) fn fail(&mut self, kernel: &Kernel, why: &str) {
        println!("{why}");
        self.lines.push(format!("{kernel}"));
        let first = why.lines().next().unwrap_or_default();
        self.lines.push(format!("  FAILED: {first}"));
        self.failed += 1;
    }

    pub(super) const fn failed(&self) -> usize {
        self.failed
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  {:<10} {:>7} {:>9} {:>9} {:>9}",
            "check", "samples", "complete", "named", "verified"
        )?;
        for line in &self.lines {
            writeln!(f, "{line}")?;
        }
        writeln!(f, "{} passed, {} failed", self.passed, self.failed)
    }
}

#[cfg(test)]
mod tests {
    use super::{super::checks, *};

    const WROTE: &str = "kernel 5.10.0-32-amd64\r
version Linux version 5.10.0-32-amd64 (x@y) (gcc) #1 SMP Debian 5.10.223-1 (2024-08-10)
check attached
said bpf: runs=3 verified_instructions=31024
stack py::<module>:/w.py;py::baz:/w.py;py::bar:/w.py;py::foo:/w.py 199
stack [truncated];py::<module>:/w.py;py::baz:/w.py;py::bar:/w.py;py::foo:/w.py 1
exit 0
done
";

    fn attached() -> Check {
        checks::for_program("").0[0]
    }

    #[test]
    fn what_the_guest_wrote_is_understood() {
        let guest = Guest::parse(WROTE);
        assert_eq!(guest.release, "5.10.0-32-amd64");
        assert_eq!(guest.version, "5.10.223-1");
        assert!(guest.finished);
        let judged = judge(&guest, &[attached()]);
        assert_eq!(judged.failed, 0, "{judged:?}");
        let words: Vec<&str> = judged.lines[0].split_whitespace().collect();
        let expected = ["attached", "200", "99.5", "%", "100.0", "%", "31024", "ok"];
        assert_eq!(words, expected);
    }

    #[test]
    fn each_fault_is_told() {
        let judged = |text: &str| judge(&Guest::parse(text), &[attached()]);
        for (from, to, fault) in [
            ("exit 0", "exit 1", "exit code 1"),
            ("w.py 1\n", "w.py 3\n", "stacks are cut short"),
            (
                "foo:/w.py 199",
                "x 199",
                "py::foo: is in 0.5 % of the stacks only",
            ),
            (" 199", " 9", "fewer than 100 samples"),
            ("check attached", "check other", "it did not run"),
        ] {
            let text = WROTE.replace(from, to);
            let judged = judged(&text);
            assert_eq!(judged.failed, 1, "{fault}");
            assert_eq!(judged.lines[1].trim(), fault);
        }
        let cut = &WROTE[..WROTE.len() - "done\n".len()];
        assert!(!Guest::parse(cut).finished);
    }

    #[test]
    fn the_table_counts_checks() {
        let mut table = Table::default();
        let kernel = Kernel {
            name: "5.10.0-32".to_owned(),
            suite: "bullseye",
            is_default: true,
        };
        table.add(&kernel, judge(&Guest::parse(WROTE), &[attached()]));
        table.fail(&kernel, "the emulator ended with 1");
        let text = table.to_string();
        assert!(
            text.contains("5.10.0-32-amd64 (Debian 5.10.223-1, bullseye)"),
            "{text}"
        );
        assert!(text.ends_with("1 passed, 1 failed\n"), "{text}");
    }
}
