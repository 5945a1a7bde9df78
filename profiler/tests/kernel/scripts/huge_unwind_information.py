"""Maps files with hundreds of thousands of functions as code, and works; beside others, whom that must not hold up.

Words: a folder, and how many files.
"""

import mmap
import os
import struct
import sys
import time

# A shared entry (CIE), `CFA = rsp + 8`, and a function's (FDE) of three rows that begins where its own address stands: the
# same bytes, however often they are repeated.
SHARED = struct.pack("<II", 20, 0) + b"\1zR\0\1\x78\x10\1\x1b" + b"\x0c\7\x08\x90\1" + bytes(2)
FUNCTION = struct.pack("<IIii", 24, 28, 0, 8) + b"\0" + b"\x41\x0e\x10\x41\x0e\x18\x41\x0e\x20" + bytes(2)
UNIT = SHARED + FUNCTION
HEADER = 64 + 2 * 56
FUNCTIONS = 600_000


def elf():
    frames = UNIT * FUNCTIONS + bytes(4)
    # .eh_frame_hdr: where .eh_frame is, relative to these four bytes, and no table.
    index = b"\1\x1b\xff\xff" + struct.pack("<i", 4)
    size = HEADER + len(index) + len(frames)
    header = b"\x7fELF\2\1\1" + bytes(9)
    header += struct.pack("<HHIQQQIHHHHHH", 3, 62, 1, 0, 64, 0, 0, 64, 56, 2, 64, 0, 0)
    code = struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, size, size, 4096)
    place = struct.pack("<IIQQQQQQ", 0x6474E550, 4, HEADER, HEADER, HEADER, len(index), len(index), 4)
    return header + code + place + index + frames


def main():
    folder, count = sys.argv[1], int(sys.argv[2])
    content = elf()
    mapped = []
    for number in range(count):
        path = os.path.join(folder, f"huge{number}.so")
        with open(path, "wb") as file:
            file.write(content)
        with open(path, "rb") as file:
            mapped.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ | mmap.PROT_EXEC))
    del content
    print("ready", flush=True)
    while True:
        sum(range(1000))


main()
