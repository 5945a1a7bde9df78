"""A process whose owner attacks its profiler: hostile.py WAY.

Each way says `ready`, and goes on until it is killed, keeping a CPU busy in between so that there are samples of it.
"""

import ctypes
import mmap
import os
import random
import resource
import struct
import sys
import threading
import time
import types

LIBC = ctypes.CDLL(None, use_errno=True)
MAP = f"/tmp/perf-{os.getpid()}.map"
RWX = mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC
# Returns after some thousand rounds: mov $9999, %ecx; dec %ecx; jnz; ret
ROUNDS = b"\xb9\x0f\x27\x00\x00\xff\xc9\x75\xfc\xc3"
# What a terminal, a reader of stacks or a browser might obey.
ODD = "\x1b]0;owned\x07\x1b[31m;\n</title><script>alert(1)</script>\u202e\u2066\u061c"


def ready():
    print("ready", flush=True)


def work():
    return sum(range(2000))


def in_thread(attack):
    """Runs an attack beside a thread that gives samples."""
    ready()

    def forever():
        while True:
            attack()

    threading.Thread(target=forever, daemon=True).start()
    while True:
        work()


def growing_map():
    """Hundreds of megabytes of entries, one after the other."""
    line = b"".join(b"%x 10 py::name%d:/x.py\n" % (0x1000 + n * 16, n) for n in range(40_000))
    file = open(MAP, "ab")
    in_thread(lambda: file.write(line))


def backwards_map():
    """Entries in the order that costs most, until there is no room for more."""
    number = [1 << 40]

    def more():
        number[0] -= 1 << 20
        start = number[0]
        file.write(b"".join(b"%x 1 %x\n" % (start - (n * 7919 % 40_000) * 16, n) for n in range(40_000)))

    file = open(MAP, "ab")
    in_thread(more)


def endless_line():
    file = open(MAP, "ab")
    file.write(b"1000 10 ")
    in_thread(lambda: file.write(b"x" * (1 << 20)))


def write_secret(path):
    """A map as good as the real one, where nobody should look for it."""
    work()
    with open(MAP) as file:
        entries = [line.split(" ", 2) for line in file]
    with open(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
        file.writelines(f"{start} {size} py::SECRET:/secret\n" for start, size, _ in entries)


def secret_in_place():
    """No attack: shows that the secret would be seen if it were read."""
    write_secret("/tmp/secret")
    os.rename("/tmp/secret", MAP)
    ready()
    while True:
        work()


def swapped_map():
    """What has the map's name is another thing every moment: the file, a link to a secret, a FIFO, a folder, nothing."""
    real, other, secret = MAP + ".real", MAP + ".other", "/tmp/secret"
    write_secret(secret)
    os.rename(MAP, real)

    def swap():
        for make in (
            lambda: os.link(real, other),
            lambda: os.symlink(secret, other),
            lambda: os.mkfifo(other),
            lambda: os.link(real, other),
        ):
            make()
            os.rename(other, MAP)
        os.unlink(MAP)
        os.mkdir(MAP)
        os.rmdir(MAP)

    in_thread(swap)


def moving_root():
    """Changes its root directory all the time; in one of the two, /tmp leads out of it."""
    folder = "/tmp/roots"
    os.makedirs("/tmp/secret")
    write_secret(MAP.replace("/tmp", "/tmp/secret"))
    os.makedirs(f"{folder}/a/tmp", exist_ok=True)
    os.makedirs(f"{folder}/b", exist_ok=True)
    os.symlink("../../secret", f"{folder}/b/tmp")
    outside = os.open("/", os.O_RDONLY)

    def move():
        for root in ("a", "b"):
            os.fchdir(outside)
            os.chroot(".")
            os.chroot(f"{folder}/{root}")
            time.sleep(0.0005)

    in_thread(move)


def odd_names(*_):
    """Odd names wherever a process has some: its arguments are odd as well."""
    LIBC.prctl(15, "\x1b[31m;\n<b>\u202e".encode(), 0, 0, 0)
    name = f"{os.getcwd()}/{ODD.replace('/', '|')}.so"
    with open(name, "wb") as file:
        file.write(elf(code=ROUNDS))
    library = Code(name)
    with open(MAP, "ab") as file:
        memory = Code(None)
        file.write(b"%x 40 py::%s:/%s.py\n" % (memory.address, ODD.replace("\n", "").encode(), ODD.encode()))
    ready()
    while True:
        library()
        memory()


def elf(code=b"", sections=(), programs=None, names=0, count=None, machine=62):
    """An ELF file: code at 4096; each section is (name's offset, kind, offset, size, link, address)."""
    at = 8192
    header = b"\x7fELF\x02\x01\x01" + bytes(9)
    if programs is None:
        programs = [(1, 5, 0, 0, 0, 1 << 20, 1 << 20, 4096)]
    table = b"".join(
        struct.pack("<IIQQQQQQ", kind, flags, offset, address, address, size, memory, align)
        for kind, flags, offset, address, _, size, memory, align in programs
    )
    header += struct.pack("<HHIQQQIHHHHHH", 3, machine, 1, 0, 64, at, 0, 64, 56, len(programs), 64, count or len(sections), names)
    body = (header + table).ljust(4096, b"\0") + code.ljust(4096, b"\0")
    for name, kind, offset, size, link, address in sections:
        body += struct.pack("<IIQQQQIIQQ", name, kind, 0, address, offset, size, link, 0, 1, 24)
    return body


class Code:
    """Code that runs for a moment when it is called: at 4096 in a file, or in memory of no file."""

    def __init__(self, path):
        if path is None:
            self.memory = mmap.mmap(-1, 4096, prot=RWX)
            self.memory.write(ROUNDS)
            offset = 0
        else:
            file = os.open(path, os.O_RDONLY)
            self.memory = mmap.mmap(file, 4096, mmap.MAP_PRIVATE, RWX, offset=4096)
            os.close(file)
            offset = 0
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory)) + offset
        self.call = ctypes.CFUNCTYPE(None)(self.address)

    def __call__(self):
        for _ in range(100):
            self.call()


