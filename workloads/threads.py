"""Eight threads, each in a function of its own, all of them busy at once."""

import hashlib
import threading
import time

import common

BLOCK = bytes(1 << 16)


def crunch(deadline):
    while time.monotonic() < deadline:
        hashlib.sha256(BLOCK).digest()  # lets the other threads run meanwhile
        for number in range(2000):
            number * number


def make(number):
    """A function `worker_<number>` that calls `crunch`."""
    names = {"crunch": crunch}
    exec(f"def worker_{number}(deadline):\n    crunch(deadline)\n", names)
    return names[f"worker_{number}"]


def main():
    deadline = common.start(__doc__)
    threads = [
        threading.Thread(target=make(number), args=(deadline,), name=f"worker-{number}")
        for number in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main()
