"""Calls the functions of a library in turn, each from a Python function of its own.

Usage: compiled.py LIBRARY [memfd], to load a copy of the library that has no name.
"""

import ctypes
import os
import sys

NAMES = ("plt", "alloca", "large_frame", "aligned", "realigned", "noreturn", "sigaltstack")


def load(path, way):
    if way != ["memfd"]:
        return ctypes.CDLL(path)
    memory = os.memfd_create("library")
    with open(path, "rb") as file:
        os.write(memory, file.read())
    return ctypes.CDLL(f"/proc/self/fd/{memory}")


def caller(library, name):
    names = {"run": getattr(library, f"run_{name}"), "c_long": ctypes.c_long}
    exec(f"def call_{name}(rounds): run(c_long(rounds))", names)
    return names[f"call_{name}"]


library = load(sys.argv[1], sys.argv[2:])
callers = [caller(library, name) for name in NAMES]
print("ready", flush=True)
while True:
    for call in callers:
        call(1_000_000)
