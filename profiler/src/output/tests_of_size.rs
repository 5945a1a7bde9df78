//! Profiles that are too large to be shown in full: what is left out, and that no sample is.

use std::collections::BTreeMap;

use super::{Format, OutputOptions, Rendered, render};
use crate::{
    model::{Frame, Location, LocationTable},
    profile::{
        Aggregator, Granularity, Profile, View,
        testing::{Builder, python, python_at, sample},
    },
};

/// One sample of each stack, whose frames are these functions by their numbers.
fn of_functions(functions: Vec<Frame>, stacks: impl IntoIterator<Item = Vec<u32>>) -> Profile {
    let mut aggregator = Aggregator::new(false);
    for stack in stacks {
        aggregator.add(&sample(&stack));
    }
    let locations = functions.into_iter().map(|function| Location {
        frames: vec![function],
    });
    aggregator.finish(LocationTable {
        locations: locations.collect(),
    })
}

/// As many samples, hardly two of them alike: a walk over so many functions, so deep.
fn distinct(samples: u32, depth: u32, functions: u32) -> Profile {
    let mut state = 1_u32;
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % functions
    };
    let stacks: Vec<Vec<u32>> = (0..samples)
        .map(|_| (0..depth).map(|_| next()).collect())
        .collect();
    let functions = (0..functions).map(|n| python(&format!("f{n}"), "/gen.py"));
    of_functions(functions.collect(), stacks)
}

fn rendered(profile: &Profile, format: Format, options: &OutputOptions) -> (Rendered, String) {
    let rendered = render(profile, format, options).expect("samples");
    let mut out = Vec::new();
    rendered.write(&mut out).expect("a vector takes everything");
    (rendered, String::from_utf8(out).expect("text"))
}

fn mixed() -> OutputOptions {
    OutputOptions {
        view: View::Mixed,
        subtitle: "1,000 samples at 99 Hz (cpu-clock) in 10.0 s, 100 % of the stacks complete"
            .into(),
        ..OutputOptions::default()
    }
}

/// A frame of a picture.
#[derive(Debug)]
struct Shown {
    title: String,
    y: i64,
    first: u64,
    samples: u64,
}

fn frames(svg: &str) -> Vec<Shown> {
    let options = roxmltree::ParsingOptions {
        allow_dtd: true,
        ..roxmltree::ParsingOptions::default()
    };
    let document = roxmltree::Document::parse_with_options(svg, options).expect("well-formed");
    let frames = document
        .descendants()
        .find(|node| node.attribute("id") == Some("frames"))
        .expect("frames");
    let child = |group: roxmltree::Node<'_, '_>, name: &str| {
        let mut children = group.children();
        let found = children.find(|node| node.tag_name().name() == name);
        found.expect("it is there").id()
    };
    let groups = frames.children().filter(roxmltree::Node::is_element);
    let frame = |group: roxmltree::Node<'_, '_>| {
        let node = |name| document.get_node(child(group, name)).expect("a node");
        let number = |name: &str, of_graph: bool| {
            let rect = node("rect");
            let mut all = rect.attributes();
            let found = all.find(|it| it.name() == name && it.namespace().is_some() == of_graph);
            found
                .expect("it is there")
                .value()
                .parse::<u64>()
                .expect("a number")
        };
        Shown {
            title: node("title").text().expect("a title").to_owned(),
            y: number("y", false) as i64,
            first: number("x", true),
            samples: number("w", true),
        }
    };
    groups.map(frame).collect()
}

/// Each frame is as wide as those above it, or wider, by the samples that end in it. Gives these.
fn own_samples(frames: &[Shown]) -> BTreeMap<&str, u64> {
    let mut own = BTreeMap::new();
    for frame in frames {
        let above = frames.iter().filter(|it| {
            it.y == frame.y - 17
                && it.first >= frame.first
                && it.first + it.samples <= frame.first + frame.samples
        });
        let above: u64 = above.map(|it| it.samples).sum();
        assert!(above <= frame.samples, "{frame:?} and {above} above it");
        let label = frame.title.rsplit_once(" (").expect("numbers").0;
        *own.entry(label).or_default() += frame.samples - above;
    }
    own
}