def entry(length, pointer, rest):
    return struct.pack("<II", length, pointer) + rest


def hostile_frames():
    """Call frame information that overlaps, names itself, or names what is none."""
    shared = entry(20, 0, b"\x01zR\0\x01\x78\x10\x01\x1b\x0c\x07\x08\x90\x01" + bytes(2))
    frames = shared
    for n in range(3000):
        # All begin at the same few addresses, and reach to the end; every third names itself as its shared entry.
        pointer = 4 if n % 3 == 0 else len(frames) + 4
        begin = 4096 + n % 5 - (8192 * 8 + len(frames) + 8)
        frames += entry(20, pointer, struct.pack("<iI", begin, 1 << 30) + b"\0\x41\x0e\x10\x41\x0e\x08\xff")
    return frames


def hostile_files():
    """Files with code in them whose headers lie. The code runs, so that names and rows are asked for."""
    files = {
        "python3.12": dict(sections=[(0, 11, 1 << 20, 1 << 26, 1, 0), (0, 3, 1 << 20, 1 << 26, 0, 0)]),
        "many_sections": dict(sections=[(n % 9, 3, 0, 1 << 20, 0, 0) for n in range(4096)]),
        "endless_name": dict(sections=[(0, 3, 1 << 20, 1 << 28, 0, 0)] * 4096),
        "absurd_counts": dict(sections=[(0, 2, 0, 2**63, 70_000, 2**63)] * 3, count=65_535),
        "absurd_programs": dict(programs=[(1, 5, 2**63 + n, 2**64 - 4096, 0, 2**63, 2**63, n) for n in range(60)]),
        "huge_symbols": dict(sections=[(0, 3, 0, 64, 0, 0)] + [(0, 2, 1 << 20, 1 << 27, 2, 0), (0, 3, 1 << 20, 1 << 27, 0, 0)]),
        "another_machine": dict(machine=183),
    }
    codes = []
    for name, parts in files.items():
        with open(name, "wb") as file:
            file.write(elf(code=ROUNDS, **parts))
            file.truncate(1 << 29)
        codes.append(Code(name))
    frames = hostile_frames()
    names = b"\0.eh_frame\0.shstrtab\0"
    with open("frames", "wb") as file:
        file.write(
            elf(
                code=ROUNDS,
                sections=[(1, 1, 1 << 18, len(frames), 0, 8192 * 8), (11, 3, 1 << 17, len(names), 0, 0)],
                names=1,
            )
        )
        file.seek(1 << 17)
        file.write(names)
        file.seek(1 << 18)
        file.write(frames)
        file.truncate(1 << 20)
    codes.append(Code("frames"))
    # As much call frame information as is read, nearly all of it holes.
    names = b"\0.eh_frame\0.debug_frame\0"
    with open("most_frames", "wb") as file:
        sections = [(1, 1, 1 << 20, 1 << 26, 0, 8192), (11, 1, 1 << 20, 1 << 26, 0, 0), (0, 3, 1 << 17, len(names), 0, 0)]
        file.write(elf(code=ROUNDS, sections=sections, names=2))
        file.seek(1 << 17)
        file.write(names)
        file.truncate(1 << 30)
    codes.append(Code("most_frames"))
    ready()
    while True:
        for code in codes:
            code()


