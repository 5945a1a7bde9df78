//! Folded stacks: text, one line per stack, `root;…;leaf COUNT`.
//!
//! A Python frame is written `py::NAME:FILE`, as CPython writes it into perf maps, so that what reads those reads these;
//! of functions that share name and file, each has the line it begins in behind that, `py::NAME:FILE:LINE`. Told apart
//! by line, Python frames are written `NAME (file.py:LINE)`, as in a picture. A frame of compiled code is its symbol, or
//! `module+0xoffset`; a kernel frame ends in `_[k]`. Where several processes or threads are told apart, they are the
//! outermost frames: `app.py [12]`, `name [34]`. A stack whose outer part is missing begins with `[truncated]`.
//! `[order unknown]` stands before Python frames whose place among the native ones is not known.
//!
//! A line and a file have bounds. Names that make a line too long lose their middle, in all lines. Where a file would be
//! too large, rare stacks lose their inner part, and end in `[merged]`; their samples are counted there.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use rustc_hash::{FxHashMap, FxHashSet};

use super::{
    OutputOptions, Shortened,
    functions::{Code, Function, FunctionStacks, TextStacks, end_line},
    label, name,
    reduce::{Cut, Kept, Room, Sizes},
};
use crate::{
    model::FrameKind,
    profile::{Granularity, Profile},
};

/// Longest text of a name or file, in characters.
const CHARS_MAX: usize = 8192;
/// Longest line, without its count.
const LINE_BYTES_MAX: usize = 256 << 10;
/// Largest file.
const FILE_BYTES_MAX: u64 = 128 << 20;
/// Bytes that are left for a number, where two names are cut to one.
const NUMBER_BYTES: usize = 12;
/// Bytes of a count with what is around it.
const COUNT_BYTES: u64 = 22;

/// The frame that ends a stack whose inner part was left out.
const MERGED: &str = "[merged]";

/// Folded stacks, ready to be written.
#[derive(Debug)]
pub(super) struct Lines {
    lines: TextStacks,
    /// `None` where everything is written.
    cut: Option<Cut>,
}

/// Makes the lines, sorted by their frames.
pub(super) fn render(profile: &Profile, options: &OutputOptions) -> (Lines, Shortened) {
    render_within(profile, options, FILE_BYTES_MAX)
}

/// The same for a file of the given size in bytes.
pub(super) fn render_within(
    profile: &Profile,
    options: &OutputOptions,
    file_bytes_max: u64,
) -> (Lines, Shortened) {
    let stacks = FunctionStacks::new(profile, options.view, options.granularity);
    let functions: Vec<Function<'_>> = stacks.functions.iter().copied().collect();
    let mut texts = match options.granularity {
        Granularity::Functions => by_function(&functions),
        Granularity::Lines => by_line(&functions),
    };
    let names = cut_long_lines(stacks.stacks(), &mut texts);
    tell_apart(&functions, options.granularity, &mut texts);
    let lines = stacks.into_texts(texts);
    let mut shortened = Shortened {
        names,
        ..Shortened::default()
    };
    let cut = cut_large_file(&lines, file_bytes_max);
    if let Some(cut) = &cut {
        let samples: u64 = lines.stacks.iter().map(|(_, count)| count).sum();
        let extent = cut.for_each(&lines.stacks, |_, _| {});
        shortened.frames = extent.frames;
        shortened.merged = extent.merged;
        shortened.merged_share = extent.merged_samples as f64 / samples as f64;
    }
    (Lines { lines, cut }, shortened)
}

