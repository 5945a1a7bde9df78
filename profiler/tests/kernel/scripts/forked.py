"""Forks while functions run, and goes on with them in the child, which prints its pid."""

import os
import time


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def only_in_the_child():
    work(0.05)


def serve(parent):
    while os.getppid() == parent:
        work(0.05)
        only_in_the_child()


def main():
    work(0.05)
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        serve(parent)
        os._exit(0)
    print("ready", flush=True)
    print(child, flush=True)
    os.waitpid(child, 0)


main()
