"""The end of the interpreter, with trampolines on: exit codes, destructors, threads that go on, children."""

import subprocess
import sys

import common

PROGRAMS = {
    "return": ("x = 1", 0),
    "sys.exit": ("sys.exit(7)", 7),
    "exception": ("raise SystemExit(3)", 3),
    "os._exit": ("import os; os._exit(9)", 9),
    "atexit": ("import atexit\ndef last(): print('last')\natexit.register(last)", 0),
    "destructor": (
        "class Last:\n"
        "    def __del__(self): new_at_the_end()\n"
        "def new_at_the_end(): print('last')\n"
        "sys.modules[__name__].keep = Last()",
        0,
    ),
    "daemon thread": (
        "import threading, time\n"
        "def spin():\n"
        "    while True: tick()\n"
        "def tick(): pass\n"
        "threading.Thread(target=spin, daemon=True).start()\n"
        "time.sleep(0.05)",
        0,
    ),
    "exit in a thread": (
        "import threading\n"
        "def leave(): sys.exit(1)\n"
        "t = threading.Thread(target=leave); t.start(); t.join()",
        0,
    ),
    "generator left over": ("def g():\n    try: yield 1\n    finally: print('last')\nleft = g(); next(left)", 0),
    "switched off first": ("t.deactivate()", 0),
}
# CPython frees its own trampolines at the end, while daemon threads may still be in them: `python -X perf` crashes in
# about one of ten such programs (seen with 3.12.1 and 3.13.0).
if not common.OURS:
    del PROGRAMS["daemon thread"]
START = "import os, sys, pyprof_trampoline as t\nt.activate()\nprint(os.getpid())\n"

for name, (source, code) in PROGRAMS.items():
    for _ in range(3):
        child = subprocess.run([sys.executable, "-u", "-c", START + source], capture_output=True, text=True)
        assert child.returncode == code, (name, child)
        assert child.stderr == "", (name, child)
        if "last" in source:
            assert child.stdout.endswith("last\n"), (name, child)
        common.os.unlink("/tmp/perf-%d.map" % int(child.stdout.split()[0]))
common.done()
