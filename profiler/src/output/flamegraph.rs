//! The flame graph: an SVG that is searched and zoomed in a browser. The only file that names inferno.
//!
//! inferno lays out and draws; it gets labels that are unique per function, and a colour for each. What it cannot be
//! told (a tooltip that says more than the label, the legend, the notes) is added to its drawing by `svg`.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, Write},
};

use inferno::flamegraph::{self, Options, TextTruncateDirection, color};

use super::{
    OutputOptions, Shortened,
    color::Group,
    functions::{Code, Function, FunctionStacks, TextStacks, end_line},
    label, name,
    reduce::{Cut, Extent, Kept, Merged, Room, Sizes},
    svg::{self, Additions},
};
use crate::profile::{Granularity, Profile, Quality};

/// How the picture is used, said in the picture.
const HINT: &str = "open in a browser: click to zoom, Ctrl+F to search";
/// The same in fewer words.
const SHORT_HINT: &str = "click to zoom, Ctrl+F to search";
/// What fits beside the buttons, and under them, of a picture of 1,200 pixels.
const TITLE_CHARS_MAX: usize = 90;
const SUBTITLE_CHARS_MAX: usize = 155;

/// Longest command line in a tooltip, in characters: class paths and code after `-c` can be endless.
const COMMAND_CHARS_MAX: usize = 2048;

const FONT_SIZE: usize = 12;
const FRAME_HEIGHT: usize = 17;
const BACKGROUND: [u8; 3] = [255, 255, 255];

/// Frames of a picture. Chromium takes 1.2 s of CPU time to open a picture with this number, and 0.16 ms more for each further
/// frame: minutes for half a million.
const FRAMES_MAX: u64 = 5_000;
/// Bytes of all frames of a picture.
const FRAME_BYTES_MAX: u64 = 16 << 20;
/// Bytes of a frame besides its texts, at most.
const MARKUP_BYTES: usize = 320;
/// Text that is given to the drawing library: a line for each stack.
const TEXT_BYTES_MAX: u64 = 64 << 20;

/// A picture, ready to be written.
#[derive(Debug)]
pub(super) struct Picture {
    drawing: String,
    additions: Additions,
}

impl Picture {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        svg::write(&self.drawing, &self.additions, out)
    }
}

/// Draws the profile.
pub(super) fn render(
    profile: &Profile,
    options: &OutputOptions,
) -> io::Result<(Picture, Shortened)> {
    let stacks = FunctionStacks::new(profile, options.view, options.granularity);
    let labels = label::labels(stacks.functions.iter().copied(), options.granularity);
    let functions: Vec<Function<'_>> = stacks.functions.iter().copied().collect();
    let misses = stacks.misses.clone();
    let lines = stacks.into_texts(labels);
    let tooltip = |index: usize| {
        let miss = misses.get(&(index as u32)).map(ToString::to_string);
        let function = &functions[index];
        tooltip(
            function,
            options.granularity,
            miss.as_deref(),
            &profile.quality,
        )
    };
    let mut frame_bytes = vec![0; lines.texts.len()];
    for (index, rank) in lines.ranks.iter().enumerate() {
        let label = 2 * svg::escaped_len(&lines.texts[*rank as usize]);
        let bytes = MARKUP_BYTES + label + svg::escaped_len(&tooltip(index));
        frame_bytes[*rank as usize] = bytes as u32;
    }
    let (text, drawn, extent) = text(&lines, &frame_bytes);
    let samples: u64 = lines.stacks.iter().map(|(_, count)| count).sum();
    let shortened = Shortened {
        frames: extent.frames,
        merged: extent.merged,
        merged_share: extent.merged_samples as f64 / samples as f64,
        names: 0,
    };

    let mut additions = Additions {
        notes: notes(profile, options, &shortened),
        ..Additions::default()
    };
    let mut palette = color::PaletteMap::default();
    palette.insert("", rgb(Group::Other.color())); // the frame under all others
    let mut legend = BTreeMap::new();
    for (index, (function, rank)) in functions.iter().zip(&lines.ranks).enumerate() {
        if !drawn.functions[*rank as usize] {
            continue;
        }
        let label = &lines.texts[*rank as usize];
        let group = Group::of(function);
        palette.insert(label, rgb(group.color_of(label)));
        if group != Group::Other {
            legend.insert(group, (group.name(), group.color()));
        }
        let tooltip = tooltip(index);
        if !tooltip.is_empty() {
            additions.tooltips.insert(label.clone(), tooltip);
        }
    }
    for label in drawn.merged {
        palette.insert(&label, rgb(Group::Other.color()));
        additions.tooltips.insert(label, MERGED_TOOLTIP.to_owned());
    }
    additions.legend = legend.into_values().collect();
    let drawing = draw(&text, options, &shortened, &mut palette)?;
    Ok((Picture { drawing, additions }, shortened))
}

