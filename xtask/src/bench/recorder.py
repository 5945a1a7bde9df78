"""Starts a profiler and tells what it cost, to the microsecond.

    recorder.py STDERR-FILE COMMAND ARGS...

Prints the profiler's pid and the moment of its start (CLOCK_MONOTONIC, ns). A line on
standard input stops it with SIGINT, the end of the input with SIGTERM. At its end prints
exit code, CPU seconds (user and system), most memory held (KiB) and the seconds since
it was told to stop.
"""

import os
import signal
import sys
import threading
import time

errors, *command = sys.argv[1:]
stopped = None


def listen():
    global stopped
    line = sys.stdin.readline()
    stopped = time.monotonic_ns()
    os.kill(pid, signal.SIGINT if line else signal.SIGTERM)


spawned = time.monotonic_ns()
pid = os.posix_spawnp(
    command[0],
    command,
    os.environ,
    file_actions=[
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
        (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
        (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644),
    ],
)
print(pid, spawned, flush=True)
threading.Thread(target=listen, daemon=True).start()
_, status, usage = os.wait4(pid, 0)
ended = time.monotonic_ns()
print(
    os.waitstatus_to_exitcode(status),
    usage.ru_utime + usage.ru_stime,
    usage.ru_maxrss,
    (ended - (stopped or ended)) / 1e9,
    flush=True,
)
os._exit(0)  # the listener still waits for a line
