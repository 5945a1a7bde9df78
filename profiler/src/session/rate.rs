//! Whether the samples are as many as they should be: of all processes, and of each.

use std::{collections::BTreeSet, time::Duration};

use super::{Remark, Spread, TargetSummary, Throttling, Unsampled};
use crate::{
    kernel::RateLimits,
    model::{Hz, Pid},
};

/// A deviation of the real sampling rate from the one asked for that is not told: CPU times are known to some percent.
const RATE_TOLERANCE: f64 = 0.1;
/// The same when the kernel says that it paused sampling.
const RATE_TOLERANCE_PAUSED: f64 = 0.03;
/// Standard deviations by which the number of samples may differ from the one expected.
const RATE_DEVIATIONS: f64 = 4.0;
/// CPU time of the targets from which on the real rate can be judged.
const RATE_KNOWN_AFTER: Duration = Duration::from_millis(300);
/// The largest error of the CPU time of one process: user and system time are each counted in steps of 10 ms, at the start
/// and at the end.
const CPU_TIME_ERROR: Duration = Duration::from_millis(20);
/// CPU time and samples from which on a process can be said to have too few samples.
const JUDGED_AFTER: Duration = Duration::from_millis(300);
const JUDGED_SAMPLES: f64 = 20.0;
/// The share of the samples due to it that a process has at most then.
const FEW: f64 = 0.5;

/// What the rate of samples is judged by.
#[derive(Clone, Copy, Debug)]
pub(super) struct RateFacts {
    /// The kernel's limits when the recording began.
    pub(super) before: Option<RateLimits>,
    /// The same when it ended.
    pub(super) after: Option<RateLimits>,
    /// How often the kernel paused sampling.
    pub(super) throttle_records: u64,
    /// Samples taken of all processes.
    pub(super) samples: u64,
    /// CPU time of those that were sampled as they should.
    pub(super) cpu_time: Duration,
    /// Number of all processes.
    pub(super) processes: u64,
    /// How the samples are distributed over the processes.
    pub(super) spread: Spread,
}

impl RateFacts {
    /// Whether the kernel took fewer samples than it was asked for, judged by the CPU time that the targets used.
    pub(super) fn throttling(&self, asked: Hz) -> Option<Throttling> {
        let (before, after) = (self.before?, self.after?);
        self.judge(asked, before.max_sample_rate, after.max_sample_rate)
    }

    fn judge(&self, asked: Hz, limit_before: u64, limit_after: u64) -> Option<Throttling> {
        let Self {
            throttle_records,
            samples,
            cpu_time,
            processes,
            spread,
            ..
        } = *self;
        let effective_hz =
            (cpu_time >= RATE_KNOWN_AFTER).then(|| samples as f64 / cpu_time.as_secs_f64());
        let tolerance = if throttle_records > 0 {
            RATE_TOLERANCE_PAUSED
        } else {
            RATE_TOLERANCE
        };
        // These errors go both ways, so that the error of the sum grows with the square root of their number.
        let error = CPU_TIME_ERROR.mul_f64((processes as f64).sqrt());
        let expected = f64::from(asked.0) * cpu_time.saturating_sub(error).as_secs_f64();
        // Which of the clock's ticks meet the target is chance.
        let fewest = expected * (1.0 - tolerance) - RATE_DEVIATIONS * expected.sqrt();
        let slower = effective_hz.is_some() && (samples as f64) < fewest;
        let lowered = limit_after < limit_before;
        (slower || lowered).then_some(Throttling {
            throttle_records,
            max_sample_rate_before: limit_before,
            max_sample_rate_after: limit_after,
            asked,
            effective_hz,
            spread,
        })
    }
}

/// A process that has too few samples for the CPU time it used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Undersampled {
    pid: Pid,
    pub(super) cpu_time: Duration,
    samples: u64,
}

/// Those that have too few, in comparison with all others; the busiest first. What several programs of one process have
/// counts together.
pub(super) fn undersampled(
    targets: &[TargetSummary],
    unsampled: &Unsampled,
    asked: Hz,
) -> Vec<Undersampled> {
    let mut all: Vec<Undersampled> = Vec::new();
    for target in targets {
        match all.iter_mut().find(|it| it.pid == target.pid) {
            Some(known) => {
                known.samples += target.samples;
                known.cpu_time += target.cpu_time;
            }
            None => all.push(Undersampled {
                pid: target.pid,
                cpu_time: target.cpu_time,
                samples: target.samples,
            }),
        }
    }
    if let Some((pid, cpu_time)) = unsampled.busiest
        && !all.iter().any(|it| it.pid == pid)
    {
        let samples = 0;
        all.push(Undersampled {
            pid,
            cpu_time,
            samples,
        });
    }
    let sampled = all.iter().filter(|it| it.samples > 0);
    let (samples, cpu_time) = sampled.fold((0, Duration::ZERO), |(samples, time), it| {
        (samples + it.samples, time + it.cpu_time)
    });
    // Where the machine is slow, all are due to fewer.
    let rate = if cpu_time.is_zero() {
        f64::from(asked.0)
    } else {
        (samples as f64 / cpu_time.as_secs_f64()).min(f64::from(asked.0))
    };
    all.retain(|it| {
        let due = rate * it.cpu_time.as_secs_f64();
        let few = FEW * due - RATE_DEVIATIONS * due.sqrt();
        it.cpu_time >= JUDGED_AFTER && due >= JUDGED_SAMPLES && (it.samples as f64) < few
    });
    all.sort_by_key(|it| (std::cmp::Reverse(it.cpu_time), it.pid));
    all
}

