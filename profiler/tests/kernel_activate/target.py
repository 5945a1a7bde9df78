"""Tells whether its functions have trampolines, each time that changes. Its first word says what else it does.

busy     nothing
blocked  its main thread waits for a line of input first, and no other thread runs Python
locked   the same, while somebody holds the lock of the interpreter's queue of pending calls
full     the same, while that queue is full
deaf     does not let anybody run a script in it
threads  three more threads, one of which begins new ones all the time, and a signal each millisecond
"""

import os
import sys

# From the headers of each version, as offsets in an interpreter's state: what is pending, and its lock.
QUEUES = {
    9: dict(lock=80, calls=96, first=608, last=612),
    10: dict(lock=80, calls=96, first=608, last=612),
    11: dict(lock=112, calls=128, first=640, last=644),
    12: dict(lock=408, calls=424, first=936, last=940),
    13: dict(mutex=40, count=44, calls=56, first=7256, last=7260),
}


def is_on():
    if hasattr(sys, "is_stack_trampoline_active"):
        return sys.is_stack_trampoline_active()
    package = sys.modules.get("pyprof_trampoline")
    return package is not None and package.is_active()


def leaf():
    return sum(range(50))


def wait():
    print("ready", flush=True)
    sys.stdin.readline()


def locked():
    import ctypes

    python = ctypes.pythonapi
    python.PyInterpreterState_Get.restype = ctypes.c_void_p
    state, queue = python.PyInterpreterState_Get(), QUEUES[sys.version_info[1]]
    if "mutex" in queue:
        mutex = ctypes.c_uint8.from_address(state + queue["mutex"])
        mutex.value = 1
        wait()
        mutex.value = 0
    else:
        lock = ctypes.c_void_p.from_address(state + queue["lock"])
        python.PyThread_acquire_lock(lock, 1)
        wait()
        python.PyThread_release_lock(lock)


def full():
    import ctypes

    python = ctypes.pythonapi
    python.PyInterpreterState_Get.restype = ctypes.c_void_p
    state, queue = python.PyInterpreterState_Get(), QUEUES[sys.version_info[1]]
    places, words = (300, 3) if "count" in queue else (31, 2)
    # Returns 0, as all is well then.
    function = ctypes.cast(python.PyErr_CheckSignals, ctypes.c_void_p).value
    calls = (ctypes.c_uint64 * (places * words)).from_address(state + queue["calls"])
    first = ctypes.c_int.from_address(state + queue["first"])
    last = ctypes.c_int.from_address(state + queue["last"])
    empty, content = (0,) * len(calls), ((function,) + (0,) * (words - 1)) * places
    count = ctypes.c_int.from_address(state + queue["count"]) if "count" in queue else ctypes.c_int()
    # 3.13 makes its calls when a thread has waited for something: nothing is printed from here on.
    print("ready", flush=True)
    first.value = 0
    calls[:] = content
    last.value = places % 300
    count.value = places
    sys.stdin.readline()
    count.value = 0
    first.value = last.value = 0
    calls[:] = empty


def deaf():
    def hook(event, arguments):
        if event.endswith("remote_debugger_script"):
            raise RuntimeError("nobody")

    sys.addaudithook(hook)


def threads():
    import signal
    import threading

    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    def work():
        while True:
            leaf()

    def begin():
        while True:
            thread = threading.Thread(target=leaf)
            thread.start()
            thread.join()

    for function in (work, work, begin):
        threading.Thread(target=function, daemon=True).start()


def main():
    mode = sys.argv[1]
    if mode == "blocked":
        wait()
    elif mode != "busy":
        globals()[mode]()
    if mode not in ("blocked", "locked", "full"):
        print("ready", flush=True)
    names, modules, before = set(globals()), set(sys.modules), None
    while True:
        leaf()
        now = is_on()
        if now != before:
            left = (set(globals()) - names) | (set(sys.modules) - modules)
            print("on" if now else "off", *sorted(left), flush=True)
            before = now


main()
