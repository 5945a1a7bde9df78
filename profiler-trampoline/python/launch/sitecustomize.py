"""Switches trampolines on in every Python that starts with this folder in PYTHONPATH.

Imported by ``site`` before anything of the program, by whatever Python there is: it must be understood by all of them,
do no harm in any, and give way to the ``sitecustomize`` that would have been imported without it.
"""

import os
import sys


def _switch_on():
    # CPython 3.12 and later do it by themselves, asked by PYTHONPERFSUPPORT. Before 3.3 there is no sys.implementation.
    if sys.version_info[:2] not in ((3, 9), (3, 10), (3, 11)) or sys.implementation.name != "cpython":
        return
    try:
        import pyprof_trampoline

        # A subinterpreter has none, which is nothing that this program needs to hear of.
        if pyprof_trampoline._native.is_active() != 2:
            pyprof_trampoline.activate()
    except Exception as err:
        if sys.stderr is not None:
            sys.stderr.write("pyprof_trampoline: %s; Python functions have no names\n" % (err,))


def _give_way():
    here = os.path.dirname(_absolute(__file__))
    absolute = [_absolute(folder) for folder in sys.path]
    # This folder is the first one, as a rule. If it is not, a sitecustomize in one before it has imported this, and is
    # not to be found again.
    before = absolute.index(here) if here in absolute else 0
    sys.path[:] = [folder for folder in sys.path if _absolute(folder) != here]

    ours = sys.modules.pop(__name__)
    try:
        if before and sys.version_info >= (3, 5):
            _import_from(sys.path[before:])
        else:
            __import__(__name__)
    except ImportError as err:
        # Python 2 tells only in words which module is missing.
        if getattr(err, "name", None) != __name__ and str(err) != "No module named " + __name__:
            raise
    finally:
        # Whoever imports a module looks for it here afterwards.
        sys.modules.setdefault(__name__, ours)


def _absolute(path):
    try:
        return os.path.abspath(path)
    except OSError:  # the current directory is gone, which is no reason to stop
        return path


def _import_from(folders):
    import importlib.machinery
    import importlib.util

    spec = importlib.machinery.PathFinder.find_spec(__name__, folders)
    if spec is not None and spec.loader is not None:
        module = sys.modules[__name__] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)


_switch_on()
_give_way()
