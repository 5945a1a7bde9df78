"""C code that calls Python back: qsort through ctypes, sorted, re.sub, map."""

import ctypes
import random
import re
import time

import common

COUNT = 2000
libc = ctypes.CDLL(None)
Numbers = ctypes.c_int * COUNT
Compare = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))


def compare_numbers(left, right):
    return left[0] - right[0]


compare = Compare(compare_numbers)


def sort_in_c(values):
    numbers = Numbers(*values)
    libc.qsort(numbers, COUNT, ctypes.sizeof(ctypes.c_int), compare)


def sort_key(value):
    return -value % 1000


def sort_by_key(values):
    return sorted(values, key=sort_key)


def replacement(match):
    return match[0].upper()


def substitute(text):
    return re.sub(r"\w+", replacement, text)


def halve(value):
    return value / 2


def map_all(values):
    return sum(map(halve, values))


def main():
    rnd = random.Random(5)
    values = [rnd.randrange(1 << 20) for _ in range(COUNT)]
    text = " ".join(f"word{value}" for value in values)
    deadline = common.start(__doc__)
    while time.monotonic() < deadline:
        sort_in_c(values)
        for _ in range(20):
            sort_by_key(values)
            map_all(values)
        substitute(text)


if __name__ == "__main__":
    main()
