"""What trampolines cost, as ratios of CPU time in one process: switched off and on by turns. Prints JSON."""

import json
import os
import sys
import threading
import time

import pyprof_trampoline as trampoline

TURNS = 7


def calls(n=18):
    """Nothing but calls: the worst that there is."""
    return n if n < 2 else calls(n - 1) + calls(n - 2)


class Body:
    def __init__(self, x, v):
        self.x = x
        self.v = v

    def step(self, force):
        self.v += force
        self.x += self.v
        return self.energy()

    def energy(self):
        return self.v * self.v / 2 + abs(self.x)


def objects():
    """Methods that do a little each."""
    bodies = [Body(n, 1.0) for n in range(40)]
    return sum(body.step(-0.01) for _ in range(40) for body in bodies)


def generators():
    return sum(pair for pair in (x * y for x in range(80) for y in range(40)))


def loop():
    """A loop without calls."""
    total = 0
    for number in range(60_000):
        total += number & 3
    return total


def text():
    """Work that is done in C."""
    return sorted(json.dumps({str(n): [n] * 5 for n in range(400)}).split(","))


def seconds(work):
    best = 1e9
    for _ in range(5):
        before = time.process_time()
        work()
        best = min(best, time.process_time() - before)
    return best


def ratios(work):
    found = []
    for _ in range(TURNS):
        off = seconds(work)
        trampoline.activate()
        on = seconds(work)
        trampoline.deactivate()
        found.append(on / (off + seconds(work)) * 2)
    return found


def stack_pointer(tid):
    """Of a thread that waits: the kernel tells it of whoever is in a system call."""
    while True:
        with open("/proc/self/task/%d/syscall" % tid) as file:
            words = file.read().split()
        if len(words) == 9:
            return int(words[7], 16)


def stack_per_call():
    """Bytes of C stack that a Python call takes: a thread waits at two depths of a recursion."""
    arrived, leave = threading.Semaphore(0), threading.Semaphore(0)
    stops = (100, 600)

    def descend(depth):
        if depth in stops:
            arrived.release()
            leave.acquire()
        if depth < stops[1]:
            descend(depth + 1)

    thread = threading.Thread(target=descend, args=(0,))
    thread.start()
    pointers = []
    for _ in stops:
        arrived.acquire()
        time.sleep(0.01)  # until it waits
        pointers.append(stack_pointer(thread.native_id))
        leave.release()
    thread.join()
    return (pointers[0] - pointers[1]) / (stops[1] - stops[0])


def first_call():
    """Microseconds that the first call of a function takes longer than the second, with and without trampolines."""
    namespace = {}
    count = 2000
    for number in range(count):
        exec("def f%d(): pass" % number, namespace)
    functions = [namespace["f%d" % number] for number in range(count)]
    times = []
    for _ in range(2):
        before = time.process_time()
        for function in functions:
            function()
        times.append(time.process_time() - before)
    return (times[0] - times[1]) / count * 1e6


result = {work.__name__: ratios(work) for work in (calls, objects, generators, loop, text)}
sys.setrecursionlimit(2000)
result["stack_off"] = [stack_per_call() for _ in range(3)]
trampoline.activate()
result["stack_on"] = [stack_per_call() for _ in range(3)]
result["first_call_us"] = [first_call() for _ in range(3)]
trampoline.deactivate()
os.unlink(trampoline.perf_map_path())
print(json.dumps(result))
