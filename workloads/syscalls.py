"""Time that is spent in the kernel: reads, writes, file metadata, pipes, page faults."""

import mmap
import os
import time

import common


def read_zeros(source, sink):
    for _ in range(50):
        os.write(sink, os.read(source, 1 << 20))


def look_around():
    for _ in range(200):
        os.stat("/proc/self/status")
        os.listdir("/proc/self/fd")


def through_a_pipe():
    reader, writer = os.pipe()
    block = b"x" * 4096
    for _ in range(500):
        os.write(writer, block)
        os.read(reader, 4096)
    os.close(reader)
    os.close(writer)


def touch_new_pages():
    for _ in range(20):
        with mmap.mmap(-1, 1 << 20) as memory:
            for page in range(0, 1 << 20, mmap.PAGESIZE):
                memory[page] = 1


def main():
    deadline = common.start(__doc__)
    source, sink = os.open("/dev/zero", os.O_RDONLY), os.open("/dev/null", os.O_WRONLY)
    while time.monotonic() < deadline:
        read_zeros(source, sink)
        look_around()
        through_a_pipe()
        touch_new_pages()


if __name__ == "__main__":
    main()
