"""Goes 200 calls deep, each into another function, and works there, and again."""

import time

import common

DEPTH = 200


def spin(length):
    end = time.monotonic() + length
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def make(depth):
    """The first of so many functions, each with a code object of its own; the last calls spin()."""
    callees = [f"level_{number}" for number in range(2, depth + 1)] + ["spin"]
    source = "\n\n".join(
        f"def level_{number}(length):\n    return {callee}(length)\n"
        for number, callee in enumerate(callees, 1)
    )
    namespace = {"spin": spin}
    exec(compile(source, "<made at start>", "exec"), namespace)
    return namespace["level_1"]


def main():
    first = make(DEPTH)
    deadline = common.start(__doc__)
    while time.monotonic() < deadline:
        first(0.05)


if __name__ == "__main__":
    main()
