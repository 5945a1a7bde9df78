//! The flame graph: an SVG that is searched and zoomed in a browser. The only file that names inferno.
//!
//! inferno lays out and draws; it gets labels that are unique per function, and a colour for each. What it cannot be
//! told (a tooltip that says more than the label, the legend, the notes) is added to its drawing by `svg`.

use std::{
    collections::BTreeMap,
    io::{self, Write},
};

use inferno::flamegraph::{self, Options, TextTruncateDirection, color};

use super::{
    OutputOptions,
    color::Group,
    functions::{Code, Function, FunctionStacks},
    label, name,
    svg::{self, Additions},
};
use crate::profile::{Granularity, Profile, Quality};

/// How the picture is used, said in the picture.
const HINT: &str = "open in a browser: click to zoom, Ctrl+F to search";
/// What fits beside the buttons, and under them, of a picture of 1,200 pixels.
const TITLE_CHARS_MAX: usize = 90;
const SUBTITLE_CHARS_MAX: usize = 155;

/// Longest command line in a tooltip, in characters: class paths and code after `-c` can be endless.
const COMMAND_CHARS_MAX: usize = 2048;

const FONT_SIZE: usize = 12;
const FRAME_HEIGHT: usize = 17;
const BACKGROUND: [u8; 3] = [255, 255, 255];

/// Draws the profile.
pub(super) fn write(
    profile: &Profile,
    options: &OutputOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let stacks = FunctionStacks::new(profile, options.view, options.granularity);
    let labels = label::labels(stacks.functions.iter().copied(), options.granularity);
    let mut additions = Additions {
        notes: notes(profile, options),
        ..Additions::default()
    };
    let mut palette = color::PaletteMap::default();
    palette.insert("", rgb(Group::Other.color())); // the frame under all others
    let mut legend = BTreeMap::new();
    for (index, (function, label)) in stacks.functions.iter().zip(&labels).enumerate() {
        let group = Group::of(function);
        palette.insert(label, rgb(group.color_of(label)));
        if group != Group::Other {
            legend.insert(group, (group.name(), group.color()));
        }
        let miss = stacks.misses.get(&(index as u32)).map(ToString::to_string);
        let tooltip = tooltip(
            function,
            options.granularity,
            miss.as_deref(),
            &profile.quality,
        );
        if !tooltip.is_empty() {
            additions.tooltips.insert(label.clone(), tooltip);
        }
    }
    additions.legend = legend.into_values().collect();
    let drawing = draw(&stacks, &labels, options, &mut palette)?;
    svg::write(&drawing, &additions, out)
}

fn draw(
    stacks: &FunctionStacks<'_>,
    labels: &[String],
    options: &OutputOptions,
    palette: &mut color::PaletteMap,
) -> io::Result<String> {
    let lines = stacks.with_texts(labels);
    let mut text = String::new();
    for (stack, count) in &lines.stacks {
        lines.push_line(stack, *count, &mut text);
    }
    let mut how = Options::default();
    how.title = name::clean(&options.title, TITLE_CHARS_MAX);
    how.subtitle = Some(subtitle(&options.subtitle));
    how.image_width = options.width;
    how.min_width = options.min_width_percent;
    how.font_size = FONT_SIZE;
    how.frame_height = FRAME_HEIGHT;
    how.text_truncate_direction = TextTruncateDirection::Right;
    how.bgcolors = Some(color::BackgroundColor::Flat(rgb(BACKGROUND)));
    how.palette_map = Some(palette);
    how.deterministic = true;
    "Function:".clone_into(&mut how.name_type);
    let mut drawing = Vec::new();
    flamegraph::from_lines(&mut how, text.lines(), &mut drawing)?;
    String::from_utf8(drawing).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// What a tooltip says between the label and the numbers.
fn tooltip(
    function: &Function<'_>,
    granularity: Granularity,
    miss: Option<&str>,
    quality: &Quality,
) -> String {
    match *function {
        Function::Code(code) => {
            let mut facts = places(code, granularity);
            facts.extend(miss.map(|miss| why_nameless(miss, code.module)));
            facts.join(", ")
        }
        Function::Truncated => {
            let reasons: Vec<String> = quality
                .incomplete
                .iter()
                .map(|(end, count)| format!("{end}: {count}"))
                .collect();
            format!(
                "the callers of these frames are missing, {}",
                reasons.join(", ")
            )
        }
        Function::NoFrames => "samples without a frame to show in this view".to_owned(),
        Function::Process {
            pid,
            name: Some(name),
        } => format!(
            "pid {pid}, {}",
            name::clean(&name.command, COMMAND_CHARS_MAX)
        ),
        Function::Process { name: None, .. } | Function::Thread { .. } => String::new(),
    }
}

/// The whole path with the function's first line, or with the one that was executing and then the first one: where they
/// are known.
fn places(code: Code<'_>, granularity: Granularity) -> Vec<String> {
    let Some(file) = code.file.map(|file| name::clean(file, 1024)) else {
        return Vec::new();
    };
    let with_line = |line: Option<u32>| match line {
        Some(line) => format!("{file}:{line}"),
        None => file.clone(),
    };
    match (granularity, code.first_line) {
        (Granularity::Functions, first_line) => vec![with_line(first_line)],
        (Granularity::Lines, None) => vec![with_line(code.line)],
        (Granularity::Lines, Some(first_line)) => vec![
            with_line(code.line),
            format!("function at line {first_line}"),
        ],
    }
}

fn why_nameless(miss: &str, module: Option<&str>) -> String {
    match module {
        Some(module) => format!("{miss} in {}", name::clean(module, 256)),
        None => miss.to_owned(),
    }
}

fn subtitle(facts: &str) -> String {
    if facts.is_empty() {
        return HINT.to_owned();
    }
    let room = SUBTITLE_CHARS_MAX - HINT.len() - 3;
    format!("{} · {HINT}", name::clean(facts, room))
}

/// The caller's facts, whole where the picture has only part of them, and what must be known to read the picture.
fn notes(profile: &Profile, options: &OutputOptions) -> Vec<String> {
    let mut notes: Vec<String> = vec![options.title.clone(), options.subtitle.clone()];
    notes.extend(options.notes.iter().cloned());
    notes.push(format!("View: {}.", options.view));
    if options.granularity == Granularity::Lines {
        notes.push("Python frames are told apart by line.".to_owned());
    }
    if profile.quality.guessed > 0 {
        notes.push(format!(
            "In {} samples the caller of one frame was guessed.",
            profile.quality.guessed
        ));
    }
    notes.push(format!(
        "Frames narrower than {} % are not drawn.",
        options.min_width_percent
    ));
    notes.retain(|note| !note.is_empty());
    notes.iter().map(|note| name::clean(note, 4096)).collect()
}

fn rgb([r, g, b]: [u8; 3]) -> color::Color {
    color::Color { r, g, b }
}
