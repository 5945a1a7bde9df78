//! What the kernel says of the BPF program.

use super::{
    Python, Test, Verdict, note,
    recording::{number_before, record},
    running::Running,
    workload,
};

pub(super) const TESTS: &[Test] = &[("the_verifier_needs_few_instructions", verifier)];

const INSTRUCTIONS_MAX: u64 = 100_000;

fn verifier(python: &Python) -> Verdict {
    let target = Running::start(python.perf().arg(workload("chain")));
    for options in [
        &["-d", "0.5", "--bpf-stats"][..],
        &["-d", "0.5", "--bpf-stats", "--kernel"],
    ] {
        let recording = record(target.pid(), options);
        let line = recording
            .report
            .lines()
            .find(|line| line.starts_with("bpf: "))
            .unwrap();
        let (_, needed) = line.split_once("verified_instructions=").unwrap();
        // A kernel before 5.16 does not say.
        let needed: u64 = needed.parse().unwrap();
        note(format!(
            "{needed} instructions with {}",
            if options.len() > 3 {
                "kernel stacks"
            } else {
                "user stacks alone"
            }
        ));
        assert!(needed <= INSTRUCTIONS_MAX, "{line}");
        assert!(
            number_before(&recording.report, " samples at ").is_some(),
            "{}",
            recording.report
        );
    }
    Ok(())
}
