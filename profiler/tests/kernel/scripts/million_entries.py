"""Makes a million functions of machine code and enters them into its own perf map, as a
JIT compiler would; calls some of them, and at the end functions of Python made late.

Begins when it is told to by a line on standard input. Prints the entries that it calls.
"""

import ctypes
import mmap
import os
import sys
import time

ENTRIES = 1_000_000
ROUND = 10_000
SIZE = 16
# mov eax, edi; again: dec eax; jnz again; ret
CODE = bytes.fromhex("89f8ffc875fcc3").ljust(SIZE, b"\x90")


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def enter(perf_map, base, first):
    perf_map.write("".join(f"{base + n * SIZE:x} {SIZE:x} entry_{n}\n" for n in range(first, first + ROUND)))
    perf_map.flush()


def call(base, number):
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)(base + number * SIZE)(20_000_000)


def main():
    memory = mmap.mmap(-1, ENTRIES * SIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(CODE * ENTRIES)
    base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    print("ready", flush=True)
    sys.stdin.readline()
    with open(f"/tmp/perf-{os.getpid()}.map", "a") as perf_map:
        for first in range(0, ENTRIES, ROUND):
            enter(perf_map, base, first)
            if first % (5 * ROUND) == 0:
                number = first + first // ROUND * 37 % ROUND
                print(f"entry_{number}", flush=True)
                call(base, number)
    for number in range(10):
        exec(f"def late_{number}(): spin(0.1)", globals())
        globals()[f"late_{number}"]()
    os._exit(0)


main()
