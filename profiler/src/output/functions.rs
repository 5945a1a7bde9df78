//! Stacks as numbers of functions, so that each function's text is made once and not once per stack.

use std::fmt::Write as _;

use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxBuildHasher, FxHashMap};

use super::reduce::Stack;
use crate::{
    model::{Frame, FrameKind, Pid, ResolveMiss, Tid},
    profile::{FirstLines, Granularity, ProcessName, Profile, View, ViewFrame},
};

/// What makes two frames the same function: everything but the line that was executing, unless it is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Function<'p> {
    Process {
        pid: Pid,
        name: Option<&'p ProcessName>,
    },
    Thread {
        tid: Tid,
        name: &'p [u8],
    },
    Truncated,
    NotMerged,
    NoFrames,
    Code(Code<'p>),
}

/// A function of a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Code<'p> {
    pub(super) kind: FrameKind,
    pub(super) name: &'p str,
    pub(super) file: Option<&'p str>,
    pub(super) module: Option<&'p str>,
    /// Of Python functions: two of one name in one file are two functions.
    pub(super) first_line: Option<u32>,
    /// The line that was executing, where Python frames are told apart by it.
    pub(super) line: Option<u32>,
}

/// One view of a profile.
#[derive(Debug, Default)]
pub(super) struct FunctionStacks<'p> {
    /// Each function once.
    pub(super) functions: IndexSet<Function<'p>, FxBuildHasher>,
    /// Why a function has no name, by its index.
    pub(super) misses: FxHashMap<u32, ResolveMiss>,
    stacks: IndexMap<Box<[u32]>, u64, FxBuildHasher>,
    granularity: Granularity,
    first_lines: FirstLines<'p>,
}

/// Stacks as numbers of texts, ready to be written.
#[derive(Debug)]
pub(super) struct TextStacks {
    /// Ascending, each once.
    pub(super) texts: Vec<String>,
    /// Outermost frame first, with its count. Ascending by the frames' texts, each once.
    pub(super) stacks: Vec<Stack>,
    /// The text of each function, by the function's number.
    pub(super) ranks: Vec<u32>,
}

impl<'p> FunctionStacks<'p> {
    /// All stacks of a profile as `view` shows them.
    pub(super) fn new(profile: &'p Profile, view: View, granularity: Granularity) -> Self {
        let frames = profile.locations.locations.iter().flat_map(|it| &it.frames);
        let mut this = Self {
            granularity,
            first_lines: FirstLines::of(frames),
            ..Self::default()
        };
        // Most frames are met many times: their address is quicker to look up than their text.
        let mut known: FxHashMap<*const Frame, u32> = FxHashMap::default();
        let mut numbers = Vec::new();
        for stack in profile.folded_view(view) {
            numbers.clear();
            numbers.extend(stack.frames.iter().map(|frame| {
                match frame {
                    ViewFrame::Code(code) => *known
                        .entry(std::ptr::from_ref(*code))
                        .or_insert_with(|| this.number(frame)),
                    _ => this.number(frame),
                }
            }));
            match this.stacks.get_mut(numbers.as_slice()) {
                Some(count) => *count += stack.count,
                None => drop(this.stacks.insert(numbers.as_slice().into(), stack.count)),
            }
        }
        this
    }

    /// The same with `texts[i]` for function `i`. Functions of one text become one.
    pub(super) fn into_texts(self, mut texts: Vec<String>) -> TextStacks {
        let mut order: Vec<u32> = (0..texts.len() as u32).collect();
        order.sort_unstable_by(|a, b| texts[*a as usize].cmp(&texts[*b as usize]));
        let mut ranks = vec![0; texts.len()];
        let mut sorted: Vec<String> = Vec::with_capacity(texts.len());
        for index in order {
            let text = std::mem::take(&mut texts[index as usize]);
            if sorted.last() != Some(&text) {
                sorted.push(text);
            }
            ranks[index as usize] = sorted.len() as u32 - 1;
        }
        let mut stacks: Vec<Stack> = self.stacks.into_iter().collect();
        for function in stacks.iter_mut().flat_map(|(stack, _)| stack.iter_mut()) {
            *function = ranks[*function as usize];
        }
        stacks.sort_unstable();
        stacks.dedup_by(|next, kept| {
            let same = next.0 == kept.0;
            if same {
                kept.1 += next.1;
            }
            same
        });
        TextStacks {
            texts: sorted,
            stacks,
            ranks,
        }
    }

    /// The stacks, as numbers of functions, in no order.
    pub(super) fn stacks(&self) -> impl Iterator<Item = &[u32]> {
        self.stacks.keys().map(AsRef::as_ref)
    }

    fn number(&mut self, frame: &ViewFrame<'p>) -> u32 {
        let function = match *frame {
            ViewFrame::Process { pid, name } => Function::Process { pid, name },
            ViewFrame::Thread(thread) => Function::Thread {
                tid: thread.tid,
                name: thread.name.as_bytes(),
            },
            ViewFrame::Truncated(_) => Function::Truncated,
            ViewFrame::NotMerged => Function::NotMerged,
            ViewFrame::NoFrames => Function::NoFrames,
            ViewFrame::Code(frame) => Function::Code(self.code(frame)),
        };
        let index = self.functions.insert_full(function).0 as u32;
        if let ViewFrame::Code(Frame {
            miss: Some(miss), ..
        }) = frame
        {
            self.misses.insert(index, *miss);
        }
        index
    }

    fn code(&self, frame: &'p Frame) -> Code<'p> {
        let Frame {
            kind,
            name,
            file,
            line,
            first_line: _, // `first_lines` knows it, and knows those of others too
            module,
            miss: _,
        } = frame;
        let by_line = self.granularity == Granularity::Lines && *kind == FrameKind::Python;
        Code {
            kind: *kind,
            name,
            file: file.as_deref(),
            module: module.as_deref(),
            first_line: self.first_lines.of_frame(frame),
            line: line.filter(|_| by_line),
        }
    }
}

impl TextStacks {
    /// Writes the frames of a line: `root;…;leaf`.
    pub(super) fn push_frames(&self, stack: &[u32], line: &mut String) {
        for (index, &text) in stack.iter().enumerate() {
            if index > 0 {
                line.push(';');
            }
            line.push_str(&self.texts[text as usize]);
        }
    }
}

/// Ends a line with its count, above one frame more.
pub(super) fn end_line(more: Option<&str>, count: u64, line: &mut String) {
    if let Some(more) = more {
        if !line.is_empty() && !line.ends_with('\n') {
            line.push(';');
        }
        line.push_str(more);
    }
    // Writing to a `String` cannot fail.
    let _ = writeln!(line, " {count}");
}
