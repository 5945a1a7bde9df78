"""A process that works, and starts a child every 20 ms of it that works for a moment; one in five runs another program.

    churn.py
"""

import os
import sys
import time


def burn(seconds):
    # CPU time, so that a busy machine leaves as many samples.
    end = time.process_time() + seconds
    while time.process_time() < end:
        for number in range(1000):
            number * number


def short_lived():
    burn(0.03)


def long_lived():
    burn(0.02)


def main():
    print("ready", flush=True)
    number = 0
    while True:
        number += 1
        if os.fork() == 0:
            if number % 5 == 0:
                os.execv(sys.executable, [sys.executable, "-c", "sum(range(1_000_000))"])
            short_lived()
            os._exit(0)
        long_lived()
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            pass


main()
