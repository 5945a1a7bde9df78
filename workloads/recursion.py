"""Goes 200 calls deep and works there, and again."""

import time

import common

DEPTH = 200


def spin(length):
    end = time.monotonic() + length
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def descend(depth):
    if depth > 1:
        return descend(depth - 1)
    return spin(0.05)


def main():
    deadline = common.start(__doc__)
    while time.monotonic() < deadline:
        descend(DEPTH)


if __name__ == "__main__":
    main()
