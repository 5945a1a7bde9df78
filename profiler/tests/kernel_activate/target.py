"""Tells whether its functions have trampolines, each time that changes. Its first word says what else it does.

busy     nothing
blocked  its main thread waits for a line of input first, and no other thread runs Python
deaf     does not let anybody run a script in it
threads  three more threads, one of which begins new ones all the time, and a signal each millisecond
"""

import os
import sys

def is_on():
    return hasattr(sys, "is_stack_trampoline_active") and sys.is_stack_trampoline_active()


def leaf():
    return sum(range(50))


def wait():
    print("ready", flush=True)
    sys.stdin.readline()


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
    if mode != "blocked":
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
