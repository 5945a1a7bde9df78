"""A parent that forks children again and again; they work in functions that they have from it."""

import os
import time

import common

CHILDREN = 3


def spin(length):
    end = time.monotonic() + length
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def work():
    spin(1.0)


def main():
    deadline = common.start(__doc__)
    while time.monotonic() < deadline:
        children = []
        for _ in range(CHILDREN):
            child = os.fork()
            if child == 0:
                work()
                os._exit(0)
            children.append(child)
        for child in children:
            os.waitpid(child, 0)


if __name__ == "__main__":
    main()
