"""Works in one function after the other; goes on to the next when a line is read.

    phases.py
"""

import select
import sys


def is_asked():
    return bool(select.select([sys.stdin], [], [], 0)[0])


def work():
    while not is_asked():
        for number in range(10_000):
            number * number
    sys.stdin.readline()


def phase_0():
    work()


def phase_1():
    work()


def phase_2():
    work()


def phase_3():
    work()


print("ready", flush=True)
for phase in (phase_0, phase_1, phase_2, phase_3):
    phase()
    print("changed", flush=True)
