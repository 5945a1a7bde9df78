//! Profiles whose names are anything at all, and what is written of them.
//!
//! Input: two bytes of switches, then stacks: the number of frames, the count, how the stack ended, and the frames: a byte
//! of switches, up to three texts behind their lengths, and two lines of a byte each.

use std::collections::BTreeMap;

use super::input::Input;
use crate::{
    model::{
        Avma, Frame, FrameKind, ImageId, KtimeNs, Location, LocationId, LocationTable, Pid,
        ResolveMiss, ResolvedStack, StackEnd, ThreadName, Tid, is_never_shown,
    },
    output::{Format, OutputOptions, write},
    profile::{Aggregator, Granularity, ProcessName, Profile, View},
};

/// Stacks of one input.
const STACKS_MAX: usize = 16;

/// The folded text can be read back, the SVG is well-formed XML that has every function in it, and neither holds a
/// character that a terminal or a reader would obey.
pub fn output(data: &[u8]) {
    let mut input = Input::new(data);
    let switches = input.number();
    let options = OutputOptions {
        view: [View::Mixed, View::Python, View::Native][switches % 3],
        granularity: if switches & 32 == 0 {
            Granularity::Functions
        } else {
            Granularity::Lines
        },
        title: text(&mut input),
        subtitle: text(&mut input),
        notes: vec![text(&mut input)],
        width: (switches & 64 != 0).then_some(1200),
    };
    let profile = profile(&mut input, switches & 128 != 0);
    if profile.is_empty() {
        return;
    }
    let expected = expected(&profile, options.view);
    let folded = written(&profile, Format::Folded, &options);
    assert_eq!(parsed(&folded), expected, "{folded}");
    check_svg(&written(&profile, Format::Svg, &options), &expected);
}

fn text(input: &mut Input<'_>) -> String {
    let length = usize::from(input.byte());
    String::from_utf8_lossy(input.bytes(length)).into_owned()
}

fn profile(input: &mut Input<'_>, keep_threads: bool) -> Profile {
    let mut aggregator = Aggregator::new(keep_threads);
    let mut table = LocationTable::default();
    let mut names = BTreeMap::new();
    for _ in 0..STACKS_MAX {
        if input.is_empty() {
            break;
        }
        let (frames, count, end) = (input.byte() % 16, input.byte() % 8, input.byte());
        let mut thread_name = [0; 16];
        let name = input.bytes(usize::from(end % 16));
        thread_name[..name.len()].copy_from_slice(name);
        let pid = Pid(u32::from(end % 3));
        let text = String::from_utf8_lossy(name).into_owned();
        let name = ProcessName {
            label: text.clone(),
            command: text,
        };
        names.insert(pid, name);
        let begin = table.locations.len() as u32;
        for _ in 0..frames {
            table.locations.push(Location {
                frames: vec![frame(input)],
            });
        }
        let resolved = ResolvedStack {
            image: ImageId(0),
            ktime: KtimeNs(0),
            pid,
            tid: Tid(u32::from(end)),
            thread_name: ThreadName(thread_name),
            in_kernel: false,
            guessed: end & 16 != 0,
            end: if end & 32 == 0 {
                StackEnd::Root
            } else {
                StackEnd::NoRule(Avma(7))
            },
            locations: (begin..table.locations.len() as u32)
                .map(LocationId)
                .collect(),
        };
        (0..=count).for_each(|_| aggregator.add(&resolved));
    }
    let mut profile = aggregator.finish(table);
    profile.process_names = names;
    profile
}

fn frame(input: &mut Input<'_>) -> Frame {
    let switches = input.byte();
    let kind = [
        FrameKind::Python,
        FrameKind::Native,
        FrameKind::Interpreter,
        FrameKind::Kernel,
        FrameKind::Jit,
        FrameKind::CLibrary,
    ][usize::from(switches % 6)];
    let has_lines = switches & 128 != 0;
    let optional = |is_there: bool, input: &mut Input<'_>| is_there.then(|| text(input).into());
    Frame {
        kind,
        name: text(input).into(),
        file: optional(switches & 16 != 0, input),
        module: optional(switches & 32 != 0, input),
        miss: (switches & 64 != 0).then_some(ResolveMiss::NoSymbol),
        first_line: has_lines.then(|| u32::from(input.byte())),
        line: has_lines.then(|| u32::from(input.byte())),
    }
}

/// How many frames a stack has, and how many samples there are of such stacks.
type Shape = BTreeMap<usize, u64>;

fn expected(profile: &Profile, view: View) -> Shape {
    let mut shape = Shape::new();
    for stack in profile.folded_view(view) {
        *shape.entry(stack.frames.len()).or_default() += stack.count;
    }
    shape
}

fn written(profile: &Profile, format: Format, options: &OutputOptions) -> String {
    let mut out = Vec::new();
    write(profile, format, options, &mut out).expect("a vector takes everything");
    let text = String::from_utf8(out).expect("outputs are text");
    for c in text.chars() {
        assert!(c == '\n' || !is_never_shown(c), "{c:?} in {text}");
    }
    text
}

/// Folded text as its readers understand it.
fn parsed(folded: &str) -> Shape {
    let mut shape = Shape::new();
    for line in folded.lines() {
        assert_eq!(line.trim(), line, "readers trim lines");
        assert!(!line.starts_with("# "), "a comment: {line}");
        let (stack, count) = line.rsplit_once(' ').expect("a count");
        let frames: Vec<&str> = stack.split(';').collect();
        assert!(frames.iter().all(|frame| !frame.is_empty()), "{line}");
        let count: u64 = count.parse().expect("the count is a number");
        *shape.entry(frames.len()).or_default() += count;
    }
    shape
}

/// Well-formed, without a script or a link that a name brought in, and with all samples.
fn check_svg(svg: &str, expected: &Shape) {
    let document = roxmltree::Document::parse_with_options(
        svg,
        roxmltree::ParsingOptions {
            allow_dtd: true,
            ..roxmltree::ParsingOptions::default()
        },
    );
    let document = document.unwrap_or_else(|error| panic!("{error}: {svg}"));
    let elements = |name: &'static str| {
        let all = document.descendants();
        all.filter(move |node| node.tag_name().name() == name)
    };
    assert_eq!(elements("script").count(), 1, "the one that draws");
    assert_eq!(elements("a").count() + elements("image").count(), 0);
    assert_eq!(elements("foreignObject").count(), 0);
    let handlers = document.descendants().flat_map(|node| node.attributes());
    let handlers = handlers.filter(|attribute| attribute.name().starts_with("on"));
    assert!(handlers.count() <= 1, "the one that begins to draw");
    let samples: u64 = expected.values().sum();
    let all = format!("all ({samples} sample");
    let titles: Vec<&str> = elements("title").filter_map(|node| node.text()).collect();
    assert!(
        titles.iter().any(|title| title.starts_with(&all)),
        "no {all:?} in {titles:?}"
    );
}
