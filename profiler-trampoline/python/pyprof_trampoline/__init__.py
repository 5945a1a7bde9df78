"""Names of Python functions for native profilers, and perf maps for code generators.

A native profiler (pyprof-bpf, Linux perf, samply) sees Python functions when the interpreter runs each of them through
a few bytes of code of its own, a *trampoline*, and names these bytes in ``/tmp/perf-PID.map``. CPython 3.12 and later
can do this by themselves; this package does it for CPython 3.9, 3.10 and 3.11::

    import pyprof_trampoline
    pyprof_trampoline.activate()

or, without a change to the program: ``python -m pyprof_trampoline app.py``.

The functions that end in ``perf_map`` and ``perf_map_entry`` write the same file for other generated code.
"""

from __future__ import annotations

import os as _os
import sys as _sys

if _sys.implementation.name != "cpython":
    raise ImportError("pyprof_trampoline is for CPython, and this is " + _sys.implementation.name)

from . import _native

__all__ = [
    "activate",
    "close_perf_map",
    "copy_perf_map",
    "deactivate",
    "is_active",
    "open_perf_map",
    "perf_map_path",
    "write_perf_map_entry",
]

_HAS_OWN = hasattr(_sys, "activate_stack_trampoline")


def activate() -> None:
    """Give every Python function that is called from now on a trampoline. Does nothing when that is so already.

    Functions that are running have none until they are called again: call this early. It covers all threads of the
    calling interpreter, and forked children; it does not cover other subinterpreters.

    A call of a Python function takes C stack then, as it always does on 3.9 and 3.10: on 3.11, recursion deeper than
    some 19,000 calls, which needs a raised ``sys.setrecursionlimit``, overflows a stack of 8 MiB.

    On CPython 3.12 and later this is ``sys.activate_stack_trampoline("perf")``.

    Raises RuntimeError where there cannot be any: another version or implementation, another user of the frame
    evaluation hook (PEP 523: some debuggers, torch.compile), memory that must not be executable; and OSError when
    ``/tmp/perf-PID.map`` cannot be written.
    """
    if _HAS_OWN:
        if not _sys.is_stack_trampoline_active():
            # CPython says nothing when it cannot open the file, and waits for ever on a FIFO.
            open_perf_map()
            close_perf_map()
            _sys.activate_stack_trampoline("perf")
        return
    open_perf_map()
    _complain(_native.activate())


def deactivate() -> None:
    """Call functions without trampolines again, at full speed. Does nothing when that is so already.

    The names stay in the file, and the memory of the trampolines stays in use.
    """
    if _HAS_OWN:
        if _sys.is_stack_trampoline_active():
            _sys.deactivate_stack_trampoline()
        return
    _complain(_native.deactivate())


def is_active() -> bool:
    """Whether functions that are called now in this interpreter get trampolines."""
    if _HAS_OWN:
        return _sys.is_stack_trampoline_active()
    return _native.is_active() == 1


def perf_map_path() -> str:
    """``/tmp/perf-PID.map``, with the pid that this process has in its own pid namespace."""
    return "/tmp/perf-%d.map" % _os.getpid()


def open_perf_map() -> None:
    """Open the perf map of this process, or make it. Does nothing when it is open, and need not be called.

    Raises OSError when something lies there that is not a regular file of this user.
    """
    _check(_native.init())


def write_perf_map_entry(code_address: int, code_size: int, entry_name: str | bytes) -> None:
    """Name ``code_size`` bytes of machine code at ``code_address``, before they run for the first time.

    Control characters in the name are written as escapes. Raises OSError when the entry cannot be written, also when
    the disk is full, and OverflowError for numbers that are no addresses.
    """
    if isinstance(entry_name, str):
        entry_name = entry_name.encode("utf-8", "backslashreplace")
    _check(_native.write_entry(code_address, code_size, entry_name))


def copy_perf_map(path: str | bytes | _os.PathLike[str]) -> None:
    """Add all entries of the perf map at ``path`` to the one of this process, usually those of a parent process.

    Not needed after ``os.fork()`` when the parent used this package. Raises OSError when that fails.
    """
    _check(_native.copy_from(_os.fsencode(path)), _os.fspath(path))


def close_perf_map() -> None:
    """Close the file; its entries stay for those who read them. The next entry opens it again."""
    _native.fini()


def _check(error: tuple[int, str] | None, path: object = None) -> None:
    if error is not None:
        number, text = error
        raise OSError(number, text, perf_map_path() if path is None else path)


def _complain(reason: str | None) -> None:
    if reason is not None:
        raise RuntimeError("trampolines cannot be switched: " + reason)