/// Whether processes have fewer samples than others, as far as that can be judged.
pub(super) fn spread(targets: &[TargetSummary], undersampled: &[Undersampled]) -> Spread {
    if !undersampled.is_empty() {
        return Spread::Uneven;
    }
    let judged: BTreeSet<Pid> = targets
        .iter()
        .filter(|it| it.cpu_time >= JUDGED_AFTER && it.samples > 0)
        .map(|it| it.pid)
        .collect();
    if judged.len() > 1 {
        Spread::Even
    } else {
        Spread::OneProcess
    }
}

/// What the report says of them.
pub(super) fn remark_on(undersampled: &[Undersampled]) -> Option<Remark> {
    let (first, others) = undersampled.split_first()?;
    Some(Remark::Undersampled {
        pid: first.pid,
        cpu_time: first.cpu_time,
        samples: first.samples,
        others: others.len() as u64,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{process::PythonInfo, session::PythonSource, symbols::NameDiagnosis};

    fn target(pid: u32, seconds: u64, samples: u64) -> TargetSummary {
        TargetSummary {
            pid: Pid(pid),
            label: String::new(),
            command: String::new(),
            samples,
            python: PythonInfo::unknown(),
            cpu_time: Duration::from_secs(seconds),
            source: PythonSource::NotYet,
            names: NameDiagnosis::Named,
        }
    }

    fn few(targets: &[TargetSummary]) -> Vec<u32> {
        let found = undersampled(targets, &Unsampled::default(), Hz(100));
        found.iter().map(|it| it.pid.0).collect()
    }

    #[test]
    fn a_process_without_samples_is_told_from_one_that_had_fewer_with_all_others() {
        assert_eq!(few(&[target(1, 10, 1000), target(2, 10, 990)]), [0; 0]);
        assert_eq!(few(&[target(1, 10, 500), target(2, 10, 480)]), [0; 0]);
        assert_eq!(few(&[target(1, 10, 1000), target(2, 9, 0)]), [2]);
        assert_eq!(few(&[target(1, 10, 1000), target(2, 9, 90)]), [2]);
        // Of one that did next to nothing nothing can be said.
        assert_eq!(few(&[target(1, 10, 1000), target(2, 0, 0)]), [0; 0]);
        // Several programs, one process.
        let both = [target(1, 10, 1000), target(2, 0, 900), target(2, 10, 0)];
        assert_eq!(few(&both), [0; 0]);
        let unsampled = Unsampled {
            busiest: Some((Pid(3), Duration::from_secs(8))),
            ..Unsampled::default()
        };
        let found = undersampled(&both, &unsampled, Hz(100));
        assert_eq!(
            remark_on(&found),
            Some(Remark::Undersampled {
                pid: Pid(3),
                cpu_time: Duration::from_secs(8),
                samples: 0,
                others: 0
            })
        );
    }

    const FACTS: RateFacts = RateFacts {
        before: None,
        after: None,
        throttle_records: 0,
        samples: 1000,
        cpu_time: Duration::from_secs(10),
        processes: 1,
        spread: Spread::Even,
    };

    #[test]
    fn the_rate_is_that_of_processes_that_were_sampled() {
        assert_eq!(FACTS.judge(Hz(100), 1, 1), None);
        let slow = RateFacts {
            samples: 600,
            ..FACTS
        };
        let slow = slow.judge(Hz(100), 1, 1).expect("it is slow");
        assert_eq!((slow.effective_hz, slow.spread), (Some(60.0), Spread::Even));
        assert!(
            FACTS.judge(Hz(100), 2, 1).is_some(),
            "the limit was lowered"
        );
    }

    #[test]
    fn too_few_samples_are_noticed_in_short_recordings_within_the_error_of_cpu_times() {
        // CPU time in ms, processes, samples at 100 kHz, whether these are too few
        for (cpu_time, processes, samples, expected) in [
            (900, 1, 30_000, true),
            (300, 1, 10_000, true),
            (300, 1, 30_000, false),
            // 280 ms were counted as 300.
            (300, 1, 28_000, false),
            (300, 1, 26_000, false),
            (300, 1, 23_000, true),
            (1000, 10, 84_000, false),
            (1000, 10, 60_000, true),
            // Nothing can be said of so little.
            (290, 1, 1_000, false),
        ] {
            let facts = RateFacts {
                cpu_time: Duration::from_millis(cpu_time),
                processes,
                samples,
                ..FACTS
            };
            let judged = facts.judge(Hz(100_000), 100_000, 100_000);
            assert_eq!(judged.is_some(), expected, "{facts:?}");
        }
        // At a low rate, few samples are expected of so little CPU time, and chance explains more of the difference.
        let few = RateFacts {
            cpu_time: Duration::from_millis(300),
            samples: 15,
            ..FACTS
        };
        assert_eq!(few.judge(Hz(99), 1, 1), None);
    }

    #[test]
    fn samples_are_called_even_where_several_processes_can_be_compared() {
        let of = |targets: &[TargetSummary]| {
            spread(
                targets,
                &undersampled(targets, &Unsampled::default(), Hz(100)),
            )
        };
        assert_eq!(of(&[target(1, 10, 500)]), Spread::OneProcess);
        // One process that ran two programs, and one that did next to nothing.
        let one = [target(1, 10, 500), target(1, 9, 450), target(2, 0, 3)];
        assert_eq!(of(&one), Spread::OneProcess);
        assert_eq!(of(&[target(1, 10, 500), target(2, 10, 480)]), Spread::Even);
        assert_eq!(of(&[target(1, 10, 1000), target(2, 9, 0)]), Spread::Uneven);
    }
}
