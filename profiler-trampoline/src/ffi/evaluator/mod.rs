//! Trampolines for CPython 3.9 to 3.11, by way of PEP 523: a function of ours is asked to evaluate each frame, and does
//! so through the trampoline of the frame's code object.
//!
//! The address of a code object's trampoline stands in one of the slots that CPython keeps in code objects for such
//! purposes (`_PyCode_SetExtra`, Objects/codeobject.c). It is made when the code is first evaluated, and its name is
//! written before it first runs. All of this happens with the GIL held, which every evaluator is called with.
//!
//! What is read of frames and code objects at fixed places (`layout`) is checked against the live interpreter first, by
//! `probe`.

mod layout;
mod name;
mod probe;

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    fmt,
    io::{self, Write as _},
    mem, ptr,
    sync::{
        Mutex, OnceLock, PoisonError,
        atomic::{AtomicBool, AtomicIsize, AtomicPtr, AtomicUsize, Ordering::Relaxed},
    },
};

use self::{
    layout::{Layout, code_of, extra_of, slot},
    probe::probe,
};
use super::interpreter::{Evaluator, EvaluatorApi, Object};
use crate::{PerfMap, PerfMapError, code_memory::Arena, machine_code::TRAMPOLINE};

/// What a trampoline is called as: the three arguments for the evaluator, and the evaluator.
type Trampoline = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int, *mut c_void) -> Object;

static API: OnceLock<EvaluatorApi> = OnceLock::new();
static ARENA: Mutex<Arena> = Mutex::new(Arena::EMPTY);
/// The interpreter's own evaluator.
static DEFAULT: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
/// Our slot in code objects.
static INDEX: AtomicIsize = AtomicIsize::new(-1);
/// See [`Layout`]. The name stands here as a pointer to its text.
static EXTRA: AtomicUsize = AtomicUsize::new(0);
static NAME: AtomicPtr<c_char> = AtomicPtr::new(ptr::null_mut());
/// The interpreter that is served, and its number: another one may come to lie at the same address.
static INTERPRETER: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static IDENTITY: AtomicIsize = AtomicIsize::new(-1);
/// This is a forked child that has made no trampoline yet.
static FORKED: AtomicBool = AtomicBool::new(false);
/// Puts trampolines under the calling interpreter, which is of this version. Nothing happens when they are there.
/// Called with the GIL held. The error is for people.
pub(super) fn activate(version: (u32, u32)) -> Result<(), String> {
    let layout = Layout::of(version)?;
    let api = api()?;
    // SAFETY: this thread holds the GIL.
    let interpreter = unsafe { (api.current)() };
    match evaluator_of(api, interpreter) {
        Present::Ours => return Ok(()),
        Present::Foreign => return Err(FOREIGN.to_owned()),
        Present::Default => {}
    }
    if served() == Served::Another {
        return Err("trampolines are active in another interpreter of this process".to_owned());
    }
    let map = PerfMap::of_this_process();
    map.init().map_err(|err| err.to_string())?;
    arena(Arena::prepare).map_err(|err| {
        format!("no executable memory: {err}; security settings may forbid code made at run time")
    })?;
    EXTRA.store(layout.extra, Relaxed);
    NAME.store(layout.name.as_ptr().cast_mut(), Relaxed);
    DEFAULT.store(api.default as *mut c_void, Relaxed);
    find_slot(api, interpreter, layout)?;
    // SAFETY: as above.
    unsafe { (api.set_evaluator)(interpreter, evaluate) };
    INTERPRETER.store(interpreter, Relaxed);
    Ok(())
}

/// Gives the calling interpreter its own evaluator back. Frames that are in trampolines now return through them, so
/// these stay. Called with the GIL held.
pub(super) fn deactivate() -> Result<(), String> {
    let Some(api) = API.get() else {
        return Ok(()); // It never was activated.
    };
    // SAFETY: this thread holds the GIL.
    let interpreter = unsafe { (api.current)() };
    match evaluator_of(api, interpreter) {
        Present::Default => Ok(()),
        Present::Foreign => Err(FOREIGN.to_owned()),
        Present::Ours => {
            // SAFETY: as above.
            unsafe { (api.set_evaluator)(interpreter, api.default) };
            Ok(())
        }
    }
}

