//! The extension module `pyprof_trampoline._native`, for every CPython from 3.8 on, made without its headers.
//!
//! Its functions take and give the simplest of objects; `python/pyprof_trampoline/__init__.py` is the face of it.

use std::{
    ffi::{CStr, CString, c_char, c_int, c_void},
    ptr, slice,
    sync::OnceLock,
};

use super::{
    evaluator::{self, Served},
    interpreter::{ModuleApi, Object, version},
};
use crate::{PerfMap, PerfMapError};

/// `PyMethodDef` (Include/methodobject.h).
#[repr(C)]
struct Method {
    name: *const c_char,
    function: Option<unsafe extern "C" fn(Object, Object) -> Object>,
    flags: c_int,
    doc: *const c_char,
}

/// `PyModuleDef_Slot` (Include/moduleobject.h).
#[repr(C)]
struct Slot {
    id: c_int,
    value: usize,
}

/// Arguments come as a tuple (`METH_VARARGS`).
const VARARGS: c_int = 1;
/// `Py_mod_multiple_interpreters`, 3.12: any interpreter, also one with a GIL of its own.
const INTERPRETERS: Slot = Slot { id: 3, value: 2 };
/// `Py_mod_gil`, 3.13: without a GIL, too.
const NO_GIL: Slot = Slot { id: 4, value: 1 };
const LAST: Slot = Slot { id: 0, value: 0 };

static API: OnceLock<ModuleApi> = OnceLock::new();
/// The address of the module's definition.
static DEFINITION: OnceLock<usize> = OnceLock::new();

/// Called by `import`.
///
/// # Safety
///
/// The caller is an interpreter, in a thread that holds its GIL if it has one.
#[unsafe(no_mangle)]
#[expect(unreachable_pub, reason = "exported by its name")]
pub unsafe extern "C" fn PyInit__native() -> Object {
    let Some(api) = api() else {
        return ptr::null_mut(); // It is not CPython, and gets no module from us.
    };
    let definition = *DEFINITION.get_or_init(|| definition(&version_text(api)).expose_provenance());
    // SAFETY: a `PyModuleDef` for this interpreter, which lives for good.
    unsafe { (api.module_init)(ptr::with_exposed_provenance_mut(definition)) }
}

fn api() -> Option<&'static ModuleApi> {
    if let Some(api) = API.get() {
        return Some(api);
    }
    let found = ModuleApi::find().ok()?;
    Some(API.get_or_init(|| found))
}

fn version_text(api: &ModuleApi) -> CString {
    // SAFETY: needs nothing.
    let text = unsafe { (api.version)() };
    // SAFETY: the interpreter's own, NUL-terminated, there for good.
    unsafe { CStr::from_ptr(text) }.to_owned()
}

/// Makes a `PyModuleDef` (Include/moduleobject.h): the head of an object, then eleven words, of which
/// `PyModuleDef_Init` fills in what is the interpreter's.
fn definition(version_text: &CStr) -> *mut c_void {
    let (major, minor) = version(version_text).unwrap_or_default();
    let mut slots = Vec::new();
    if (major, minor) >= (3, 12) {
        slots.push(INTERPRETERS);
    }
    if (major, minor) >= (3, 13) {
        slots.push(NO_GIL);
    }
    slots.push(LAST);
    let slots: &'static [Slot] = slots.leak();
    // `PyObject` is four words long without a GIL (Include/object.h, `Py_GIL_DISABLED`), two otherwise.
    let free_threaded = version_text
        .to_string_lossy()
        .contains("free-threading build");
    let head = if free_threaded { 4 } else { 2 };
    let mut words = vec![0; head];
    let address = |pointer: *const c_void| pointer.expose_provenance();
    words.extend([
        0, // m_init
        0, // m_index
        0, // m_copy
        address(c"_native".as_ptr().cast()),
        0, // m_doc
        0, // m_size: no state
        address(methods().as_ptr().cast()),
        address(slots.as_ptr().cast()),
        0, // m_traverse
        0, // m_clear
        0, // m_free
    ]);
    words.leak().as_mut_ptr().cast::<c_void>()
}

fn methods() -> &'static [Method] {
    type Function = unsafe extern "C" fn(Object, Object) -> Object;
    let table: [(&CStr, Function); 7] = [
        (c"init", init),
        (c"write_entry", write_entry),
        (c"copy_from", copy_from),
        (c"fini", fini),
        (c"activate", activate),
        (c"deactivate", deactivate),
        (c"is_active", is_active),
    ];
    let method = |(name, function): (&'static CStr, Function)| Method {
        name: name.as_ptr(),
        function: Some(function),
        flags: VARARGS,
        doc: ptr::null(),
    };
    let end = Method {
        name: ptr::null(),
        function: None,
        flags: 0,
        doc: ptr::null(),
    };
    table
        .map(method)
        .into_iter()
        .chain([end])
        .collect::<Vec<_>>()
        .leak()
}

