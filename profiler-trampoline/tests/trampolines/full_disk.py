"""The map cannot grow: functions have no names then, which is said once, and the program goes on."""

import os
import resource
import signal
import sys
import tempfile

import common


def work():
    return 1


with tempfile.TemporaryFile() as errors:
    kept = os.dup(2)
    common.activate()
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = os.path.getsize("/tmp/perf-%d.map" % os.getpid())
    os.dup2(errors.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 200, limits[1]))
    functions = {}
    for number in range(100):
        exec(compile("def f%d(): return %d" % (number, number), "/srv/" + "x" * 60, "exec"), functions)
    assert sum(functions["f%d" % number]() for number in range(100)) == 4950
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    os.dup2(kept, 2)
    assert work() == 1
    common.deactivate()
    errors.seek(0)
    said = errors.read().decode()
assert said.count("\n") == 1 and said.startswith("pyprof_trampoline: /tmp/perf-"), said
# Whole lines only, and those written when there was room again.
common.entries()
assert len(common.named("work")) == 1
common.done()
