"""``python -m pyprof_trampoline app.py ARGUMENT...``, or ``-m MODULE ARGUMENT...``: run a program with trampolines.

The program is to find everything as ``python app.py`` has it: its own ``__main__`` module, ``sys.argv``, ``sys.path``,
and nothing of this file in a traceback.
"""

from __future__ import annotations

import builtins
import io
import os
import sys
from importlib.machinery import SourceFileLoader, SourcelessFileLoader
from importlib.util import MAGIC_NUMBER
from pkgutil import get_importer
from types import ModuleType, TracebackType
from typing import Callable

from . import activate

USAGE = "usage: python -m pyprof_trampoline [-m MODULE | SCRIPT] [ARGUMENT ...]"
HELP = """\
%s

Runs a Python program so that native profilers (pyprof-bpf, perf, samply) see its functions by name. SCRIPT is what
`python` takes: a file, a folder or a zip file with a __main__.py in it.

Python programs that it starts run without: `pyprof-bpf record -- python app.py` covers these, too."""
# What `python` exits with when it is used wrongly, and when it cannot read the script.
WRONG_USE = 2


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments:
        refuse(USAGE, WRONG_USE)
    if arguments[0] in ("-h", "--help"):
        print(HELP % USAGE)
    elif arguments[0] == "-m" and len(arguments) > 1:
        sys.argv[:] = ["-m"] + arguments[2:]
        run_module(arguments[1], True)
    elif arguments[0].startswith("-"):
        reason = "-m needs the name of a module" if arguments[0] == "-m" else "there is no option " + arguments[0]
        refuse("%s\n%s; options of the interpreter stand before its -m" % (USAGE, reason), WRONG_USE)
    else:
        sys.argv[:] = arguments
        run_path(arguments[0])


def run_path(script: str) -> None:
    path = absolute(script)
    # A folder or a zip file, whatever its name: something that can be imported from.
    if get_importer(path) is not None:
        change_first_path(path, always=True)
        run_module("__main__", False)
        return
    try:
        with io.open_code(path) as file:
            program = file.read()
    except OSError as err:
        refuse("pyprof_trampoline: cannot read %s: %s" % (path, err.strerror), WRONG_USE)
    change_first_path(os.path.dirname(os.path.realpath(script)))
    loader = (SourcelessFileLoader if program.startswith(MAGIC_NUMBER) else SourceFileLoader)("__main__", path)
    namespace = new_main(__file__=path, __loader__=loader, __package__=None, __spec__=None)
    try:
        if isinstance(loader, SourcelessFileLoader):
            code = loader.get_code("__main__")
        else:
            code = compile(program, path, "exec", dont_inherit=True)
    except BaseException:
        hide_this_file()
        raise
    run(exec, code, namespace)


def run_module(name: str, alter_argv: bool) -> None:
    # Private, but it is by this name that the interpreter itself calls it for `-m` and for folders. What is public in
    # runpy takes the `__main__` module away again when the program's last statement is done, while threads, atexit
    # functions and pickles still need it.
    from runpy import _run_module_as_main

    new_main()
    run(_run_module_as_main, name, alter_argv)


def new_main(**attributes: object) -> dict[str, object]:
    """Put an empty module in the place of this one, and return its namespace."""
    module = ModuleType("__main__")
    module.__dict__.update(attributes, __builtins__=builtins)
    # Up to 3.13, and up to 3.14.
    for name, value in (("__annotations__", {}), ("__cached__", None)):
        if name in globals():
            module.__dict__[name] = value
    sys.modules["__main__"] = module
    return module.__dict__


def run(program: Callable[..., object], *arguments: object) -> None:
    try:
        activate()
    except (OSError, RuntimeError) as err:
        refuse("pyprof_trampoline: %s" % err, 1)
    # From here on no function of this file is called: it would be in each stack of the program.
    try:
        program(*arguments)
    except SystemExit:
        raise
    except BaseException:
        hide_this_file()
        raise


def hide_this_file() -> None:
    """Let the interpreter do all that it does for an error that nobody caught, but not tell of this file."""
    show = getattr(sys, "excepthook", None)
    if show is not None:
        sys.excepthook = lambda kind, error, trace: show(kind, *without_this_file(error, trace))


def without_this_file(
    error: BaseException, trace: TracebackType | None
) -> tuple[BaseException, TracebackType | None]:
    """The error and its traceback from the program's first frame on."""
    own, part = trace, trace
    while part is not None:
        if part.tb_frame.f_globals is globals():
            own = part.tb_next
        part = part.tb_next
    return error.with_traceback(own), own


def absolute(script: str) -> str:
    """As the interpreter makes ``__file__`` of it: not normalised."""
    if os.path.isabs(script):
        return script
    try:
        folder = os.getcwd()
    except FileNotFoundError:
        return script
    return folder if script == "." and sys.version_info >= (3, 11) else os.path.join(folder, script)


def change_first_path(path: str, always: bool = False) -> None:
    """Put ``path`` first in ``sys.path``, where ``-m`` has put the current folder; ``always``: also with ``-P``."""
    safe = sys.flags.isolated or getattr(sys.flags, "safe_path", False)
    try:
        there = not safe and sys.path[:1] == [os.getcwd()]
    except FileNotFoundError:
        there = False
    if there or not safe or always:
        sys.path[: int(there)] = [path]


def refuse(reason: str, code: int) -> None:
    print(reason, file=sys.stderr)
    raise SystemExit(code)


if __name__ == "__main__":
    main()