/// `write_entry(address: int, size: int, name: bytes)`: None, or the number of an error and its text.
unsafe extern "C" fn write_entry(_module: Object, arguments: Object) -> Object {
    with_api(|api| {
        let address = size_argument(api, arguments, 0)?;
        let size = size_argument(api, arguments, 1)?;
        let name = bytes_argument(api, arguments, 2)?;
        Some(outcome(
            api,
            PerfMap::of_this_process().write_entry(address, size, name),
        ))
    })
}

/// `init()`: None, or the number of an error and its text.
unsafe extern "C" fn init(_module: Object, _arguments: Object) -> Object {
    with_api(|api| Some(outcome(api, PerfMap::of_this_process().init())))
}

/// `copy_from(path: bytes)`: None, or the number of an error and its text.
unsafe extern "C" fn copy_from(_module: Object, arguments: Object) -> Object {
    with_api(|api| {
        let path = CString::new(bytes_argument(api, arguments, 0)?).unwrap_or_default();
        Some(outcome(api, PerfMap::of_this_process().copy_from(&path)))
    })
}

/// `fini()`: None.
unsafe extern "C" fn fini(_module: Object, _arguments: Object) -> Object {
    with_api(|api| {
        PerfMap::of_this_process().fini();
        Some(none(api))
    })
}

/// `activate()`: None, or why not.
unsafe extern "C" fn activate(_module: Object, _arguments: Object) -> Object {
    with_api(|api| {
        let version = version(&version_text(api)).unwrap_or_default();
        Some(reason(api, evaluator::activate(version)))
    })
}

/// `deactivate()`: None, or why not.
unsafe extern "C" fn deactivate(_module: Object, _arguments: Object) -> Object {
    with_api(|api| Some(reason(api, evaluator::deactivate())))
}

/// `is_active()`: 1 in this interpreter, 2 in another one of this process, 0 in none.
unsafe extern "C" fn is_active(_module: Object, _arguments: Object) -> Object {
    with_api(|api| {
        let active: c_int = match evaluator::served() {
            Served::None => 0,
            Served::Calling => 1,
            Served::Another => 2,
        };
        // SAFETY: the format takes one `int`.
        Some(unsafe { (api.build_value)(c"i".as_ptr(), active) })
    })
}

/// NULL, which stands for the exception that is set, where `work` gives `None`.
fn with_api(work: impl FnOnce(&ModuleApi) -> Option<Object>) -> Object {
    API.get().and_then(work).unwrap_or(ptr::null_mut())
}

fn none(api: &ModuleApi) -> Object {
    // SAFETY: an empty format takes nothing, and gives None.
    unsafe { (api.build_value)(c"".as_ptr()) }
}

fn outcome(api: &ModuleApi, result: Result<(), PerfMapError>) -> Object {
    match result {
        Ok(()) => none(api),
        Err(err) => {
            let text = CString::new(err.cause()).unwrap_or_default();
            // SAFETY: the format takes an `int` and a NUL-terminated string.
            unsafe { (api.build_value)(c"(is)".as_ptr(), err.errno(), text.as_ptr()) }
        }
    }
}

fn reason(api: &ModuleApi, result: Result<(), String>) -> Object {
    match result {
        Ok(()) => none(api),
        Err(text) => {
            let text = CString::new(text).unwrap_or_default();
            // SAFETY: the format takes a NUL-terminated string.
            unsafe { (api.build_value)(c"s".as_ptr(), text.as_ptr()) }
        }
    }
}

/// `None`, with an exception set, for what is not a number of this size.
fn size_argument(api: &ModuleApi, arguments: Object, n: isize) -> Option<usize> {
    let item = item(api, arguments, n)?;
    // SAFETY: an object.
    let number = unsafe { (api.as_size)(item) };
    // SAFETY: asked of this thread.
    let failed = number == usize::MAX && !unsafe { (api.error)() }.is_null();
    (!failed).then_some(number)
}

/// `None`, with an exception set, for what is not bytes.
fn bytes_argument<'a>(api: &ModuleApi, arguments: Object, n: isize) -> Option<&'a [u8]> {
    let item = item(api, arguments, n)?;
    let mut bytes = ptr::null_mut();
    let mut length = 0;
    // SAFETY: an object, and two variables to be filled.
    if unsafe { (api.bytes)(item, &raw mut bytes, &raw mut length) } != 0 {
        return None;
    }
    // SAFETY: the arguments keep the object, and so its bytes, until the call returns.
    Some(unsafe { slice::from_raw_parts(bytes.cast(), length.unsigned_abs()) })
}

fn item(api: &ModuleApi, arguments: Object, n: isize) -> Option<Object> {
    // SAFETY: a tuple; what is out of its range sets an exception.
    let item = unsafe { (api.tuple_item)(arguments, n) };
    (!item.is_null()).then_some(item)
}
