//! What a function is called in the perf map.

use std::{collections::TryReserveError, ffi::c_char, ptr, slice};

use super::{EvaluatorApi, Object};

/// `py::name:file`, as CPython 3.12 and later write it (Python/perf_trampoline.c, `perf_map_write_entry`).
///
/// Fails when there is no memory, which is nothing that a program ends of: Python has `MemoryError` for that.
pub(super) fn name_of(
    api: &EvaluatorApi,
    code: Object,
    attribute: *const c_char,
) -> Result<Vec<u8>, TryReserveError> {
    let mut name = Vec::new();
    append(&mut name, b"py::")?;
    append_attribute(api, code, attribute, &mut name)?;
    append(&mut name, b":")?;
    append_attribute(api, code, c"co_filename".as_ptr(), &mut name)?;
    Ok(name)
}

fn append(to: &mut Vec<u8>, bytes: &[u8]) -> Result<(), TryReserveError> {
    to.try_reserve(bytes.len())?;
    to.extend_from_slice(bytes);
    Ok(())
}

/// Adds the text of a string attribute; nothing if there is none.
fn append_attribute(
    api: &EvaluatorApi,
    object: Object,
    name: *const c_char,
    to: &mut Vec<u8>,
) -> Result<(), TryReserveError> {
    let mut appended = Ok(());
    // SAFETY: an object, and the name of an attribute; this thread holds the GIL.
    let text = unsafe { (api.attribute)(object, name) };
    if !text.is_null() {
        appended = append_text(api, text, to);
        // SAFETY: `attribute` gave a new reference.
        unsafe { (api.release)(text) };
    }
    // SAFETY: this thread holds the GIL. Nothing is wrong for the program if a name could not be had.
    unsafe { (api.clear_error)() };
    appended
}

/// Strings with lone surrogates, as file names that are not UTF-8 have them, are written with escapes.
fn append_text(api: &EvaluatorApi, text: Object, to: &mut Vec<u8>) -> Result<(), TryReserveError> {
    let mut length = 0;
    // SAFETY: an object; that it is a string is checked.
    let utf8 = unsafe { (api.utf8)(text, &raw mut length) };
    if !utf8.is_null() {
        // SAFETY: the string keeps this many bytes for as long as it lives, and nobody changes it.
        return append(to, unsafe {
            slice::from_raw_parts(utf8.cast(), length.unsigned_abs())
        });
    }
    // SAFETY: this thread holds the GIL.
    unsafe { (api.clear_error)() };
    // SAFETY: an object, checked as above, and two NUL-terminated strings.
    let encoded = unsafe { (api.encode)(text, c"utf-8".as_ptr(), c"backslashreplace".as_ptr()) };
    if encoded.is_null() {
        return Ok(());
    }
    let mut appended = Ok(());
    let mut bytes = ptr::null_mut();
    // SAFETY: a bytes object, and two variables to be filled.
    if unsafe { (api.bytes)(encoded, &raw mut bytes, &raw mut length) } == 0 {
        // SAFETY: the object keeps this many bytes until it is released.
        let bytes = unsafe { slice::from_raw_parts(bytes.cast(), length.unsigned_abs()) };
        appended = append(to, bytes);
    }
    // SAFETY: `encode` gave a new reference.
    unsafe { (api.release)(encoded) };
    appended
}
