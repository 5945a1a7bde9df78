"""Processes that make processes, whose functions are known beforehand.

    tree.py WAY [ARGUMENT...]
"""

import concurrent.futures
import multiprocessing
import os
import sys
import time


def burn(seconds):
    # CPU time, so that a busy machine leaves as many samples.
    end = time.process_time() + seconds
    while time.process_time() < end:
        for number in range(1000):
            number * number


def task(seconds):
    burn(seconds)
    return os.getpid()


def pool(method, tasks):
    context = multiprocessing.get_context(method)
    with context.Pool(3) as workers:
        print(*sorted(set(workers.map(task, [0.05] * int(tasks), chunksize=1))), flush=True)


def executor(tasks):
    with concurrent.futures.ProcessPoolExecutor(3) as workers:
        print(*sorted(set(workers.map(task, [0.05] * int(tasks)))), flush=True)


def before(middle, seconds):
    """The grandchild works in functions that ran before its parent was made, and in one of its own."""
    if os.fork() == 0:
        after(seconds)
        burn(seconds)
        os._exit(0)
    if middle:
        os._exit(0)


def after(seconds):
    burn(seconds)


def orphan(seconds):
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        # Whoever is left holds the end of the pipe that is written to.
        before(True, float(seconds))
    os.close(writing)
    os.waitpid(child, 0)
    os.read(reading, 1)


def first(seconds, names):
    burn(float(seconds))
    script = os.path.abspath(__file__)
    os.environ.pop("PYTHONPERFSUPPORT", None)
    options = ["-X", "perf"] if names == "with" else []
    os.execv(sys.executable, [sys.executable, *options, script, "second", seconds])


def second(seconds):
    burn(float(seconds))


def storm(count):
    for _ in range(int(count)):
        child = os.posix_spawn("/bin/true", ["true"], {})
        os.waitpid(child, 0)


def shorts(count):
    command = [sys.executable, "-X", "perf", "-S", "-E", os.path.abspath(__file__), "brief", "0.025"]
    for _ in range(int(count)):
        os.waitpid(os.posix_spawn(command[0], command, os.environ), 0)


def brief(seconds):
    burn(float(seconds))


def nursery():
    """Makes a worker for each line that it reads, with its pid for an answer."""
    print("ready", flush=True)
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            for _ in range(1000):
                task(0.05)
            os._exit(0)
        print(child, flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
