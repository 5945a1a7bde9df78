//! Folded stacks: text, one line per stack, `root;…;leaf COUNT`.
//!
//! A Python frame is written `py::NAME:FILE`, as CPython writes it into perf maps, so that what reads those reads these;
//! of functions that share name and file, each has the line it begins in behind that, `py::NAME:FILE:LINE`. Told apart
//! by line, Python frames are written `NAME (file.py:LINE)`, as in a picture. A frame of compiled code is its symbol, or
//! `module+0xoffset`; a kernel frame ends in `_[k]`. Where several processes or threads are told apart, they are the
//! outermost frames: `app.py [12]`, `name [34]`. A stack whose outer part is missing begins with `[truncated]`.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use rustc_hash::FxHashMap;

use super::{
    OutputOptions,
    functions::{Code, Function, FunctionStacks},
    label, name,
};
use crate::{
    model::FrameKind,
    profile::{Granularity, Profile},
};

/// Longest text of a name or file, in characters.
const CHARS_MAX: usize = 8192;

/// Writes the lines, sorted by their frames.
pub(super) fn write(
    profile: &Profile,
    options: &OutputOptions,
    out: &mut dyn Write,
) -> io::Result<()> {
    let functions = FunctionStacks::new(profile, options.view, options.granularity);
    let of_functions: Vec<Function<'_>> = functions.functions.iter().copied().collect();
    let texts = match options.granularity {
        Granularity::Functions => by_function(&of_functions),
        Granularity::Lines => by_line(&of_functions),
    };
    let lines = functions.with_texts(&texts);
    let mut line = String::new();
    for (stack, count) in &lines.stacks {
        line.clear();
        lines.push_line(stack, *count, &mut line);
        out.write_all(line.as_bytes())?;
    }
    Ok(())
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
            kind: FrameKind::Native | FrameKind::Interpreter | FrameKind::Jit,
            name,
            ..
        } => clean(name),
    }
}
