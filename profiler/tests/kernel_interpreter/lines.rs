//! Lines get the share of the CPU time that they take.

use std::{thread, time::Duration};

use rustix::process::Signal;

use super::{
    Python, Test, Verdict, bound,
    judge::{Claims, Frame},
    note,
    observed::{Program, judged},
    recording::Recording,
    running::signal,
};

pub(super) const TESTS: &[Test] = &[("lines_have_the_shares_that_a_clock_gives_them", shares)];

const HZ: &str = "4999";
/// Of one CPU: long enough for 20,000 samples.
const SECONDS: &str = "4.2";
const SAMPLES: f64 = 19_000.0;
/// The least that is promised.
const POINT: f64 = 0.01;
/// By how much two clocks may differ where one says nothing of the other.
const UNDISTURBED: f64 = 0.003;

/// What the program says of one line, in shares of all six.
struct Line {
    number: u32,
    wall: f64,
    cpu: f64,
}

fn shares(python: &Python) -> Verdict {
    let mut program = Program::start(python, "lines");
    let recorder = program.begin(&["-F", HZ]);
    program.target.say(SECONDS);
    let (lines, pieces) = said(&mut program);
    thread::sleep(Duration::from_millis(100));
    signal(recorder.pid(), Signal::INT);
    let recording = recorder.end();
    judged(&recording, Some(&program.codes), 0);

    let counts: Vec<f64> = lines
        .iter()
        .map(|line| on_line(&recording, line.number))
        .collect();
    let all: f64 = counts.iter().sum();
    assert!(all >= SAMPLES, "{all} samples: {}", recording.report);
    let worst = |truth: fn(&Line) -> f64| {
        let pairs = lines.iter().zip(&counts);
        let errors = pairs.map(|(line, count)| (count / all - truth(line)).abs());
        errors.fold(0.0, f64::max)
    };
    let by_cpu = worst(|line| line.cpu);
    let by_wall = worst(|line| line.wall);
    let clocks = lines.iter().map(|line| (line.cpu - line.wall).abs());
    let clocks = clocks.fold(0.0, f64::max);
    let limit = bound(pieces, all, lines.len() as f64 + 1.0).max(POINT);
    note(format!(
        "{all} samples, at most {:.2} points from the line's CPU time, {:.2} from its time (which are {:.2} apart), bound {:.2}",
        100.0 * by_cpu,
        100.0 * by_wall,
        100.0 * clocks,
        100.0 * limit
    ));
    assert!(by_cpu <= limit, "{by_cpu} > {limit}: {counts:?}");
    // Where others had the CPU, the time is not what was sampled.
    if clocks <= UNDISTURBED {
        assert!(by_wall <= limit, "{by_wall} > {limit}: {counts:?}");
    }
    Ok(())
}

/// Reads what the program prints: its lines, and in how many pieces they ran.
fn said(program: &mut Program) -> (Vec<Line>, f64) {
    let mut lines = Vec::new();
    let pieces = loop {
        let line = program.target.line();
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["pieces", count] => break count.parse().unwrap(),
            [number, wall, cpu] => lines.push(Line {
                number: number.parse().unwrap(),
                wall: wall.parse().unwrap(),
                cpu: cpu.parse().unwrap(),
            }),
            _ => panic!("{line}"),
        }
    };
    assert_eq!(lines.len(), 6);
    let wall: f64 = lines.iter().map(|line| line.wall).sum();
    let cpu: f64 = lines.iter().map(|line| line.cpu).sum();
    for line in &mut lines {
        line.wall /= wall;
        line.cpu /= cpu;
    }
    (lines, pieces)
}

/// Samples in which the function that is timed was on this line.
fn on_line(recording: &Recording, line: u32) -> f64 {
    let is_there = |text: &String| {
        Frame::of(text)
            .is_some_and(|frame| frame.line == line && Claims::of(frame.function()).stem == "timed")
    };
    recording.count(|stack| stack.frames.iter().any(is_there)) as f64
}