/// Which interpreter of this process has trampolines under it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Served {
    None,
    Calling,
    Another,
}

/// Called with the GIL held.
pub(super) fn served() -> Served {
    let Some(api) = API.get() else {
        return Served::None; // It never was activated.
    };
    // SAFETY: this thread holds the GIL.
    let interpreter = unsafe { (api.current)() };
    match evaluator_of(api, interpreter) {
        Present::Ours => Served::Calling,
        _ if is_served(api) => Served::Another,
        _ => Served::None,
    }
}

/// In the child of a `fork`: names the parent's code in a map of its own as soon as Python runs here, which in a child
/// that is about to `exec` it does not.
pub(super) fn forked() {
    let Some(api) = API.get() else {
        return;
    };
    // Other trampolines than those the parent goes on with: an address has one name in the whole family.
    FORKED.store(true, Relaxed);
    if is_served(api) {
        // SAFETY: the interpreter is alive, and this is the only thread. In 3.9 to 3.11 the function only stores a
        // pointer (Python/pystate.c), so the GIL is not needed.
        unsafe { (api.set_evaluator)(INTERPRETER.load(Relaxed), evaluate_in_child) };
    }
}

const FOREIGN: &str = "another frame evaluation function (PEP 523) is present, such as that of a debugger or of torch.compile";

/// Who evaluates the frames of an interpreter.
enum Present {
    Default,
    Ours,
    Foreign,
}

fn evaluator_of(api: &EvaluatorApi, interpreter: *mut c_void) -> Present {
    // SAFETY: the interpreter is alive.
    let present = unsafe { (api.evaluator)(interpreter) };
    match present.map(|function| function as *const () as usize) {
        None => Present::Default,
        Some(address) if address == api.default as *const () as usize => Present::Default,
        Some(address)
            if address == evaluate as *const () as usize
                || address == evaluate_in_child as *const () as usize =>
        {
            Present::Ours
        }
        Some(_) => Present::Foreign,
    }
}

/// The interpreter that was served last is alive and still has our evaluator.
fn is_served(api: &EvaluatorApi) -> bool {
    let served = INTERPRETER.load(Relaxed);
    // SAFETY: this thread holds the GIL, or is the only one.
    let mut interpreter = unsafe { (api.first)() };
    while !interpreter.is_null() && interpreter != served {
        // SAFETY: as above; the interpreter is in the list.
        interpreter = unsafe { (api.next)(interpreter) };
    }
    !interpreter.is_null()
        && identity(api, interpreter) == IDENTITY.load(Relaxed)
        && matches!(evaluator_of(api, interpreter), Present::Ours)
}

fn identity(api: &EvaluatorApi, interpreter: *mut c_void) -> isize {
    // SAFETY: the interpreter is alive.
    unsafe { (api.identity)(interpreter) as isize }
}

fn api() -> Result<&'static EvaluatorApi, String> {
    if let Some(api) = API.get() {
        return Ok(api);
    }
    let found = EvaluatorApi::find().map_err(|missing| {
        format!(
            "this interpreter does not export {}",
            missing.to_string_lossy()
        )
    })?;
    Ok(API.get_or_init(|| found))
}

fn arena<R>(work: impl FnOnce(&mut Arena) -> R) -> R {
    // A poisoned lock guards numbers that are whole at any time.
    work(&mut ARENA.lock().unwrap_or_else(PoisonError::into_inner))
}

