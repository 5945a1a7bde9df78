"""Subinterpreters: trampolines are for the interpreter that asked for them, one at a time."""

import os
import sys

import common

try:
    import _xxsubinterpreters as interpreters
except ImportError:
    common.skip("there is no _xxsubinterpreters")

PATHS = "import sys; sys.path[:] = %r; import pyprof_trampoline as t\n" % (sys.path,)


def run(interpreter, source):
    interpreters.run_string(interpreter, PATHS + source)


def mine():
    return 1


common.activate()
other = interpreters.create()
run(other, "assert not t.is_active()\ndef inside(): pass\ninside()")
# Another one is refused while this one has them.
run(
    other,
    "try: t.activate()\n"
    "except RuntimeError as err: assert 'another interpreter' in str(err), err\n"
    "else: raise AssertionError('not refused')",
)
mine()
assert common.is_active()
common.deactivate()

# Now the other one may, and dies with them.
run(other, "t.activate()\nassert t.is_active()\ndef there(): pass\nthere()")
assert not common.is_active()
common.expect(RuntimeError, common.activate, "another interpreter")
interpreters.destroy(other)

# A fork must not look for an interpreter that is gone.
child = os.fork()
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0


def again():
    return 2


for _ in range(3):
    common.activate()
    again()
    common.deactivate()
assert len(common.named("mine")) == 1 and len(common.named("again")) == 1
names = [entry.name for entry in common.entries()]
assert not any(name.startswith("py::inside:") for name in names), names
assert sum(name.startswith("py::there:") for name in names) == 1, names
common.done()
