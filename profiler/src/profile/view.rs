//! Which of the recorded frames are shown. Nothing is recorded or forgotten here: a view is chosen when writing.

use std::fmt;

use super::{EndClass, ProcessName, Profile, Thread, aggregate::CountKey};
use crate::model::{Frame, FrameKind, Pid, ResolveMiss};

/// A way to look at stacks that hold everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum View {
    /// Python functions, and the functions of extension modules and other libraries that they call.
    ///
    /// | frames | shown |
    /// |---|---|
    /// | Python, kernel, other JIT compilers | all: JIT code is a program's own code, or a Python function without a name |
    /// | extension modules and libraries, below the outermost Python function | all, also between two Python functions: a Cython function that calls back into Python has the samples of its callees |
    /// | the same, above it | none: a program that embeds Python, or what starts a thread |
    /// | the interpreter | none: its work belongs to the function that it works for |
    /// | the C library, dynamic loader, vDSO, replacements of `malloc` | the innermost function of the stack, if an extension or library below the innermost Python function called it; what the interpreter calls, for a Python function or for an extension, is a part of the interpreter |
    ///
    /// Of a stack without Python frames (a worker thread of a native library, the start of the interpreter) all compiled
    /// code is shown; of the interpreter's functions that call each other only the outermost, unless there are no Python
    /// frames of its process at all.
    #[default]
    Python,
    /// Everything.
    Mixed,
    /// Everything but Python functions, named or not.
    Native,
}

/// One step of a shown stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ViewFrame<'p> {
    /// The process; only in a profile of several.
    Process {
        /// Its pid.
        pid: Pid,
        /// What to call it, where known.
        name: Option<&'p ProcessName>,
    },
    /// The thread; only in a profile that keeps threads apart.
    Thread(&'p Thread),
    /// The stack's outer part is missing, for this reason.
    Truncated(EndClass),
    /// Python frames follow, in one block: which of the native frames further out are between them is not known
    /// ([`EndClass::NoFit`]). In the mixed view only.
    NotMerged,
    /// Nothing else is to be shown: the sample had no frames, or the view hides all of them.
    NoFrames,
    /// A function.
    Code(&'p Frame),
}

/// A stack as a view shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct ViewStack<'p> {
    /// Outermost first. Never empty, and the last one is [`ViewFrame::Code`] or [`ViewFrame::NoFrames`].
    pub frames: Vec<ViewFrame<'p>>,
    /// Samples.
    pub count: u64,
    /// The process.
    pub pid: Pid,
    /// The thread, in a profile that keeps threads apart.
    pub thread: Option<&'p Thread>,
    /// How the stack ended.
    pub end: EndClass,
    /// Callers of code without unwind information were guessed.
    pub guessed: bool,
    /// The CPU was in the kernel.
    pub in_kernel: bool,
}

/// Shows one stack.
pub(super) fn show<'p>(
    profile: &'p Profile,
    view: View,
    show_process: bool,
    key: &CountKey,
    count: u64,
) -> ViewStack<'p> {
    let stack = profile.stacks.get(key.stack);
    let thread = key
        .thread
        .and_then(|index| profile.threads.get_index(index as usize));
    let mut frames = Vec::with_capacity(stack.len() + 3);
    if show_process {
        let name = profile.process_names.get(&key.pid);
        frames.push(ViewFrame::Process { pid: key.pid, name });
    }
    frames.extend(thread.map(ViewFrame::Thread));
    if !key.end.has_root() {
        frames.push(ViewFrame::Truncated(key.end));
    }
    let roots = frames.len();
    let recorded = stack
        .iter()
        .rev()
        .flat_map(|&id| profile.locations.frames(id).iter().rev());
    frames.extend(recorded.map(ViewFrame::Code));
    if key.end == EndClass::NoFit {
        separate_block(view, &mut frames, roots);
    }
    let has_python = profile.with_python.contains(&key.pid);
    fold(view, &mut frames, roots, has_python);
    if frames.len() == roots {
        frames.push(ViewFrame::NoFrames);
    }
    ViewStack {
        frames,
        count,
        pid: key.pid,
        thread,
        end: key.end,
        guessed: key.guessed,
        in_kernel: key.in_kernel,
    }
}

