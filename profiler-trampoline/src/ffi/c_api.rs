//! The writer for C, declared in `include/pyprof_trampoline.h`.
//!
//! The functions correspond to CPython's `PyUnstable_PerfMapState_Init`, `PyUnstable_WritePerfMapEntry`,
//! `PyUnstable_PerfMapState_Fini` and `PyUnstable_CopyPerfMapFile` (Python/sysmodule.c), and return what those return.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::{PerfMap, PerfMapError};

/// Done.
pub const PYPROF_PERF_MAP_OK: c_int = 0;
/// The file could not be opened, written or copied; `errno` says why.
pub const PYPROF_PERF_MAP_ERROR: c_int = -1;
/// Called in a signal handler, and the code that it interrupted was opening or closing the file: nothing was done, and
/// `errno` is `EDEADLK`. CPython returns this when it cannot make its lock; there is none here.
pub const PYPROF_PERF_MAP_LOCKED: c_int = -2;

/// Opens `/tmp/perf-PID.map` of this process, or makes it with mode 0600. Does nothing when it is open.
///
/// Not needed before `pyprof_perf_map_write_entry`, but tells early whether that will work. Whatever lies at that path
/// and is not a regular file of this user with a single name is refused at once: `errno` is then `ELOOP` (a symbolic
/// link), `EISDIR`, `EINVAL` (a FIFO or the like), `EPERM` or `EACCES` (of another user) or `EMLINK` (hard links).
///
/// Returns `PYPROF_PERF_MAP_OK`, `PYPROF_PERF_MAP_ERROR` or `PYPROF_PERF_MAP_LOCKED`. Thread-safe.
#[unsafe(no_mangle)]
pub extern "C" fn pyprof_perf_map_init() -> c_int {
    status(PerfMap::of_this_process().init())
}

/// Adds an entry: `code_size` bytes at `code_address` are called `entry_name`.
///
/// Write it before the code runs for the first time. Opens the file if need be. The line is written by one `write(2)`
/// however long it is. Control characters in `entry_name`, and bytes that are not UTF-8, are written as escapes.
///
/// Returns `PYPROF_PERF_MAP_OK`, `PYPROF_PERF_MAP_ERROR` with `errno` set, also when the disk is full, or
/// `PYPROF_PERF_MAP_LOCKED`. Thread-safe. Once the map is open, async-signal-safe for names that need no escapes or are
/// up to 1,024 bytes long with them. May be called after `fork`: the child writes a map of its own, which begins with
/// its parent's entries.
///
/// # Safety
///
/// `entry_name` is a NUL-terminated string, or NULL, which stands for an empty name. `code_address` is not
/// dereferenced.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pyprof_perf_map_write_entry(
    code_address: *const c_void,
    code_size: usize,
    entry_name: *const c_char,
) -> c_int {
    // SAFETY: the caller's promise.
    let name = unsafe { text(entry_name) };
    status(PerfMap::of_this_process().write_entry(code_address.addr(), code_size, name.to_bytes()))
}

/// Adds all entries of the perf map at `path` to the one of this process, usually those of the parent process.
///
/// Not needed after `fork` when the parent used these functions. A last line without an end is left out. All entries
/// are added or none, unless other threads write at the same time.
///
/// Returns `PYPROF_PERF_MAP_OK`, `PYPROF_PERF_MAP_ERROR` with `errno` set, or `PYPROF_PERF_MAP_LOCKED`.
///
/// # Safety
///
/// `path` is a NUL-terminated string, or NULL, which stands for an empty path.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn pyprof_perf_map_copy_from(path: *const c_char) -> c_int {
    // SAFETY: the caller's promise.
    let path = unsafe { text(path) };
    status(PerfMap::of_this_process().copy_from(path))
}

/// Closes the file, which stays where it is for those who read it. To be called before `dlclose`, too. Does nothing when it is closed; the next entry
/// opens it again.
#[unsafe(no_mangle)]
pub extern "C" fn pyprof_perf_map_fini() {
    PerfMap::of_this_process().fini();
}

/// # Safety
///
/// `pointer` is NULL or a NUL-terminated string that lives long enough.
unsafe fn text<'a>(pointer: *const c_char) -> &'a CStr {
    if pointer.is_null() {
        return c"";
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(pointer) }
}

fn status(result: Result<(), PerfMapError>) -> c_int {
    match result {
        Ok(()) => PYPROF_PERF_MAP_OK,
        Err(err) => {
            // SAFETY: the address of this thread's own errno.
            let errno = unsafe { libc::__errno_location() };
            // SAFETY: as above; it is there for as long as the thread is.
            unsafe { errno.write(err.errno()) };
            match err {
                PerfMapError::Reentered => PYPROF_PERF_MAP_LOCKED,
                _ => PYPROF_PERF_MAP_ERROR,
            }
        }
    }
}
