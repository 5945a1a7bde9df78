//! Folded stacks: text, one line per stack, `root;…;leaf COUNT`.
//!
//! A Python frame is written `py::NAME:FILE`, as CPython writes it into perf maps, so that what reads those reads these;
//! a frame of compiled code is its symbol, or `module+0xoffset`; a kernel frame ends in `_[k]`. Where several processes
//! or threads are told apart, they are the outermost frames: `app.py [12]`, `name [34]`. A stack whose outer part
//! is missing begins with `[truncated]`.

use std::io::{self, Write};

use super::{
    functions::{Code, Function, FunctionStacks},
    name,
};
use crate::{
    model::FrameKind,
    profile::{Profile, View},
};

/// Longest text of a name or file, in characters.
const CHARS_MAX: usize = 8192;

/// Writes the lines, sorted by their frames.
pub(super) fn write(profile: &Profile, view: View, out: &mut dyn Write) -> io::Result<()> {
    let functions = FunctionStacks::new(profile, view);
    let texts: Vec<String> = functions.functions.iter().map(text).collect();
    let lines = functions.with_texts(&texts);
    let mut line = String::new();
    for (stack, count) in &lines.stacks {
        line.clear();
        lines.push_line(stack, *count, &mut line);
        out.write_all(line.as_bytes())?;
    }
    Ok(())
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