/// Of a stack whose Python frames stand in one block: says so where native frames are shown in front of it. In the Python
/// view, compiled code in front of it would look like their caller.
fn separate_block(view: View, frames: &mut Vec<ViewFrame<'_>>, roots: usize) {
    let is_python = |frame: &ViewFrame<'_>| matches!(frame, ViewFrame::Code(frame) if frame.kind == FrameKind::Python);
    let Some(block) = frames.iter().position(is_python) else {
        return;
    };
    match view {
        View::Mixed => frames.insert(block, ViewFrame::NotMerged),
        View::Python => drop(frames.drain(roots..block)),
        View::Native => {}
    }
}

/// Removes the frames from `roots` on that the view hides. `has_python`: there are Python frames of its process.
fn fold(view: View, frames: &mut Vec<ViewFrame<'_>>, roots: usize, has_python: bool) {
    let kind = |frame: &ViewFrame<'_>| match frame {
        ViewFrame::Code(frame) => Some(frame.kind),
        _ => None,
    };
    let is_python = |frame: &ViewFrame<'_>| kind(frame) == Some(FrameKind::Python);
    match view {
        View::Mixed => {}
        View::Native => {
            frames.retain(|frame| match frame {
                // Code of a JIT compiler without a name is a trampoline, as a rule.
                ViewFrame::Code(frame) => match frame.kind {
                    FrameKind::Python => false,
                    FrameKind::Jit => frame.miss.is_none(),
                    _ => true,
                },
                _ => true,
            });
        }
        View::Python if !frames.iter().any(is_python) => {
            // The interpreter starts, say: a tower of its functions would hide how flat the rest is.
            if has_python {
                let is_interpreter =
                    |frame: &ViewFrame<'_>| kind(frame) == Some(FrameKind::Interpreter);
                frames.dedup_by(|frame, outer| is_interpreter(frame) && is_interpreter(outer));
            }
        }
        View::Python => {
            let Some(outermost) = frames.iter().position(is_python) else {
                return;
            };
            let innermost = frames.iter().rposition(is_python).unwrap_or(outermost);
            // The frame in which the process's own code was: kernel frames lie further in.
            let leaf = frames
                .iter()
                .rposition(|frame| kind(frame) != Some(FrameKind::Kernel));
            let caller_of_c_library = frames[innermost..]
                .iter()
                .rev()
                .map(kind)
                .find(|kind| !matches!(kind, Some(FrameKind::Kernel | FrameKind::CLibrary)));
            let called_by_extension = matches!(
                caller_of_c_library,
                Some(Some(FrameKind::Native | FrameKind::Jit))
            );
            let mut next = 0;
            frames.retain(|frame| {
                let index = next;
                next += 1;
                let is_leaf = leaf == Some(index);
                let ViewFrame::Code(frame) = frame else {
                    return true;
                };
                index < roots
                    || match frame.kind {
                        FrameKind::Python | FrameKind::Kernel | FrameKind::Jit => true,
                        FrameKind::Native if frame.miss == Some(ResolveMiss::NoMapping) => is_leaf,
                        FrameKind::Native => index > outermost,
                        FrameKind::CLibrary => is_leaf && called_by_extension,
                        FrameKind::Interpreter => false,
                    }
            });
        }
    }
}