/// What is in the text that is drawn.
#[derive(Debug, Default)]
struct Drawn {
    /// By the numbers of their texts.
    functions: Vec<bool>,
    /// What frames are called that stand for others.
    merged: BTreeSet<String>,
}

/// As many frames as there is room for, as folded stacks.
fn text(lines: &TextStacks, frame_bytes: &[u32]) -> (String, Drawn, Extent) {
    let line_bytes: Vec<u32> = lines.texts.iter().map(|text| text.len() as u32).collect();
    let room = Room {
        frames: FRAMES_MAX,
        frame_bytes: FRAME_BYTES_MAX,
        line_bytes: TEXT_BYTES_MAX,
    };
    let sizes = Sizes {
        frame: frame_bytes,
        line: &line_bytes,
    };
    let cut = Cut::new(&lines.stacks, &room, sizes);
    let mut text = String::new();
    let mut drawn = Drawn {
        functions: vec![false; lines.texts.len()],
        ..Drawn::default()
    };
    let extent = cut.for_each(&lines.stacks, |path, Kept { own, merged }| {
        if let Some(function) = path.last() {
            drawn.functions[*function as usize] = true;
        }
        if own > 0 {
            lines.push_frames(path, &mut text);
            end_line(None, own, &mut text);
        }
        if let Some(merged) = merged {
            lines.push_frames(path, &mut text);
            if merged.is_several() {
                let label = merged_label(merged);
                end_line(Some(&label), merged.samples, &mut text);
                drawn.merged.insert(label);
            } else {
                let function = merged.first as usize;
                end_line(Some(&lines.texts[function]), merged.samples, &mut text);
                drawn.functions[function] = true;
            }
        }
    });
    (text, drawn, extent)
}

/// What a frame is called that stands for others. No function's label begins like this.
fn merged_label(merged: Merged) -> String {
    format!("… {} frames", grouped(merged.frames))
}

const MERGED_TOOLTIP: &str = "smaller ones, merged: a search does not find them";

/// `2970` as `2,970`.
fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let groups = digits.as_bytes().rchunks(3).rev();
    let groups: Vec<_> = groups.map(String::from_utf8_lossy).collect();
    groups.join(",")
}

fn draw(
    text: &str,
    options: &OutputOptions,
    shortened: &Shortened,
    palette: &mut color::PaletteMap,
) -> io::Result<String> {
    let mut how = Options::default();
    how.title = name::clean(&options.title, TITLE_CHARS_MAX);
    how.subtitle = Some(subtitle(&options.subtitle, shortened));
    how.image_width = options.width;
    how.min_width = 0.0; // what there is no room for is in the frames that stand for it
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
                .filter(|(end, _)| !end.has_root())
                .map(|(end, count)| format!("{end}: {count}"))
                .collect();
            format!(
                "the callers of these frames are missing, {}",
                reasons.join(", ")
            )
        }
        Function::NotMerged => {
            "Python functions follow, and native ones that the innermost of them called; which of \
             the callers of this box are between them is not known"
                .to_owned()
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

fn subtitle(facts: &str, shortened: &Shortened) -> String {
    let how = if shortened.merged > 0 {
        let merged = grouped(shortened.merged);
        format!("… stands for {merged} smaller frames · {SHORT_HINT}")
    } else {
        HINT.to_owned()
    };
    if facts.is_empty() {
        return how;
    }
    let room = SUBTITLE_CHARS_MAX - how.chars().count() - 3;
    format!("{} · {how}", name::clean(facts, room))
}

/// The caller's facts, whole where the picture has only part of them, and what must be known to read the picture.
fn notes(profile: &Profile, options: &OutputOptions, shortened: &Shortened) -> Vec<String> {
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
    if shortened.merged > 0 {
        notes.push(format!(
            "The picture shows {} frames; {} smaller ones are merged into frames called …, in which {:.1} % of the \
             samples end. A search does not find them. Folded stacks (--format folded) have room for more.",
            grouped(shortened.frames),
            grouped(shortened.merged),
            100.0 * shortened.merged_share
        ));
    }
    notes.retain(|note| !note.is_empty());
    notes.iter().map(|note| name::clean(note, 4096)).collect()
}

fn rgb([r, g, b]: [u8; 3]) -> color::Color {
    color::Color { r, g, b }
}