/// The slot that this interpreter gave us before, else a new one. It is noted with the interpreter itself: after
/// `Py_Finalize` another one may come to lie at the same address, and have given the number to somebody else.
fn find_slot(api: &EvaluatorApi, interpreter: *mut c_void, layout: Layout) -> Result<(), String> {
    // Another copy of this library in the process has a slot of its own.
    let key = CString::new(format!("pyprof_trampoline {:p}", &raw const INDEX)).unwrap_or_default();
    // SAFETY: the interpreter is alive, and this thread holds the GIL.
    let notes = unsafe { (api.notes)(interpreter) };
    if notes.is_null() {
        return Err("no memory".to_owned());
    }
    // SAFETY: a dictionary, and a NUL-terminated string.
    let noted = unsafe { (api.note)(notes, key.as_ptr()) };
    let index = if noted.is_null() {
        // SAFETY: this thread holds the GIL; no function is to be called for our values.
        unsafe { (api.request_index)(None) }
    } else {
        // SAFETY: what was noted is a number.
        unsafe { (api.as_index)(noted) }
    };
    if index < 0 {
        return Err("all of the interpreter's 255 slots in code objects are taken".to_owned());
    }
    probe(api, interpreter, layout, index)?;
    if noted.is_null() {
        note_index(api, notes, &key, index);
    }
    INDEX.store(index, Relaxed);
    IDENTITY.store(identity(api, interpreter), Relaxed);
    Ok(())
}

/// Where there is no memory for the note, the next time takes another slot.
fn note_index(api: &EvaluatorApi, notes: Object, key: &CStr, index: isize) {
    // SAFETY: this thread holds the GIL.
    let number = unsafe { (api.new_index)(index) };
    if !number.is_null() {
        // SAFETY: a dictionary, a NUL-terminated string, an object.
        unsafe { (api.set_note)(notes, key.as_ptr(), number) };
        // SAFETY: it is ours to release.
        unsafe { (api.release)(number) };
    }
    // SAFETY: this thread holds the GIL.
    unsafe { (api.clear_error)() };
}

/// Evaluates a frame through the trampoline of its code. This is on the way of every call of a Python function: when
/// compiled with optimisation it has no stack frame of its own, since both ways end in a jump.
///
/// # Safety
///
/// Called by the interpreter, with the GIL held, after the layout was checked.
unsafe extern "C" fn evaluate(thread: *mut c_void, frame: *mut c_void, throw: c_int) -> Object {
    // SAFETY: a frame, whose code object is where the probe found it.
    let code = unsafe { code_of(frame) };
    // SAFETY: a code object, whose slots are where the probe found them.
    let extra = unsafe { extra_of(code, EXTRA.load(Relaxed)) };
    // SAFETY: as above.
    let trampoline = unsafe { slot(extra, INDEX.load(Relaxed)) };
    if trampoline.is_null() {
        // SAFETY: as for this function.
        return unsafe { evaluate_first(thread, frame, throw) };
    }
    // SAFETY: nobody but us writes to our slot, and only trampolines.
    let trampoline = unsafe { mem::transmute::<*mut c_void, Trampoline>(trampoline) };
    // SAFETY: the interpreter's own arguments, and its own evaluator.
    unsafe { trampoline(thread, frame, throw, DEFAULT.load(Relaxed)) }
}

/// Evaluates a frame whose code has no trampoline yet.
///
/// # Safety
///
/// As for [`evaluate`].
#[cold]
#[inline(never)]
unsafe extern "C" fn evaluate_first(
    thread: *mut c_void,
    frame: *mut c_void,
    throw: c_int,
) -> Object {
    // SAFETY: a frame, as the probe found it.
    let code = unsafe { code_of(frame) };
    let trampoline = make_trampoline(code);
    // SAFETY: the interpreter's own arguments, and its own evaluator.
    unsafe { trampoline(thread, frame, throw, DEFAULT.load(Relaxed)) }
}

/// The first evaluator in a forked child.
///
/// # Safety
///
/// As for [`evaluate`].
#[cold]
unsafe extern "C" fn evaluate_in_child(
    thread: *mut c_void,
    frame: *mut c_void,
    throw: c_int,
) -> Object {
    begin_in_child();
    // SAFETY: as for this function.
    unsafe { evaluate(thread, frame, throw) }
}

