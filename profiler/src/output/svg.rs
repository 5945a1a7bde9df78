//! What a finished drawing still lacks: tooltips with more than a label, a legend, a description.
//!
//! The drawing is read for a few fixed marks only. One that is not found is left out: a drawing is never broken by this.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use rustc_hash::FxHashMap;

/// Title, subtitle and legend share the space over the frames, which was measured for the first two alone.
const TITLE_Y: u32 = 20;
const SUBTITLE_Y: u32 = 37;
const LEGEND_Y: u32 = 54;

/// The search button is nearly invisible by default; the facts need not be as loud as the functions; neighbours of one
/// colour are told apart by a thin line.
const STYLE: &str = "#search { opacity: 0.7; } #unzoom { fill: #1a56b0; } #subtitle, #legend { fill: #444; } \
                     #legend { text-anchor: middle; } \
                     #frames > :not(:hover) > rect { stroke: #fff; stroke-width: 0.6; }";

/// What is added to a drawing.
#[derive(Debug, Default)]
pub(super) struct Additions {
    /// By label: what the tooltip says besides label and numbers.
    pub(super) tooltips: FxHashMap<String, String>,
    /// Names and colours of the kinds of code that are shown.
    pub(super) legend: Vec<(&'static str, [u8; 3])>,
    /// For the description.
    pub(super) notes: Vec<String>,
}

/// Writes `drawing` with the additions.
pub(super) fn write(drawing: &str, additions: &Additions, out: &mut dyn Write) -> io::Result<()> {
    let (head, frames) = drawing
        .split_once("<svg id=\"frames\"")
        .unwrap_or((drawing, ""));
    out.write_all(with_head(head, additions).as_bytes())?;
    if frames.is_empty() {
        return Ok(());
    }
    out.write_all(b"<svg id=\"frames\"")?;
    write_frames(frames, additions, out)
}

/// Everything before the frames: description, places of the texts, legend.
fn with_head(head: &str, additions: &Additions) -> String {
    let mut head = move_text(head, "title", TITLE_Y);
    head = move_text(&head, "subtitle", SUBTITLE_Y);
    if let Some(start) = head
        .find("<svg ")
        .and_then(|svg| Some(svg + head[svg..].find('>')? + 1))
    {
        head.insert_str(
            start,
            &format!("<desc>{}</desc>", escape(&additions.notes.join("\n"))),
        );
    }
    head.push_str(&legend(&additions.legend));
    head
}

/// Sets the `y` of the text element with this id.
fn move_text(head: &str, id: &str, y: u32) -> String {
    let moved = || {
        let element = head.find(&format!("<text id=\"{id}\""))?;
        let value = element + head[element..].find(" y=\"")? + 4;
        let end = value + head[value..].find('"')?;
        Some(format!("{}{y}{}", &head[..value], &head[end..]))
    };
    moved().unwrap_or_else(|| head.to_owned())
}

fn legend(entries: &[(&str, [u8; 3])]) -> String {
    let mut legend = format!(
        "<style type=\"text/css\">{STYLE}</style><text id=\"legend\" x=\"50%\" y=\"{LEGEND_Y}\">"
    );
    for (index, (name, [r, g, b])) in entries.iter().enumerate() {
        let gap = if index == 0 { 0 } else { 18 };
        // Writing to a string cannot fail.
        let _ = write!(
            legend,
            "<tspan dx=\"{gap}\" fill=\"rgb({r},{g},{b})\" stroke=\"#777\" stroke-width=\"0.5\">■</tspan>\
             <tspan dx=\"5\">{}</tspan>",
            escape(name)
        );
    }
    legend.push_str("</text>");
    legend
}

/// The frames, each `<title>LABEL (NUMBERS)</title>` as `<title>LABEL (MORE, NUMBERS)</title>`: the script in the
/// drawing takes a title without its last parenthesis for the label, so more may stand only in there.
fn write_frames(frames: &str, additions: &Additions, out: &mut dyn Write) -> io::Result<()> {
    let mut rest = frames;
    while let Some((before, after)) = rest.split_once("<title>") {
        out.write_all(before.as_bytes())?;
        out.write_all(b"<title>")?;
        rest = after;
        let Some((title, _)) = after.split_once("</title>") else {
            break;
        };
        let Some((label, numbers)) = title.rsplit_once(" (") else {
            continue;
        };
        let Some(more) = additions.tooltips.get(&unescape(label)) else {
            continue;
        };
        write!(
            out,
            "{label} ({}, ",
            escape(&more.replace('(', "[").replace(')', "]"))
        )?;
        rest = &after[title.len() - numbers.len()..];
    }
    out.write_all(rest.as_bytes())
}

/// Bytes of a text in a drawing, at most.
pub(super) fn escaped_len(text: &str) -> usize {
    let bytes = text.bytes().map(|byte| match byte {
        b'&' | b'<' | b'>' | b'"' | b'\'' => 6,
        _ => 1,
    });
    bytes.sum()
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
}

fn unescape(text: &str) -> String {
    if !text.contains('&') {
        return text.to_owned();
    }
    text.replace("&lt;", "<")
        .replace("&gt;", ">")
        .replace("&quot;", "\"")
        .replace("&apos;", "'")
        .replace("&amp;", "&")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(drawing: &str, additions: &Additions) -> String {
        let mut out = Vec::new();
        write(drawing, additions, &mut out).expect("a vector takes everything");
        String::from_utf8(out).expect("text in, text out")
    }

    #[test]
    fn a_tooltip_gets_its_file_before_the_numbers() {
        let mut additions = Additions::default();
        additions
            .tooltips
            .insert("f<x> (m.py)".to_owned(), "/a(b)/m.py".to_owned());
        let drawing = "<svg id=\"frames\"><g><title>f&lt;x&gt; (m.py) (3 samples, 30.00%)</title></g>\
                       <g><title>other (3 samples, 30.00%)</title></g></svg>";
        let written = written(drawing, &additions);
        assert!(
            written.contains("<title>f&lt;x&gt; (m.py) (/a[b]/m.py, 3 samples, 30.00%)</title>"),
            "{written}"
        );
        assert!(
            written.ends_with("<g><title>other (3 samples, 30.00%)</title></g></svg>"),
            "{written}"
        );
    }

    #[test]
    fn a_drawing_of_another_shape_is_left_as_it_is() {
        let additions = Additions::default();
        for drawing in [
            "<svg id=\"frames\"><title>cut",
            "<svg id=\"frames\"><title>no numbers</title></svg>",
        ] {
            assert!(written(drawing, &additions).ends_with(drawing));
        }
        assert!(written("nothing", &additions).starts_with("nothing"));
    }

    #[test]
    fn texts_are_moved_by_their_id() {
        assert_eq!(
            move_text("<text id=\"a\" x=\"1\" y=\"24.00\">", "a", 20),
            "<text id=\"a\" x=\"1\" y=\"20\">"
        );
        assert_eq!(
            move_text("<text id=\"b\" y=\"24.00\">", "a", 20),
            "<text id=\"b\" y=\"24.00\">"
        );
    }
}
