"""One of many processes, or many of them: each works for two milliseconds a second.

Without words: this process alone. With a number: so many children, made when a line comes, each with a mapping of a size of its
own, so that no two have the same list of mappings. Ends when its input does.
"""

import mmap
import os
import select
import sys
import time


def hot():
    end = time.perf_counter() + 0.002
    while time.perf_counter() < end:
        pass


def work(is_over):
    while not is_over():
        hot()
        time.sleep(1)


def input_ended():
    readable, _, _ = select.select([0], [], [], 0)
    return bool(readable) and not os.read(0, 1)


def main():
    print("ready", flush=True)
    if len(sys.argv) == 1:
        work(input_ended)
        return
    os.read(0, 1)
    parent = os.getpid()
    for number in range(int(sys.argv[1])):
        if os.fork() == 0:
            protection = mmap.PROT_READ | mmap.PROT_EXEC
            mapped = mmap.mmap(-1, (number + 1) * mmap.PAGESIZE, prot=protection)
            work(lambda: os.getppid() != parent)
            os._exit(len(mapped) * 0)
    print("made", flush=True)
    while not input_ended():
        time.sleep(0.2)


main()
