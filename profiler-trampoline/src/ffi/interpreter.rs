//! The functions of CPython that are needed, looked up when they are: this library is built without a Python, and one
//! file serves all versions, whether the interpreter is a program or in a libpython.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    mem,
};

/// An object of the interpreter.
pub(super) type Object = *mut c_void;

/// Evaluates one frame: `(PyThreadState *, frame, int throwflag) -> PyObject *`. The frame is a `PyFrameObject *` in
/// 3.9 and 3.10, and a `_PyInterpreterFrame *` in 3.11 (Include/cpython/pystate.h, `_PyFrameEvalFunction`).
pub(super) type Evaluator = unsafe extern "C" fn(*mut c_void, *mut c_void, c_int) -> Object;

/// Finds a symbol among all that this process has loaded.
pub(super) fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: a NUL-terminated name.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if !found.is_null() {
        return Some(found);
    }
    // A program that embeds Python as a plug-in may have loaded libpython for itself alone.
    let library = libpython()?;
    // SAFETY: a handle from `dlopen`, and a NUL-terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}

/// A handle of the libpython that is loaded; it is loaded for good, as CPython does not survive otherwise.
fn libpython() -> Option<*mut c_void> {
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        handle: *mut c_void,
    ) -> c_int {
        // SAFETY: `dl_iterate_phdr` passes a description that is valid during the call.
        let name = unsafe { (*info).dlpi_name };
        if name.is_null() {
            return 0;
        }
        // SAFETY: as above; the name is a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(name) };
        let file = text.to_bytes().rsplit(|byte| *byte == b'/').next();
        if !file.is_some_and(|file| file.starts_with(b"libpython3.")) {
            return 0;
        }
        // SAFETY: what is loaded already is only found again.
        let found = unsafe { libc::dlopen(name, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
        // SAFETY: `handle` is the variable below.
        unsafe { handle.cast::<*mut c_void>().write(found) };
        c_int::from(!found.is_null())
    }
    let mut handle: *mut c_void = std::ptr::null_mut();
    // SAFETY: `look` is given the address of a variable that outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut handle).cast()) };
    (!handle.is_null()).then_some(handle)
}

/// Declares a table of functions with their C signatures, and how it is filled.
macro_rules! functions {
    ($(#[$doc:meta])* $table:ident { $($(#[$note:meta])* $field:ident = $name:literal: $signature:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub(super) struct $table {
            $($(#[$note])* pub(super) $field: $signature,)*
        }

        impl $table {
            /// Looks all of them up; the name of one that is missing otherwise.
            pub(super) fn find() -> Result<Self, &'static CStr> {
                Ok(Self {
                    $($field: {
                        let address = symbol($name).ok_or($name)?;
                        // SAFETY: CPython's function of this name has this signature in 3.8 and later (Include/).
                        unsafe { mem::transmute::<*mut c_void, $signature>(address) }
                    },)*
                })
            }
        }
    };
}

functions! {
    /// What the extension module needs, of every CPython. All but the last are in the stable ABI.
    ModuleApi {
        module_init = c"PyModuleDef_Init": unsafe extern "C" fn(*mut c_void) -> Object,
        version = c"Py_GetVersion": unsafe extern "C" fn() -> *const c_char,
        build_value = c"Py_BuildValue": unsafe extern "C" fn(*const c_char, ...) -> Object,
        tuple_item = c"PyTuple_GetItem": unsafe extern "C" fn(Object, isize) -> Object,
        as_size = c"PyLong_AsSize_t": unsafe extern "C" fn(Object) -> usize,
        error = c"PyErr_Occurred": unsafe extern "C" fn() -> Object,
        bytes = c"PyBytes_AsStringAndSize": unsafe extern "C" fn(Object, *mut *mut c_char, *mut isize) -> c_int,
    }
}

functions! {
    /// What trampolines need, of CPython 3.9 to 3.11.
    EvaluatorApi {
        current = c"PyInterpreterState_Get": unsafe extern "C" fn() -> *mut c_void,
        first = c"PyInterpreterState_Head": unsafe extern "C" fn() -> *mut c_void,
        next = c"PyInterpreterState_Next": unsafe extern "C" fn(*mut c_void) -> *mut c_void,
        notes = c"PyInterpreterState_GetDict": unsafe extern "C" fn(*mut c_void) -> Object,
        note = c"PyDict_GetItemString": unsafe extern "C" fn(Object, *const c_char) -> Object,
        set_note = c"PyDict_SetItemString": unsafe extern "C" fn(Object, *const c_char, Object) -> c_int,
        new_index = c"PyLong_FromSsize_t": unsafe extern "C" fn(isize) -> Object,
        as_index = c"PyLong_AsSsize_t": unsafe extern "C" fn(Object) -> isize,
        identity = c"PyInterpreterState_GetID": unsafe extern "C" fn(*mut c_void) -> i64,
        evaluator = c"_PyInterpreterState_GetEvalFrameFunc": unsafe extern "C" fn(*mut c_void) -> Option<Evaluator>,
        set_evaluator = c"_PyInterpreterState_SetEvalFrameFunc": unsafe extern "C" fn(*mut c_void, Evaluator),
        default = c"_PyEval_EvalFrameDefault": Evaluator,
        request_index = c"_PyEval_RequestCodeExtraIndex": unsafe extern "C" fn(Option<unsafe extern "C" fn(*mut c_void)>) -> isize,
        set_extra = c"_PyCode_SetExtra": unsafe extern "C" fn(Object, isize, *mut c_void) -> c_int,
        attribute = c"PyObject_GetAttrString": unsafe extern "C" fn(Object, *const c_char) -> Object,
        utf8 = c"PyUnicode_AsUTF8AndSize": unsafe extern "C" fn(Object, *mut isize) -> *const c_char,
        encode = c"PyUnicode_AsEncodedString": unsafe extern "C" fn(Object, *const c_char, *const c_char) -> Object,
        bytes = c"PyBytes_AsStringAndSize": unsafe extern "C" fn(Object, *mut *mut c_char, *mut isize) -> c_int,
        release = c"Py_DecRef": unsafe extern "C" fn(Object),
        fetch_error = c"PyErr_Fetch": unsafe extern "C" fn(*mut Object, *mut Object, *mut Object),
        restore_error = c"PyErr_Restore": unsafe extern "C" fn(Object, Object, Object),
        clear_error = c"PyErr_Clear": unsafe extern "C" fn(),
        compile = c"Py_CompileString": unsafe extern "C" fn(*const c_char, *const c_char, c_int) -> Object,
        new_dict = c"PyDict_New": unsafe extern "C" fn() -> Object,
        run = c"PyEval_EvalCode": unsafe extern "C" fn(Object, Object, Object) -> Object,
    }
}

/// The version that `Py_GetVersion` tells: `3.11.7 (main, …)` is (3, 11).
pub(super) fn version(text: &CStr) -> Option<(u32, u32)> {
    let text = text.to_str().ok()?;
    let mut numbers = text.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next()?.parse().ok();
    Some((number()?, number()?))
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn versions_are_read_from_the_interpreters_own_text() {
        assert_eq!(version(c"3.11.7 (main, Jan 1 2026)"), Some((3, 11)));
        assert_eq!(version(c"3.15.0a2+ (heads/main)"), Some((3, 15)));
        assert_eq!(version(c"3.9"), Some((3, 9)));
        assert_eq!(version(c"unknown"), None);
    }
}
