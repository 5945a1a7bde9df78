"""pyprof-bpf, where the tests mean perf."""

import os
import shlex
import sys
import tempfile
import unittest

import surroundings

CPYTHONS_OWN = "only CPython's trampolines can be made before the code runs; ours are named in every child anyway"


class Profiler:
    CLASSES = ("TestPerfProfiler", "TestPerfProfilerWithDwarf")
    MORE_TESTS = ()
    CANNOT_JUDGE = ()

    def __init__(self, program):
        self.program = program

    def prepare(self):
        # perf needs frame pointers for its part, so the tests keep away from interpreters without them.
        surroundings.change_config(
            PY_CORE_CFLAGS=lambda flags: (flags or "").replace("_Py_JIT", "") + " -fno-omit-frame-pointer"
        )
        folder = tempfile.mkdtemp()
        shim = os.path.join(os.path.dirname(os.path.abspath(__file__)), "perf.py")
        words = " ".join(map(shlex.quote, (sys.executable, "-I", shim, self.program, *self.environment())))
        path = os.path.join(folder, "perf")
        with open(path, "w") as file:
            file.write(f'#!/bin/sh\nexec {words} "$@"\n')
        os.chmod(path, 0o755)
        os.environ["PATH"] = folder + os.pathsep + os.environ["PATH"]

    def environment(self):
        """What switches trampolines on where `-Xperf` does not."""
        return ()

    def adapt(self, module):
        pass


class ProfilerAndTrampolines(Profiler):
    """The same with an interpreter of 3.9 to 3.11, which has trampolines from us."""

    CLASSES = ("TestPerfProfiler",)
    CANNOT_JUDGE = (CPYTHONS_OWN,)

    def __init__(self, program, folder):
        super().__init__(program)
        self.launch = f"{folder}/launch"

    def prepare(self):
        super().prepare()
        surroundings.be_like_3_12()

    def environment(self):
        return (f"PYTHONPATH={self.launch}",)

    def adapt(self, module):
        make_script = module.make_script

        def make(folder, name, source):
            if "compile_perf_trampoline_entry" in source:
                raise unittest.SkipTest(CPYTHONS_OWN)
            return make_script(folder, name, source)

        module.make_script = make