impl fmt::Display for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Python => "python",
            Self::Mixed => "mixed",
            Self::Native => "native",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        model::{Location, StackEnd, Tid},
        profile::testing::{Builder, frame, native, python, sample},
    };

    fn names(stack: &ViewStack<'_>) -> String {
        let names: Vec<String> = stack
            .frames
            .iter()
            .map(|frame| match frame {
                ViewFrame::Process { pid, name } => {
                    format!("{} [{pid}]", name.map_or("?", |name| &name.label))
                }
                ViewFrame::Thread(thread) => format!("tid {}", thread.tid),
                ViewFrame::Truncated(_) => "[truncated]".to_owned(),
                ViewFrame::NotMerged => "[order unknown]".to_owned(),
                ViewFrame::NoFrames => "[no frames]".to_owned(),
                ViewFrame::Code(frame) => frame.name.to_string(),
            })
            .collect();
        names.join(" > ")
    }

    fn shown(view: View, frames: &[Frame]) -> String {
        let mut builder = Builder::new(false);
        builder.add(frames, 1);
        let profile = builder.finish();
        profile
            .folded_view(view)
            .map(|stack| names(&stack))
            .collect()
    }

    fn interpreter(name: &str) -> Frame {
        frame(FrameKind::Interpreter, name)
    }

    /// `main` calls `work` through the interpreter, `work` calls into a library.
    fn typical() -> Vec<Frame> {
        vec![
            native("_start", "python3.12"),
            interpreter("Py_RunMain"),
            interpreter("_PyEval_EvalFrameDefault"),
            python("main", "/m.py"),
            interpreter("_PyEval_EvalFrameDefault"),
            native("callback", "libffi.so"),
            python("work", "/m.py"),
            interpreter("_PyEval_EvalFrameDefault"),
            native("cblas_dgemm", "libblas.so"),
            native("dgemm_kernel", "libblas.so"),
        ]
    }

    fn c_library(name: &str) -> Frame {
        Frame {
            kind: FrameKind::CLibrary,
            ..native(name, "libc.so.6")
        }
    }

    /// `main` calls `hot`, a compiled function that works on Python objects.
    fn extension(inner: &[Frame]) -> Vec<Frame> {
        let mut frames = vec![
            c_library("__libc_start_main"),
            native("embedding_main", "program"),
            interpreter("Py_RunMain"),
            python("main", "/m.py"),
            interpreter("_PyEval_EvalFrameDefault"),
            native("hot", "m.cpython-312.so"),
        ];
        frames.extend_from_slice(inner);
        frames
    }

    #[test]
    fn the_python_view_shows_python_and_the_libraries_it_calls() {
        assert_eq!(
            shown(View::Python, &typical()),
            "main > callback > work > cblas_dgemm > dgemm_kernel"
        );
    }

    #[test]
    fn an_extension_is_shown_when_it_calls_the_interpreter_or_the_c_library() {
        let cases: [(&[Frame], &str); 6] = [
            (&[], "main > hot"),
            (&[interpreter("PyDict_SetItem")], "main > hot"),
            (&[c_library("memcpy")], "main > hot > memcpy"),
            (
                &[
                    native("operator new", "libstdc++.so.6"),
                    c_library("malloc"),
                ],
                "main > hot > operator new > malloc",
            ),
            (
                &[interpreter("PyDict_New"), c_library("malloc")],
                "main > hot",
            ),
            (
                &[c_library("qsort"), native("compare", "m.cpython-312.so")],
                "main > hot > compare",
            ),
        ];
        for (inner, expected) in cases {
            assert_eq!(shown(View::Python, &extension(inner)), expected);
        }
    }

    #[test]
    fn an_extension_between_two_python_functions_is_shown() {
        let callback = [
            interpreter("_PyObject_Call"),
            interpreter("_PyEval_EvalFrameDefault"),
            python("key", "/m.py"),
            interpreter("PyLong_FromLong"),
        ];
        let stack = extension(&callback);
        assert_eq!(shown(View::Python, &stack), "main > hot > key");
        let in_the_allocator = [&stack[..], &[c_library("malloc")]].concat();
        assert_eq!(shown(View::Python, &in_the_allocator), "main > hot > key");
    }

    #[test]
    fn what_the_interpreter_calls_for_itself_is_shown_when_asked_for() {
        let stack = [
            python("main", "/m.py"),
            interpreter("_PyObject_Malloc"),
            c_library("malloc"),
        ];
        assert_eq!(shown(View::Python, &stack), "main");
        assert_eq!(
            shown(View::Mixed, &stack),
            "main > _PyObject_Malloc > malloc"
        );
        let in_the_kernel = [&stack[..], &[frame(FrameKind::Kernel, "page_fault")]].concat();
        assert_eq!(shown(View::Python, &in_the_kernel), "main > page_fault");
        // A library, as of a module that is built into the interpreter.
        let zlib = [&stack[..2], &[native("deflate", "libz.so.1")]].concat();
        assert_eq!(shown(View::Python, &zlib), "main > deflate");
    }

    #[test]
    fn the_python_view_folds_the_interpreter_away_when_it_is_the_leaf() {
        assert_eq!(
            shown(View::Python, &typical()[..8]),
            "main > callback > work"
        );
        let mut in_the_allocator = typical();
        in_the_allocator.push(interpreter("_PyObject_Malloc"));
        assert_eq!(
            shown(View::Python, &in_the_allocator),
            "main > callback > work > cblas_dgemm > dgemm_kernel"
        );
    }

    #[test]
    fn kernel_frames_stay_at_the_leaf_of_every_view() {
        let mut frames = typical();
        frames.push(frame(FrameKind::Kernel, "do_syscall_64"));
        frames.push(frame(FrameKind::Kernel, "vfs_read"));
        for view in [View::Python, View::Mixed, View::Native] {
            let shown = shown(view, &frames);
            assert!(
                shown.ends_with("dgemm_kernel > do_syscall_64 > vfs_read"),
                "{view}: {shown}"
            );
        }
    }

    #[test]
    fn the_mixed_view_shows_everything() {
        assert_eq!(
            shown(View::Mixed, &typical()).split(" > ").count(),
            typical().len()
        );
    }

    #[test]
    fn the_native_view_has_no_python_frames_and_no_trampolines_without_names() {
        let mut frames = typical();
        frames.push(Frame {
            miss: Some(ResolveMiss::NotInPerfMap),
            ..frame(FrameKind::Jit, "0x7f0010")
        });
        frames.push(frame(FrameKind::Jit, "numba_kernel"));
        let shown = shown(View::Native, &frames);
        assert_eq!(shown.split(" > ").count(), 9);
        assert!(!shown.contains("work") && !shown.contains("0x7f0010"));
        assert!(shown.ends_with("numba_kernel"), "{shown}");
    }

    #[test]
    fn a_native_worker_thread_is_shown_whole_in_the_python_view() {
        let frames = [
            native("start_thread", "libc.so.6"),
            interpreter("run"),
            native("dgemm", "libblas.so"),
        ];
        assert_eq!(shown(View::Python, &frames), "start_thread > run > dgemm");
    }

    #[test]
    fn the_interpreters_own_work_is_one_frame_beside_python_code() {
        let start = [
            native("_start", "python3.12"),
            interpreter("Py_BytesMain"),
            interpreter("pymain_init"),
            native("dlopen", "libc.so.6"),
            interpreter("PyInit_math"),
            interpreter("PyModule_Create2"),
        ];
        let all = "_start > Py_BytesMain > pymain_init > dlopen > PyInit_math > PyModule_Create2";
        assert_eq!(shown(View::Python, &start), all);

        let mut builder = Builder::new(false);
        builder.add(&start, 1);
        builder.add(&[python("f", "/m.py")], 1);
        let profile = builder.finish();
        let mut both: Vec<String> = profile
            .folded_view(View::Python)
            .map(|stack| names(&stack))
            .collect();
        both.sort();
        assert_eq!(both, ["_start > Py_BytesMain > dlopen > PyInit_math", "f"]);
    }

    #[test]
    fn jit_code_stays_in_the_python_view() {
        let frames = [
            python("main", "/m.py"),
            interpreter("call"),
            frame(FrameKind::Jit, "0x7f0010"),
            interpreter("eval"),
            python("work", "/m.py"),
        ];
        assert_eq!(shown(View::Python, &frames), "main > 0x7f0010 > work");
    }

    /// `work` was running and has called `sum`; where `callback` stands between `main` and `work` is not known.
    #[test]
    fn a_stack_that_could_not_be_merged_shows_its_frames_in_every_view() {
        let frames = [
            native("_start", "python3.10"),
            interpreter("_PyEval_EvalFrameDefault"),
            frame(FrameKind::Jit, "kernel"),
            native("callback", "libffi.so"),
            interpreter("_PyEval_EvalFrameDefault"),
            python("main", "/m.py"),
            python("work", "/m.py"),
            native("sum", "libsum.so"),
        ];
        let mut builder = Builder::new(false);
        builder.add_with(&frames, 1, |s| s.end = StackEnd::NoFit);
        let profile = builder.finish();
        let shown = |view| names(&profile.folded_view(view).next().expect("one stack"));
        let native =
            "_start > _PyEval_EvalFrameDefault > kernel > callback > _PyEval_EvalFrameDefault";
        assert_eq!(shown(View::Python), "main > work > sum");
        assert_eq!(shown(View::Native), format!("{native} > sum"));
        assert_eq!(
            shown(View::Mixed),
            format!("{native} > [order unknown] > main > work > sum")
        );
    }

    #[test]
    fn recursion_is_left_as_it_is() {
        let frames = [
            python("f", "/m.py"),
            python("f", "/m.py"),
            python("f", "/m.py"),
        ];
        assert_eq!(shown(View::Python, &frames), "f > f > f");
    }

    #[test]
    fn a_sample_without_frames_to_show_is_still_shown() {
        assert_eq!(shown(View::Mixed, &[]), "[no frames]");
        assert_eq!(shown(View::Native, &[python("f", "/m.py")]), "[no frames]");
    }

    #[test]
    fn an_incomplete_stack_stands_on_a_visible_root() {
        let mut builder = Builder::new(true);
        builder.add_with(&[python("f", "/m.py")], 1, |s| {
            s.end = StackEnd::DepthLimit;
            s.guessed = true;
        });
        let profile = builder.finish();
        let stack = profile.folded_view(View::Native).next().expect("one stack");
        assert_eq!(names(&stack), "tid 1 > [truncated] > [no frames]");
        assert_eq!((stack.end, stack.guessed), (EndClass::DepthLimit, true));
    }

    #[test]
    fn processes_are_told_apart_when_there_are_several() {
        let mut builder = Builder::new(true);
        builder.add(&[python("f", "/m.py")], 1);
        builder.add_with(&[python("f", "/m.py")], 1, |s| {
            (s.pid, s.tid) = (Pid(2), Tid(2));
        });
        let mut profile = builder.finish();
        let name = ProcessName {
            label: "worker".to_owned(),
            command: "python worker.py".to_owned(),
        };
        profile.process_names.insert(Pid(2), name);
        let shown: Vec<String> = profile
            .folded_view(View::Python)
            .map(|stack| names(&stack))
            .collect();
        assert_eq!(shown, ["? [1] > tid 1 > f", "worker [2] > tid 2 > f"]);
        assert_eq!(profile.samples_by_process(), [(Pid(1), 1), (Pid(2), 1)]);
        profile.merge_processes = true;
        let merged: Vec<String> = profile
            .folded_view(View::Python)
            .map(|stack| names(&stack))
            .collect();
        assert_eq!(merged, ["tid 1 > f", "tid 2 > f"]);
    }

    #[test]
    fn inlined_calls_are_frames_of_their_own_callee_innermost() {
        let mut profile = Builder::new(false).finish();
        profile.locations.locations.push(Location {
            frames: vec![native("inlined", "a"), native("outer", "a")],
        });
        let mut aggregator = crate::profile::Aggregator::new(false);
        aggregator.add(&sample(&[0]));
        let profile = aggregator.finish(profile.locations);
        assert_eq!(
            names(&profile.folded_view(View::Mixed).next().expect("one stack")),
            "outer > inlined"
        );
    }
}
