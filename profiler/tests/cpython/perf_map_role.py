"""Our perf-map writers, in the place of those functions of `_testinternalcapi` that call CPython's."""

import ctypes
import os
import subprocess
import sys
import types
import unittest

import surroundings


class Face:
    """What all three have in common."""

    CLASSES = ("TestPerfMapWriting",)
    MORE_TESTS = ("TestLargeCode.test_sizes_of_more_than_32_bits",)
    CANNOT_JUDGE = ()

    pid = os.getpid()

    def prepare(self):
        capi = types.ModuleType("_testinternalcapi")
        capi.write_perf_map_entry = self.write
        capi.perf_map_state_teardown = self.tear_down
        sys.modules["_testinternalcapi"] = capi
        surroundings.have_trampolines()

    def adapt(self, module):
        module.TestLargeCode = TestLargeCode
        TestLargeCode.face = self

    def tear_down(self):
        self.finish()
        if self.map_path() in self.open_files():
            raise AssertionError(f"{self.map_path()} is still open")

    def map_path(self):
        return f"/tmp/perf-{self.pid}.map"

    def open_files(self):
        folder = f"/proc/{self.pid}/fd"
        for number in os.listdir(folder):
            try:
                yield os.readlink(f"{folder}/{number}")
            except FileNotFoundError:
                pass  # the descriptor that listdir() itself had


class TestLargeCode(unittest.TestCase):
    """CPython's own test has this from 3.15 on, where sizes became `size_t`."""

    def test_sizes_of_more_than_32_bits(self):
        self.assertEqual(self.face.write(0x3456, 1 << 33, "entry3"), 0)
        with open(self.face.map_path()) as file:
            self.assertEqual(file.read(), "3456 200000000 entry3\n")
        self.face.tear_down()


class PythonFace(Face):
    """`pyprof_trampoline`."""

    def __init__(self, folder):
        sys.path.insert(0, f"{folder}/package")
        import pyprof_trampoline

        self.package = pyprof_trampoline

    def write(self, address, size, name):
        self.package.write_perf_map_entry(address, size, name)
        return 0  # else it raises

    def finish(self):
        self.package.close_perf_map()


class CFace(Face):
    """The C functions of the shared object."""

    def __init__(self, folder):
        self.library = ctypes.CDLL(f"{folder}/package/pyprof_trampoline/_native.so")
        self.library.pyprof_perf_map_write_entry.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p)
        self.library.pyprof_perf_map_fini.restype = None

    def write(self, address, size, name):
        return self.library.pyprof_perf_map_write_entry(address, size, name.encode())

    def finish(self):
        self.library.pyprof_perf_map_fini()


class RustFace(Face):
    """A program that has the library linked in: its map is its own, so the test must look for that one."""

    def __init__(self, *command):
        self.writer = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
        self.pid = self.writer.pid

    def adapt(self, module):
        super().adapt(module)
        module.os = types.SimpleNamespace(getpid=lambda: self.pid)

    def write(self, address, size, name):
        return self.ask(f"write {address:x} {size:x} {name}")

    def finish(self):
        self.ask("finish")

    def ask(self, line):
        print(line, file=self.writer.stdin)
        return int(self.writer.stdout.readline())
