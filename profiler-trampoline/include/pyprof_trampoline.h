/*
 * Perf maps for code generators: names for machine code that is made at run time, as Linux perf, samply and
 * pyprof-bpf read them from /tmp/perf-PID.map.
 *
 * cargo build --profile trampoline --package profiler-trampoline makes target/trampoline/libpyprof_trampoline.so.
 * The example examples/jit.c shows all of it at work, and the command that compiles it. Let the code that you generate
 * keep a frame pointer: then profilers find its callers.
 */

#ifndef PYPROF_TRAMPOLINE_H
#define PYPROF_TRAMPOLINE_H

/* Made from src/ffi/c_api.rs by tests/header.rs, which says how to make it anew. */

#include <stddef.h>

/**
 * Done.
 */
#define PYPROF_PERF_MAP_OK 0

/**
 * The file could not be opened, written or copied; errno says why.
 */
#define PYPROF_PERF_MAP_ERROR (-1)

/**
 * Called in a signal handler, and the code that it interrupted was opening or closing the file: nothing was done, and
 * errno is EDEADLK. CPython returns this when it cannot make its lock; there is none here.
 */
#define PYPROF_PERF_MAP_LOCKED (-2)

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Opens /tmp/perf-PID.map of this process, or makes it with mode 0600. Does nothing when it is open.
 *
 * Not needed before pyprof_perf_map_write_entry, but tells early whether that will work. Whatever lies at that path
 * and is not a regular file of this user with a single name is refused at once: errno is then ELOOP (a symbolic
 * link), EISDIR, EINVAL (a FIFO or the like), EPERM or EACCES (of another user) or EMLINK (hard links).
 *
 * Returns PYPROF_PERF_MAP_OK, PYPROF_PERF_MAP_ERROR or PYPROF_PERF_MAP_LOCKED. Thread-safe.
 */
int pyprof_perf_map_init(void);

/**
 * Adds an entry: code_size bytes at code_address are called entry_name.
 *
 * Write it before the code runs for the first time. Opens the file if need be. The line is written by one write(2)
 * however long it is. Control characters in entry_name, and bytes that are not UTF-8, are written as escapes.
 *
 * Returns PYPROF_PERF_MAP_OK, PYPROF_PERF_MAP_ERROR with errno set, also when the disk is full, or
 * PYPROF_PERF_MAP_LOCKED. Thread-safe. Once the map is open, async-signal-safe for names that need no escapes or are
 * up to 1,024 bytes long with them. May be called after fork: the child writes a map of its own, which begins with
 * its parent's entries.
 *
 * entry_name is a NUL-terminated string, or NULL, which stands for an empty name. code_address is not
 * dereferenced.
 */
int pyprof_perf_map_write_entry(const void *code_address, size_t code_size, const char *entry_name);

/**
 * Adds all entries of the perf map at path to the one of this process, usually those of the parent process.
 *
 * Not needed after fork when the parent used these functions. A last line without an end is left out. All entries
 * are added or none, unless other threads write at the same time.
 *
 * Returns PYPROF_PERF_MAP_OK, PYPROF_PERF_MAP_ERROR with errno set, or PYPROF_PERF_MAP_LOCKED.
 *
 * path is a NUL-terminated string, or NULL, which stands for an empty path.
 */
int pyprof_perf_map_copy_from(const char *path);

/**
 * Closes the file, which stays where it is for those who read it. To be called before dlclose, too. Does nothing when it is closed; the next entry
 * opens it again.
 */
void pyprof_perf_map_fini(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* PYPROF_TRAMPOLINE_H */