impl Lines {
    pub(super) fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut line = String::new();
        let Some(cut) = &self.cut else {
            for (stack, count) in &self.lines.stacks {
                line.clear();
                self.lines.push_frames(stack, &mut line);
                end_line(None, *count, &mut line);
                out.write_all(line.as_bytes())?;
            }
            return Ok(());
        };
        let mut written = Ok(());
        let mut push = |path: &[u32], more: Option<&str>, count: u64| {
            line.clear();
            self.lines.push_frames(path, &mut line);
            end_line(more, count, &mut line);
            if written.is_ok() {
                written = out.write_all(line.as_bytes());
            }
        };
        cut.for_each(&self.lines.stacks, |path, Kept { own, merged }| {
            if own > 0 {
                push(path, None, own);
            }
            if let Some(merged) = merged {
                let only = &self.lines.texts[merged.first as usize];
                let more = if merged.is_several() { MERGED } else { only };
                push(path, Some(more), merged.samples);
            }
        });
        written
    }
}

/// Cuts the names in lines that are too long, in the middle: of a path, the end says most. Says how many were cut.
fn cut_long_lines<'s>(stacks: impl Iterator<Item = &'s [u32]>, texts: &mut [String]) -> u64 {
    let lengths: Vec<usize> = texts.iter().map(String::len).collect();
    let mut limits = vec![usize::MAX; texts.len()];
    for stack in stacks {
        let length = |limit: usize| -> usize {
            let texts = stack.iter().map(|it| lengths[*it as usize].min(limit));
            texts.sum::<usize>() + stack.len()
        };
        if length(usize::MAX) <= LINE_BYTES_MAX {
            continue;
        }
        // The longest that texts may be so that the line is short enough. That much is left to each in any case.
        let (mut fits, mut too_long) = (LINE_BYTES_MAX / stack.len() - 1, LINE_BYTES_MAX);
        while too_long - fits > 1 {
            let limit = usize::midpoint(fits, too_long);
            if length(limit) <= LINE_BYTES_MAX {
                fits = limit;
            } else {
                too_long = limit;
            }
        }
        for function in stack {
            let limit = &mut limits[*function as usize];
            *limit = fits.min(*limit);
        }
    }
    let mut cut = 0;
    for (text, limit) in texts.iter_mut().zip(limits) {
        if text.len() > limit {
            *text = name::without_middle(text, limit - NUMBER_BYTES);
            cut += 1;
        }
    }
    cut
}

