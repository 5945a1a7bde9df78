//! A look at the live interpreter before anything of it is relied upon.

use std::{
    ffi::{c_int, c_void},
    ptr,
    sync::atomic::{AtomicBool, AtomicPtr, Ordering::Relaxed},
};

use super::{
    EvaluatorApi, Object, default,
    layout::{Layout, code_of, extra_of, slot},
};

/// The code object that an evaluator should be called with, and whether it was.
static LOOKED_FOR: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static FOUND: AtomicBool = AtomicBool::new(false);

/// Looks at a code object and a frame of the live interpreter: are things where they are expected?
pub(super) fn probe(
    api: &EvaluatorApi,
    interpreter: *mut c_void,
    layout: Layout,
    index: isize,
) -> Result<(), String> {
    const EVAL_INPUT: c_int = 258; // Py_eval_input, Include/compile.h
    // SAFETY: NUL-terminated strings, and this thread holds the GIL.
    let code = unsafe {
        (api.compile)(
            c"None".as_ptr(),
            c"<pyprof_trampoline>".as_ptr(),
            EVAL_INPUT,
        )
    };
    // SAFETY: as above.
    let globals = unsafe { (api.new_dict)() };
    if code.is_null() || globals.is_null() {
        // SAFETY: as above. Either may be NULL, which is passed on to nobody else.
        unsafe { (api.clear_error)() };
        return Err("no memory".to_owned());
    }
    let found =
        probe_extra(api, code, layout, index) && probe_frame(api, interpreter, code, globals);
    for object in [code, globals] {
        // SAFETY: both are ours to release.
        unsafe { (api.release)(object) };
    }
    if found {
        Ok(())
    } else {
        Err(
            "this build of CPython lays out its code objects or frames in an unknown way"
                .to_owned(),
        )
    }
}

/// The slot is found where it was set.
fn probe_extra(api: &EvaluatorApi, code: Object, layout: Layout, index: isize) -> bool {
    let marker = (&raw const FOUND).cast_mut().cast();
    // SAFETY: a code object. That the offset is its own is what we are about to find out; it is within the object.
    let before = unsafe { extra_of(code, layout.extra) };
    // SAFETY: a code object, a number, a value that is never followed by the interpreter.
    let set = unsafe { (api.set_extra)(code, index, marker) } == 0;
    if !set {
        // SAFETY: this thread holds the GIL.
        unsafe { (api.clear_error)() };
        return false;
    }
    // SAFETY: as for `before`.
    let extra = unsafe { extra_of(code, layout.extra) };
    if !before.is_null() || extra.is_null() {
        return false;
    }
    // SAFETY: this word was NULL and is not any more, by the setting of the slot: it is what that allocated.
    unsafe { slot(extra, index) == marker }
}

/// An evaluator is called, with a frame that has its code in the right place.
fn probe_frame(
    api: &EvaluatorApi,
    interpreter: *mut c_void,
    code: Object,
    globals: Object,
) -> bool {
    FOUND.store(false, Relaxed);
    LOOKED_FOR.store(code, Relaxed);
    // SAFETY: this thread holds the GIL; the evaluator does nothing but look and pass on.
    unsafe { (api.set_evaluator)(interpreter, evaluate_probe) };
    // SAFETY: a code object and a dictionary.
    let result = unsafe { (api.run)(code, globals, globals) };
    // SAFETY: as above.
    unsafe { (api.set_evaluator)(interpreter, api.default) };
    LOOKED_FOR.store(ptr::null_mut(), Relaxed);
    if result.is_null() {
        // SAFETY: as above.
        unsafe { (api.clear_error)() };
        return false;
    }
    // SAFETY: the result is ours to release.
    unsafe { (api.release)(result) };
    FOUND.load(Relaxed)
}

/// # Safety
///
/// Called as an evaluator is, by the interpreter.
unsafe extern "C" fn evaluate_probe(
    thread: *mut c_void,
    frame: *mut c_void,
    throw: c_int,
) -> Object {
    // SAFETY: frames are longer than this.
    if unsafe { code_of(frame) } == LOOKED_FOR.load(Relaxed) {
        FOUND.store(true, Relaxed);
    }
    let evaluator = default();
    // SAFETY: the interpreter's own arguments.
    unsafe { evaluator(thread, frame, throw) }
}