#[inline(never)]
fn begin_in_child() {
    if let Some(api) = API.get() {
        // SAFETY: this thread holds the GIL.
        let interpreter = unsafe { (api.current)() };
        // SAFETY: as above.
        unsafe { (api.set_evaluator)(interpreter, evaluate) };
    }
    if let Err(err) = PerfMap::of_this_process().init() {
        complain(&err.into());
    }
}

/// Stands in the slot of a code object that got no trampoline, so that this is not tried at every call.
///
/// # Safety
///
/// Called as a trampoline is.
unsafe extern "C" fn no_trampoline(
    thread: *mut c_void,
    frame: *mut c_void,
    throw: c_int,
    _evaluator: *mut c_void,
) -> Object {
    let evaluator = default();
    // SAFETY: the interpreter's own arguments.
    unsafe { evaluator(thread, frame, throw) }
}

/// Makes, names and keeps a trampoline. This has stack memory of its own, which is gone when the frame is evaluated.
#[inline(never)]
fn make_trampoline(code: Object) -> Trampoline {
    let Some(api) = API.get() else {
        return no_trampoline;
    };
    // A generator may be resumed to throw: then an exception is on its way, which the calls below must not meet.
    let mut pending = [ptr::null_mut(); 3];
    let [kind, value, traceback] = &mut pending;
    // SAFETY: three variables to be filled.
    unsafe { (api.fetch_error)(kind, value, traceback) };
    let trampoline = match name_and_take(api, code) {
        Ok(address) => {
            // SAFETY: `take` gave the address of a trampoline.
            unsafe {
                mem::transmute::<*mut c_void, Trampoline>(ptr::with_exposed_provenance_mut(address))
            }
        }
        Err(err) => {
            complain(&err);
            no_trampoline
        }
    };
    // SAFETY: a code object of the interpreter that our slot belongs to.
    let set = unsafe { (api.set_extra)(code, INDEX.load(Relaxed), trampoline as *mut c_void) };
    if set != 0 {
        // No memory: the next call tries again.
        // SAFETY: this thread holds the GIL.
        unsafe { (api.clear_error)() };
    }
    let [kind, value, traceback] = pending;
    // SAFETY: what was fetched above.
    unsafe { (api.restore_error)(kind, value, traceback) };
    trampoline
}

/// Why a code object has no trampoline. Made without memory, which may be what there is none of.
enum Nameless {
    Memory,
    Code(io::Error),
    Entry(PerfMapError),
}

impl fmt::Display for Nameless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("no memory"),
            Self::Code(err) => write!(f, "no executable memory: {err}"),
            Self::Entry(err) => err.fmt(f),
        }
    }
}

impl From<PerfMapError> for Nameless {
    fn from(err: PerfMapError) -> Self {
        if err.errno() == libc::ENOMEM {
            Self::Memory
        } else {
            Self::Entry(err)
        }
    }
}

fn name_and_take(api: &EvaluatorApi, code: Object) -> Result<usize, Nameless> {
    let name = name::name_of(api, code, NAME.load(Relaxed)).map_err(|_| Nameless::Memory)?;
    let address = arena(|arena| {
        if FORKED.swap(false, Relaxed) {
            *arena = Arena::EMPTY;
        }
        arena.take()
    })
    .map_err(|err| match err.raw_os_error() {
        Some(libc::ENOMEM) => Nameless::Memory,
        _ => Nameless::Code(err),
    })?;
    let size = TRAMPOLINE.len();
    PerfMap::of_this_process().write_entry(address, size, &name)?;
    Ok(address)
}

/// Says once why functions have no names. There is nobody to return it to: the program goes on.
fn complain(err: &Nameless) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Relaxed) {
        // Standard error may be closed; then this is for nobody.
        let _ = writeln!(
            io::stderr(),
            "pyprof_trampoline: {err}; functions called from now on for the first time have no names"
        );
    }
}

fn default() -> Evaluator {
    // SAFETY: it is stored, from a function of this type, before any of our evaluators is installed.
    unsafe { mem::transmute::<*mut c_void, Evaluator>(DEFAULT.load(Relaxed)) }
}
