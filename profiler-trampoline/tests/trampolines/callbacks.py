"""Python called from C, and exceptions that pass through C."""

import ctypes
import functools
import re

import common


def key(item):
    return -item


def add(left, right):
    return left + right


def compare(left, right):
    return left[0] - right[0]


def replace(match):
    return match.group().upper()


def fail(item):
    raise KeyError(item)


class Thing:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return self.value < other.value

    def __getattr__(self, name):
        return name

    def __del__(self):
        deleted.append(self.value)


deleted = []
common.activate()
assert sorted([1, 3, 2], key=key) == [3, 2, 1]
assert functools.reduce(add, range(10)) == 45
assert re.sub("[a-c]", replace, "abcd") == "ABCd"
assert common.expect(KeyError, lambda: sorted([1], key=fail)) == "1"
assert sorted([Thing(2), Thing(1)])[0].value == 1
assert Thing(3).anything == "anything"
assert sorted(deleted) == [1, 2, 3]
kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_int), ctypes.POINTER(ctypes.c_int))
numbers = (ctypes.c_int * 5)(5, 1, 4, 2, 3)
ctypes.CDLL(None).qsort(numbers, 5, ctypes.sizeof(ctypes.c_int), kind(compare))
assert list(numbers) == [1, 2, 3, 4, 5]
common.deactivate()
for name in ("key", "add", "compare", "replace", "fail", "__init__", "__lt__", "__getattr__", "__del__"):
    assert len(common.named(name)) == 1, name
common.done()
