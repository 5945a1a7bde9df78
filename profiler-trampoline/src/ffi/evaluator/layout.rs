//! Where frames and code objects of CPython 3.9 to 3.11 have what is read of them.

use std::{
    ffi::{CStr, c_void},
    mem, ptr,
};

use super::Object;

/// Where a frame has its code object: `f_code` of `PyFrameObject` (3.9, 3.10: Include/cpython/frameobject.h) and of
/// `_PyInterpreterFrame` (3.11: Include/internal/pycore_frame.h), the same place by chance.
const FRAME_CODE: usize = 32;

/// What differs between versions.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    /// Where a code object has its `co_extra` (Include/cpython/code.h).
    pub(super) extra: usize,
    /// The attribute with the most complete name.
    pub(super) name: &'static CStr,
}

impl Layout {
    /// The error is for people.
    pub(super) fn of((major, minor): (u32, u32)) -> Result<Self, String> {
        match (major, minor) {
            (3, 9 | 10) => Ok(Self {
                extra: 144,
                name: c"co_name",
            }),
            (3, 11) => Ok(Self {
                extra: 176,
                name: c"co_qualname",
            }),
            _ => Err(format!(
                "there are no trampolines for CPython {major}.{minor}, only for 3.9, 3.10 and 3.11"
            )),
        }
    }
}

/// `_PyCodeObjectExtra` (Objects/codeobject.c; 3.11: Include/internal/pycore_code.h).
#[repr(C)]
pub(super) struct CodeExtra {
    size: isize,
    values: [*mut c_void; 0],
}

/// # Safety
///
/// `frame` is a frame.
#[inline]
pub(super) unsafe fn code_of(frame: *mut c_void) -> Object {
    let place = frame.wrapping_byte_add(FRAME_CODE).cast::<Object>();
    // SAFETY: frames are longer than this, and consist of words here.
    unsafe { place.read() }
}

/// The slots of a code object, NULL if it has none yet.
///
/// # Safety
///
/// `code` is a code object, and `offset` that of its version.
#[inline]
pub(super) unsafe fn extra_of(code: Object, offset: usize) -> *mut CodeExtra {
    let place = code.wrapping_byte_add(offset).cast::<*mut CodeExtra>();
    // SAFETY: code objects are longer than this, and consist of words here.
    unsafe { place.read() }
}

/// The value in one slot, NULL if there is none.
///
/// # Safety
///
/// `extra` is NULL or what [`extra_of`] gave.
#[inline]
pub(super) unsafe fn slot(extra: *mut CodeExtra, index: isize) -> *mut c_void {
    if extra.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: the caller's promise.
    let size = unsafe { (*extra).size };
    if index >= size {
        return ptr::null_mut();
    }
    let values = extra
        .wrapping_byte_add(mem::offset_of!(CodeExtra, values))
        .cast::<*mut c_void>();
    let value = values.wrapping_offset(index);
    // SAFETY: `size` values follow (Objects/codeobject.c, `_PyCode_SetExtra`).
    unsafe { value.read() }
}