/// Gives a number to those that are different and are written alike, as what tells them apart was cut or cannot be shown.
fn tell_apart(functions: &[Function<'_>], granularity: Granularity, texts: &mut [String]) {
    let mut uses: FxHashMap<&str, Vec<usize>> = FxHashMap::default();
    for (index, text) in texts.iter().enumerate() {
        uses.entry(text).or_default().push(index);
    }
    let mut alike: Vec<Vec<usize>> = uses.into_values().filter(|uses| uses.len() > 1).collect();
    if alike.is_empty() {
        return;
    }
    alike.sort_unstable_by(|a, b| texts[a[0]].cmp(&texts[b[0]]));
    let mut taken: FxHashSet<String> = texts.iter().cloned().collect();
    for indices in alike {
        let mut identities: Vec<(Function<'_>, usize)> = indices
            .into_iter()
            .map(|index| (identity(functions[index], granularity), index))
            .collect();
        identities.sort_unstable();
        let first = identities[0].0;
        let mut number = 1;
        let (mut last, mut name) = (first, texts[identities[0].1].clone());
        let text = name.clone();
        for (identity, index) in identities {
            if identity != last {
                last = identity;
                while !taken.insert(name.clone()) {
                    number += 1;
                    name = format!("{text} #{number}");
                }
            }
            texts[index].clone_from(&name);
        }
    }
}

/// What of a function is written, as it was recorded: functions that agree in this are one.
fn identity(function: Function<'_>, granularity: Granularity) -> Function<'_> {
    let Function::Code(code) = function else {
        return function;
    };
    let kind = match code.kind {
        FrameKind::Native | FrameKind::CLibrary | FrameKind::Interpreter | FrameKind::Jit => {
            FrameKind::Native
        }
        kind => kind,
    };
    if kind == FrameKind::Python {
        return match granularity {
            Granularity::Functions => Function::Code(Code {
                module: None,
                first_line: code.first_line.filter(|_| code.file.is_some()),
                ..code
            }),
            Granularity::Lines => function,
        };
    }
    Function::Code(Code {
        kind,
        name: code.name,
        file: None,
        module: None,
        first_line: None,
        line: None,
    })
}

/// Which frames are written where there is no room for all.
fn cut_large_file(lines: &TextStacks, file_bytes_max: u64) -> Option<Cut> {
    let sizes: Vec<u32> = lines.texts.iter().map(|text| text.len() as u32).collect();
    let line = |stack: &[u32]| -> u64 {
        let frames = stack.iter().map(|it| u64::from(sizes[*it as usize]) + 1);
        frames.sum::<u64>() + COUNT_BYTES
    };
    let bytes: u64 = lines.stacks.iter().map(|(stack, _)| line(stack)).sum();
    (bytes > file_bytes_max).then(|| {
        let room = Room {
            frames: u64::MAX,
            frame_bytes: u64::MAX,
            line_bytes: file_bytes_max,
        };
        let sizes = Sizes {
            frame: &sizes,
            line: &sizes,
        };
        Cut::new(&lines.stacks, &room, sizes)
    })
}

fn by_function(functions: &[Function<'_>]) -> Vec<String> {
    let mut texts: Vec<String> = functions.iter().map(text).collect();
    let mut uses: FxHashMap<&str, u32> = FxHashMap::default();
    for text in &texts {
        *uses.entry(text).or_insert(0) += 1;
    }
    let shared: Vec<bool> = texts.iter().map(|text| uses[text.as_str()] > 1).collect();
    for ((function, text), shared) in functions.iter().zip(&mut texts).zip(shared) {
        if let Function::Code(Code {
            file: Some(_),
            first_line: Some(line),
            ..
        }) = function
            && shared
        {
            // Writing to a string cannot fail.
            let _ = write!(text, ":{line}");
        }
    }
    texts
}

fn by_line(functions: &[Function<'_>]) -> Vec<String> {
    let is_python = |function: &Function<'_>| {
        matches!(
            function,
            Function::Code(Code {
                kind: FrameKind::Python,
                ..
            })
        )
    };
    let python = functions.iter().copied().filter(|it| is_python(it));
    let mut labels = label::labels(python, Granularity::Lines).into_iter();
    let texts = functions.iter().map(|function| {
        let label = is_python(function).then(|| labels.next()).flatten();
        label.unwrap_or_else(|| text(function))
    });
    texts.collect()
}

fn text(function: &Function<'_>) -> String {
    let clean = |raw| name::clean(raw, CHARS_MAX);
    let text = match *function {
        Function::Code(code) => code_text(code),
        Function::Process {
            pid,
            name: Some(name),
        } => format!("{} [{pid}]", clean(&name.label)),
        Function::Process { pid, name: None } => format!("[pid {pid}]"),
        Function::Thread { tid, name } => {
            format!("{} [{tid}]", clean(&String::from_utf8_lossy(name)))
        }
        Function::Truncated => "[truncated]".to_owned(),
        Function::NotMerged => "[order unknown]".to_owned(),
        Function::NoFrames => "[no frames]".to_owned(),
    };
    name::frame(&text)
}

fn code_text(code: Code<'_>) -> String {
    let clean = |raw| name::clean(raw, CHARS_MAX);
    match code {
        Code {
            kind: FrameKind::Python,
            name,
            file: Some(file),
            ..
        } => format!("py::{}:{}", clean(name), clean(file)),
        Code {
            kind: FrameKind::Python,
            name,
            file: None,
            ..
        } => format!("py::{}", clean(name)),
        Code {
            kind: FrameKind::Kernel,
            name,
            ..
        } => format!("{}_[k]", clean(name)),
        Code {
            kind: FrameKind::Native | FrameKind::CLibrary | FrameKind::Interpreter | FrameKind::Jit,
            name,
            ..
        } => clean(name),
    }
}
