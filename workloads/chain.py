"""baz calls bar, bar calls foo, and foo is where all the time goes."""

import time

import common


def foo(deadline):
    while time.monotonic() < deadline:
        for number in range(10_000):
            number * number


def bar(deadline):
    foo(deadline)


def baz(deadline):
    bar(deadline)


if __name__ == "__main__":
    baz(common.start(__doc__))
