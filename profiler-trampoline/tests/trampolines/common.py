"""What the programs of this folder share."""

import os
import sys

import pyprof_trampoline

OURS = sys.version_info < (3, 12)
HAS_QUALNAME = sys.version_info >= (3, 11)


class Entry:
    def __init__(self, line):
        start, size, self.name = line.split(" ", 2)
        self.start = int(start, 16)
        self.size = int(size, 16)


def text(pid=None):
    with open("/tmp/perf-%d.map" % (pid or os.getpid()), encoding="utf-8") as file:
        return file.read()


def entries(pid=None):
    """All entries of a map. Each line must be a whole one."""
    content = text(pid)
    assert content.endswith("\n"), repr(content[-100:])
    return [Entry(line) for line in content.splitlines()]


def named(name, pid=None, file=None):
    """The entries of a function, by the last part of its name."""
    file = file or sys.modules["__main__"].__file__
    wanted = (":" + name + ":" + file, "." + name + ":" + file)
    return [entry for entry in entries(pid) if entry.name.endswith(wanted)]


def check_ranges(pid=None):
    """No two trampolines overlap, and each lies in memory that can be run and not written."""
    ours = sorted((entry for entry in entries(pid) if entry.name.startswith("py::")), key=lambda entry: entry.start)
    for one, next_one in zip(ours, ours[1:]):
        assert one.start + one.size <= next_one.start, (one.name, next_one.name)
    with open("/proc/self/maps") as maps:
        executable = [
            tuple(int(number, 16) for number in line.split(" ")[0].split("-"))
            for line in maps
            if line.split(" ")[1] == "r-xp"
        ]
    for entry in ours:
        assert any(start <= entry.start and entry.start + entry.size <= end for start, end in executable), entry.name
    return ours


def expect(kind, function, *words):
    """The error that a call must end with; gives its text."""
    try:
        function()
    except kind as err:
        for word in words:
            assert word in str(err), (word, str(err))
        return str(err)
    raise AssertionError("%s was not raised" % kind.__name__)


def skip(reason):
    print("cannot run here: " + reason)
    print("done")
    sys.exit(0)


def done():
    print("done", flush=True)


activate = pyprof_trampoline.activate
deactivate = pyprof_trampoline.deactivate
is_active = pyprof_trampoline.is_active