fn folded_samples(text: &str) -> u64 {
    let counts = text
        .lines()
        .map(|line| line.rsplit_once(' ').expect("a count").1);
    counts
        .map(|count| count.parse::<u64>().expect("a number"))
        .sum()
}

#[test]
fn a_picture_of_too_many_frames_has_the_widest_and_all_samples() {
    for (samples, depth, functions) in [(4000, 150, 40), (300, 1000, 40), (9000, 2, 8000)] {
        let profile = distinct(samples, depth, functions);
        let (rendered, svg) = rendered(&profile, Format::Svg, &mixed());
        let frames = frames(&svg);
        assert!(
            (4900..=5001).contains(&frames.len()),
            "{} frames, of {depth}",
            frames.len()
        );
        let own = own_samples(&frames);
        assert_eq!(own.values().sum::<u64>(), u64::from(samples));
        assert_eq!(own["all"], 0);
        let shortened = rendered.shortened();
        assert_eq!(shortened.frames + 1, frames.len() as u64);
        let merged = frames.iter().filter(|frame| frame.title.starts_with("… "));
        let (mut count, mut in_them, mut widest) = (0, 0, 0);
        for frame in merged {
            let (label, numbers) = frame.title.split_once(" frames (").expect("a label");
            assert!(
                numbers.starts_with("smaller ones, merged: a search does not find them, "),
                "{frame:?}"
            );
            count += label[4..]
                .replace(',', "")
                .parse::<u64>()
                .expect("a number");
            in_them += frame.samples;
            widest = widest.max(frame.samples);
        }
        assert_eq!(count, shortened.merged);
        assert!((in_them as f64 / f64::from(samples) - shortened.merged_share).abs() < 1e-9);
        // Where a cut farther up is possible, no rest is wide.
        assert!(depth == 2 || widest < u64::from(samples) / 100, "{widest}");
    }
}

#[test]
fn the_picture_says_what_was_merged() {
    let (rendered, svg) = rendered(&distinct(4000, 150, 40), Format::Svg, &mixed());
    let merged = rendered.shortened().merged;
    let grouped = format!("{},{:03}", merged / 1000, merged % 1000);
    let said = format!(
        "100 % of the stacks complete · … stands for {grouped} smaller frames · click to zoom"
    );
    assert!(svg.contains(&said), "no {said}");
    let (_, description) = svg.split_once("<desc>").expect("a description");
    let (description, _) = description.split_once("</desc>").expect("its end");
    assert!(
        description.contains(&format!(
            "{grouped} smaller ones are merged into frames called …"
        )),
        "{description}"
    );
}

#[test]
fn room_that_is_left_goes_to_some_of_the_frames_that_are_equally_narrow() {
    let mut builder = Builder::new(false);
    // One of 30,000 samples is less than 0.01 %.
    for n in 0..20_000 {
        builder.add(
            &[
                python("main", "/m.py"),
                python(&format!("f{}", n % 10_000), "/m.py"),
            ],
            1,
        );
    }
    builder.add(&[python("main", "/m.py"), python("wide", "/m.py")], 10_000);
    let profile = builder.finish();
    let (_, again) = rendered(&profile, Format::Svg, &mixed());
    let (rendered, svg) = rendered(&profile, Format::Svg, &mixed());
    // Which of them are shown is no chance.
    assert_eq!(svg, again);
    let frames = frames(&svg);
    let own = own_samples(&frames);
    assert_eq!(own["main (m.py)"], 0);
    assert_eq!(own["wide (m.py)"], 10_000);
    assert!((4950..=5001).contains(&frames.len()), "{}", frames.len());
    let merged = rendered.shortened().merged;
    // All of these functions are shown, or merged; `all`, `main`, `wide` and the frame that stands for the others are shown, too.
    assert_eq!(merged + frames.len() as u64, 10_000 + 4);
    assert_eq!(own.values().sum::<u64>(), 30_000);
}

/// 300 functions that call each other at random, in as many samples as make one of them narrower than 0.01 %.
#[test]
fn a_picture_of_functions_that_call_each_other_at_random_is_full() {
    let (rendered, svg) = rendered(&distinct(10_586, 30, 300), Format::Svg, &mixed());
    let shown = frames(&svg).len();
    assert!((4950..=5001).contains(&shown), "{shown}");
    assert_eq!(rendered.shortened().frames + 1, shown as u64);
}

