"""Says how it was started, works for some seconds, and ends as it is told to."""

import os
import sys
import time


def work(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(1000):
            number * number


seconds, way, number = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
print(f"PYTHONPERFSUPPORT={os.environ.get('PYTHONPERFSUPPORT')}", flush=True)
work(seconds)
print("worked", flush=True)
if way == "kill":
    os.kill(os.getpid(), number)
sys.exit(number)
