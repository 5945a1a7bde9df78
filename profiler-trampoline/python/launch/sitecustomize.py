"""Switches trampolines on in every Python that starts with this folder in PYTHONPATH.

Imported by ``site`` before anything of the program, by whatever Python there is: it must be understood by all of them,
do no harm in any, and give way to the ``sitecustomize`` that would have been imported without it.
"""

import sys


def _switch_on():
    # CPython 3.12 and later do it by themselves, asked by PYTHONPERFSUPPORT.
    if sys.version_info[:2] not in ((3, 9), (3, 10), (3, 11)) or sys.implementation.name != "cpython":
        return
    try:
        import pyprof_trampoline

        # A subinterpreter has none, which is nothing that this program needs to hear of.
        if pyprof_trampoline._native.is_active() != 2:
            pyprof_trampoline.activate()
    except Exception as err:
        sys.stderr.write("pyprof_trampoline: %s; Python functions have no names\n" % (err,))


def _give_way():
    import os

    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    ours = sys.modules.pop(__name__)
    try:
        __import__(__name__)
    except ImportError as err:
        if getattr(err, "name", __name__) != __name__:
            raise
    finally:
        # Whoever imports a module looks for it here afterwards.
        sys.modules.setdefault(__name__, ours)


_switch_on()
_give_way()
