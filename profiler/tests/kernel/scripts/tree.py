"""Processes that make processes, whose functions are known beforehand.

    tree.py WAY [ARGUMENT...]
"""

import concurrent.futures
import ctypes
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


def code_at(place):
    """A piece of code at a fixed place: mov $9999, %ecx; dec %ecx; jnz; ret."""
    libc = ctypes.CDLL(None)
    # Readable, writable, executable; private, anonymous, fixed.
    libc.mmap(place, 4096, 7, 0x32, -1, 0)
    rounds = b"\xb9\x0f\x27\x00\x00\xff\xc9\x75\xfc\xc3"
    ctypes.memmove(place, rounds, len(rounds))
    return ctypes.CFUNCTYPE(None)(place)


def name_code(place, name):
    with open(f"/tmp/perf-{os.getpid()}.map", "a") as names:
        names.write(f"{place:x} a {name}\n")


def run_code(code, seconds):
    end = time.process_time() + float(seconds)
    while time.process_time() < end:
        for _ in range(100):
            code()


def reuse(seconds):
    """The parent gives its code another name, while a child runs it under the old one."""
    code = code_at(0x7000_0000)
    name_code(0x7000_0000, "old_name")
    child = os.fork()
    if child == 0:
        run_code(code, seconds)
        os._exit(0)
    name_code(0x7000_0000, "new_name")
    run_code(code, seconds)
    os.waitpid(child, 0)


def last_words(seconds):
    """A program names code, and is replaced at once by another one that has code at the same place."""
    code = code_at(0x7000_0000)
    run_code(code, seconds)
    name_code(0x7000_0000, "of_the_first")
    script = os.path.abspath(__file__)
    os.environ.pop("PYTHONPERFSUPPORT", None)
    os.execv(sys.executable, [sys.executable, script, "nameless", seconds])


def nameless(seconds):
    run_code(code_at(0x7000_0000), seconds)


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
