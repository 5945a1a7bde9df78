//! Stacks as numbers of functions, so that each function's text is made once and not once per stack.

use indexmap::{IndexMap, IndexSet};
use rustc_hash::{FxBuildHasher, FxHashMap};

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
    pub(super) stacks: Vec<(Box<[u32]>, u64)>,
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
    pub(super) fn with_texts(&self, texts: &[String]) -> TextStacks {
        let mut sorted = texts.to_vec();
        sorted.sort_unstable();
        sorted.dedup();
        let ranks: FxHashMap<&str, u32> = sorted.iter().map(String::as_str).zip(0..).collect();
        let ranks: Vec<u32> = texts.iter().map(|text| ranks[text.as_str()]).collect();
        let mut stacks: Vec<(Box<[u32]>, u64)> = self
            .stacks
            .iter()
            .map(|(stack, count)| {
                (
                    stack
                        .iter()
                        .map(|&function| ranks[function as usize])
                        .collect(),
                    *count,
                )
            })
            .collect();
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
        }
    }

    fn number(&mut self, frame: &ViewFrame<'p>) -> u32 {
        let function = match *frame {
            ViewFrame::Process { pid, name } => Function::Process { pid, name },
            ViewFrame::Thread(thread) => Function::Thread {
                tid: thread.tid,
                name: thread.name.as_bytes(),
            },
            ViewFrame::Truncated(_) => Function::Truncated,
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
    /// Writes one `root;…;leaf COUNT` line.
    pub(super) fn push_line(&self, stack: &[u32], count: u64, line: &mut String) {
        for (index, &text) in stack.iter().enumerate() {
            if index > 0 {
                line.push(';');
            }
            line.push_str(&self.texts[text as usize]);
        }
        line.push(' ');
        line.push_str(&count.to_string());
        line.push('\n');
    }
}
