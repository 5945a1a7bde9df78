//! What a function is called in the perf map.

use std::{ffi::c_char, ptr, slice};

use super::{EvaluatorApi, Object};

/// `py::name:file`, as CPython 3.12 and later write it (Python/perf_trampoline.c, `perf_map_write_entry`).
pub(super) fn name_of(api: &EvaluatorApi, code: Object, attribute: *const c_char) -> Vec<u8> {
    let mut name = b"py::".to_vec();
    append_attribute(api, code, attribute, &mut name);
    name.push(b':');
    append_attribute(api, code, c"co_filename".as_ptr(), &mut name);
    name
}

/// Adds the text of a string attribute; nothing if there is none.
fn append_attribute(api: &EvaluatorApi, object: Object, name: *const c_char, to: &mut Vec<u8>) {
    // SAFETY: an object, and the name of an attribute; this thread holds the GIL.
    let text = unsafe { (api.attribute)(object, name) };
    if !text.is_null() {
        append_text(api, text, to);
        // SAFETY: `attribute` gave a new reference.
        unsafe { (api.release)(text) };
    }
    // SAFETY: this thread holds the GIL. Nothing is wrong for the program if a name could not be had.
    unsafe { (api.clear_error)() };
}

/// Strings with lone surrogates, as file names that are not UTF-8 have them, are written with escapes.
fn append_text(api: &EvaluatorApi, text: Object, to: &mut Vec<u8>) {
    let mut length = 0;
    // SAFETY: an object; that it is a string is checked.
    let utf8 = unsafe { (api.utf8)(text, &raw mut length) };
    if !utf8.is_null() {
        // SAFETY: the string keeps this many bytes for as long as it lives, and nobody changes it.
        to.extend_from_slice(unsafe { slice::from_raw_parts(utf8.cast(), length.unsigned_abs()) });
        return;
    }
    // SAFETY: this thread holds the GIL.
    unsafe { (api.clear_error)() };
    // SAFETY: an object, checked as above, and two NUL-terminated strings.
    let encoded = unsafe { (api.encode)(text, c"utf-8".as_ptr(), c"backslashreplace".as_ptr()) };
    if encoded.is_null() {
        return;
    }
    let mut bytes = ptr::null_mut();
    // SAFETY: a bytes object, and two variables to be filled.
    if unsafe { (api.bytes)(encoded, &raw mut bytes, &raw mut length) } == 0 {
        // SAFETY: the object keeps this many bytes until it is released.
        to.extend_from_slice(unsafe { slice::from_raw_parts(bytes.cast(), length.unsigned_abs()) });
    }
    // SAFETY: `encode` gave a new reference.
    unsafe { (api.release)(encoded) };
}