#[test]
fn a_picture_that_shows_everything_says_nothing_of_it() {
    let (rendered, svg) = rendered(&distinct(20, 20, 5), Format::Svg, &mixed());
    assert!(rendered.shortened().is_nothing());
    assert!(!svg.contains('…'), "{svg}");
}

/// Names as long as they are read, one deep stack after the other, in an order of its own each.
fn long_names(stacks: u32) -> Profile {
    let name = "\u{20000}".repeat(8190);
    let functions: Vec<Frame> = (0..97)
        .map(|n| python_at(&format!("{name}{}", n % 10), "/srv/deep.py", n + 1, n + 1))
        .collect();
    let stacks = (0..stacks).map(|n| (0..900).map(|depth| (depth * (n + 3) + n) % 97).collect());
    of_functions(functions, stacks)
}

#[test]
fn a_line_is_bounded_and_functions_stay_distinct() {
    let profile = long_names(6);
    for granularity in [Granularity::Functions, Granularity::Lines] {
        let options = OutputOptions {
            granularity,
            ..mixed()
        };
        let (rendered, text) = rendered(&profile, Format::Folded, &options);
        assert!(text.lines().all(|line| line.len() <= (256 << 10) + 22));
        assert_eq!(folded_samples(&text), 6);
        let functions: std::collections::BTreeSet<&str> = text
            .lines()
            .flat_map(|line| line.rsplit_once(' ').expect("a count").0.split(';'))
            .collect();
        assert_eq!(functions.len(), 97);
        if granularity == Granularity::Functions {
            assert_eq!(rendered.shortened().names, 97);
            // The middle is missing, not the file.
            assert!(
                functions
                    .iter()
                    .all(|it| it.contains('…') && it.contains("/srv/deep.py"))
            );
        }
    }
}

#[test]
fn a_picture_of_long_names_is_bounded() {
    let (_, svg) = rendered(&long_names(60), Format::Svg, &mixed());
    assert!(svg.len() < 17 << 20, "{}", svg.len());
    assert_eq!(own_samples(&frames(&svg)).values().sum::<u64>(), 60);
}

#[test]
fn a_file_of_folded_stacks_is_bounded_and_has_all_samples() {
    let profile = distinct(2000, 100, 40);
    let whole = rendered(&profile, Format::Folded, &mixed()).1;
    assert_eq!(folded_samples(&whole), 2000);
    let (lines, shortened) = super::folded::render_within(&profile, &mixed(), 200_000);
    let mut out = Vec::new();
    lines.write(&mut out).expect("a vector takes everything");
    let text = String::from_utf8(out).expect("text");
    assert!(
        text.len() <= 200_000 && text.len() > 40_000,
        "{}",
        text.len()
    );
    assert_eq!(folded_samples(&text), 2000);
    assert!(shortened.merged > 100_000 && shortened.merged_share > 0.5);
    let merged: Vec<&str> = text
        .lines()
        .filter(|it| it.contains(";[merged] "))
        .collect();
    let in_them = folded_samples(&merged.join("\n")) as f64;
    assert!((in_them / 2000.0 - shortened.merged_share).abs() < 1e-9);
    // A reader understands it as the first part of the whole file.
    for line in text.lines().filter(|it| !it.contains("[merged]")) {
        let stack = line.rsplit_once(' ').expect("a count").0;
        assert!(whole.contains(stack), "{stack}");
    }
}

#[test]
fn names_that_are_written_alike_are_numbered() {
    let mut builder = Builder::new(false);
    for name in ["a\nb", "a\\nb", "a;b", "a\u{204f}b", "plain"] {
        builder.add(&[python(name, "/m.py")], 1);
    }
    let text = rendered(&builder.finish(), Format::Folded, &mixed()).1;
    assert_eq!(
        text,
        "py::a\\nb:/m.py 1\npy::a\\nb:/m.py #2 1\npy::a\u{204f}b:/m.py 1\npy::a\u{204f}b:/m.py #2 1\npy::plain:/m.py 1\n"
    );
}
