"""``python -m pyprof_trampoline app.py ARGUMENT...``, or ``-m MODULE ARGUMENT...``: run a program with trampolines."""

from __future__ import annotations

import io
import os
import runpy
import sys
import types

from . import activate

USAGE = "usage: python -m pyprof_trampoline [-m MODULE | SCRIPT] [ARGUMENT ...]"


def main() -> None:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help"):
        print(USAGE + "\n\nRuns a Python program so that native profilers see its functions by name.")
        raise SystemExit(0 if arguments else 2)
    if arguments[0] == "-m":
        if len(arguments) < 2:
            raise SystemExit(USAGE)
        module, sys.argv[:] = arguments[1], arguments[1:]
        sys.path[0] = os.getcwd()
        switch_on()
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        return
    if arguments[0].startswith("-"):
        raise SystemExit("%s\nunknown option %s" % (USAGE, arguments[0]))
    script, sys.argv[:] = arguments[0], arguments
    if os.path.isdir(script) or script.endswith((".zip", ".pyz")):
        sys.path.pop(0)
        switch_on()
        runpy.run_path(script, run_name="__main__")
        return
    run_script(script)


def run_script(script: str) -> None:
    """As ``python script`` does, without frames of this module or of runpy below those of the program."""
    try:
        with io.open_code(os.path.abspath(script)) as file:
            source = file.read()
    except OSError as err:
        raise SystemExit("cannot open %r: %s" % (script, err.strerror))
    path = os.path.abspath(script)
    sys.path[0] = os.path.dirname(os.path.realpath(script))
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=path, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = module
    code = compile(source, path, "exec", dont_inherit=True)
    switch_on()
    exec(code, module.__dict__)


def switch_on() -> None:
    try:
        activate()
    except (OSError, RuntimeError) as err:
        raise SystemExit("pyprof_trampoline: %s" % err)


if __name__ == "__main__":
    main()