def many_mappings():
    """As many mappings as a process may have, half of them code, and different ones every moment."""
    path = "code"
    with open(path, "wb") as file:
        file.write(elf(code=ROUNDS))
    file = os.open(path, os.O_RDONLY)
    pages = 60_000
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    begin = LIBC.mmap(None, pages * 4096, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    fixed = 0x10
    for page in range(0, pages, 2):
        LIBC.mmap(begin + page * 4096, 4096, 5, mmap.MAP_PRIVATE | fixed, file, 0)
    place = [0]

    def change():
        place[0] = (place[0] + 2) % pages
        at = begin + place[0] * 4096
        LIBC.mmap(at, 4096, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | fixed, -1, 0)
        LIBC.mmap(at, 4096, 5, mmap.MAP_PRIVATE | fixed, file, 0)

    in_thread(change)


def many_files():
    """Thousands of files with code, none of which is there any more."""
    kept = []
    for number in range(9000):
        with open("gone.so", "wb+") as file:
            file.write(elf(code=ROUNDS))
            file.flush()
            kept.append(mmap.mmap(file.fileno(), 8192, mmap.MAP_PRIVATE, RWX))
        os.unlink("gone.so")
    number = [0]

    def change():
        number[0] += 1
        mmap.mmap(-1, 4096 * (1 + number[0] % 7), prot=RWX).close()
        time.sleep(0.001)

    in_thread(change)


def huge_text():
    """A file of many terabytes, all of it code."""
    with open("sparse", "wb") as file:
        file.write(elf(code=ROUNDS))
        file.truncate(1 << 43)
    file = os.open("sparse", os.O_RDONLY)
    LIBC.mmap.restype = ctypes.c_void_p
    LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    assert LIBC.mmap(None, 1 << 43, 5, mmap.MAP_PRIVATE, file, 0) > 0
    ready()
    while True:
        work()


def fork_bomb():
    """As many children as it may have, without end."""
    resource.setrlimit(resource.RLIMIT_NPROC, (48, 48))
    os.setgroups([])
    os.setresgid(54_321, 54_321, 54_321)
    os.setresuid(54_321, 54_321, 54_321)
    ready()

    def children(depth):
        while True:
            try:
                child = os.fork()
            except BlockingIOError:
                work()
                child = None
            if child == 0:
                if depth < 3:
                    end = time.monotonic() + 0.05
                    while time.monotonic() < end:
                        try:
                            if os.fork() == 0:
                                work()
                                os._exit(0)
                        except BlockingIOError:
                            break
                os._exit(0)
            while child is not None:
                try:
                    if os.waitpid(-1, os.WNOHANG)[0] == 0:
                        break
                except ChildProcessError:
                    break

    children(0)


def exec_storm(role=None):
    """Two programs that take turns in one process, and have other names for the code at one address."""
    other = "second" if role == "first" else "first"
    if role is None:
        ready()
    else:
        place = 0x7000_0000
        # MAP_PRIVATE, MAP_ANONYMOUS, MAP_FIXED
        LIBC.mmap(place, mmap.PAGESIZE, RWX, 0x32, -1, 0)
        ctypes.memmove(place, ROUNDS, len(ROUNDS))
        with open(MAP, "a") as names:
            names.write(f"{place:x} {len(ROUNDS):x} {role}\n")
        globals()["as_" + role](ctypes.CFUNCTYPE(None)(place))
    command = [sys.executable, "-X", "perf", "-S", "-E", __file__, "exec_storm", other]
    os.execv(command[0], command)


def as_first(code):
    for _ in range(2000):
        code()


def as_second(code):
    for _ in range(2000):
        code()


def undumpable():
    """Another user's process that does not want to be looked at."""
    os.setgroups([])
    os.setresgid(54_321, 54_321, 54_321)
    os.setresuid(54_321, 54_321, 54_321)
    LIBC.prctl(4, 0, 0, 0, 0)
    ready()
    while True:
        work()


def recursion(changes):
    """Random functions call each other, nine hundred deep; each has a code object with other fields, as `changes` gives."""
    sys.setrecursionlimit(5000)

    def made(fields):
        def function(functions, depth, end):
            if depth:
                return random.choice(functions)(functions, depth - 1, end)
            while time.perf_counter() < end:
                pass

        code = function.__code__
        if not hasattr(code, "co_qualname"):
            fields.pop("co_qualname", None)
        return types.FunctionType(code.replace(**fields), globals())

    functions = [made(fields) for fields in changes]
    ready()
    while True:
        functions[0](functions, 900, time.perf_counter() + 0.01)


def long_names():
    """Thousands of functions with names of 8,192 characters of four bytes."""
    names = ("%06d" % n + "\U00020000" * 8186 for n in range(8000))
    recursion(dict(co_name=name, co_qualname=name) for name in names)


def long_files():
    """The same in files whose names are as long as names of files can be."""
    recursion(dict(co_filename=f"/{n}" + "\U00020000" * 4000, co_firstlineno=n + 1) for n in range(8000))


def long_tables():
    """Functions with line tables of a mebibyte, in which each unit is of another line than the one before."""
    table = b"\x78\x02" * (1 << 19)
    recursion(dict(co_linetable=table + bytes(2 * n), co_firstlineno=n + 1) for n in range(300))


def endless_code():
    """New code objects all the time: hundreds of thousands."""
    def function():
        return 1

    code, number = function.__code__, 0
    ready()
    while True:
        functions = []
        for _ in range(2000):
            number += 1
            new = code.replace(co_name=f"function_{number}", co_firstlineno=number % 1_000_000 + 1)
            functions.append(types.FunctionType(new, globals()))
        for _ in range(3):
            for each in functions:
                each()


def forked():
    """A child, which ends with its parent."""
    if os.fork():
        return False
    # PR_SET_PDEATHSIG
    LIBC.prctl(1, 9, 0, 0, 0)
    return True


def maps_of_many():
    """Children with a perf map each, that grows without end and has the longest names; they are to be recorded, too."""
    name = b"x" * 30_000
    for _ in range(20):
        if not forked():
            continue
        code = Code(None)
        with open(f"/tmp/perf-{os.getpid()}.map", "wb") as file:
            while True:
                for n in range(60):
                    file.write(b"%x 10 py::%d%s:/x.py\n" % (code.address + 16 * n, n, name))
                file.flush()
                if file.tell() > 40 << 20:
                    file.truncate(0)
                    file.seek(0)
                code()
    ready()
    while True:
        work()


def mappings_of_many():
    """Children with tens of thousands of mappings each, which they change all the time."""
    for _ in range(6):
        if not forked():
            continue
        LIBC.mmap.restype = ctypes.c_void_p
        for n in range(20_000):
            LIBC.mmap(None, 4096, 5 if n % 2 else 7, 0x22, -1, 0)
        while True:
            LIBC.mmap(None, 4096, 5, 0x22, -1, 0)
            work()
    time.sleep(2)
    ready()
    while True:
        work()


globals()[sys.argv[1]](*sys.argv[2:])
