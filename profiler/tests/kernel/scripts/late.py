"""Switches trampolines on while functions run that go on running."""

import sys


def work():
    for number in range(1000):
        number * number


def serve():
    sys.activate_stack_trampoline("perf")
    print("ready", flush=True)
    while True:
        work()


serve()
