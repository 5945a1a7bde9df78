"""Spends its time in compiled functions that call the interpreter.

Usage: extension.py LIBRARY
"""

import ctypes
import sys

library = ctypes.PyDLL(sys.argv[1])
hot = library.hot
hot.argtypes, hot.restype = [ctypes.c_long], ctypes.c_long


def callback():
    total = 0
    for number in range(20_000):
        total += number
    return total % 7


CALLBACK = ctypes.PYFUNCTYPE(ctypes.c_long)(callback)


def calls_hot():
    hot(100_000)


def calls_with_callback():
    library.with_callback(CALLBACK)


print("ready", flush=True)
while True:
    calls_hot()
    calls_with_callback()
