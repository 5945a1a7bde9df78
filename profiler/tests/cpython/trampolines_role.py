"""Our trampolines, where the tests of CPython 3.12 and later mean those of the interpreter."""

import os
import subprocess
import types
import unittest

import surroundings

# What the tested programs call, and what they call instead.
FUNCTIONS = {
    'sys.activate_stack_trampoline("perf")': "pyprof_trampoline.activate()",
    "sys.deactivate_stack_trampoline()": "pyprof_trampoline.deactivate()",
    "sys.is_stack_trampoline_active()": "pyprof_trampoline.is_active()",
}
NO_CHOICE = "pyprof_trampoline.activate() takes no name of a back end"


class Trampolines:
    CLASSES = ("TestPerfTrampoline",)
    MORE_TESTS = ()
    CANNOT_JUDGE = (NO_CHOICE,)

    def __init__(self, folder):
        self.launch = f"{folder}/launch"
        self.package = f"{folder}/package"

    def prepare(self):
        surroundings.be_like_3_12()

    def adapt(self, module):
        module.subprocess = types.SimpleNamespace(**{**vars(subprocess), "Popen": self.popen})
        make_script = module.make_script
        module.make_script = lambda folder, name, source: make_script(folder, name, translated(source))
        for name in ("assert_python_ok", "assert_python_failure"):
            setattr(module, name, self.with_package(getattr(module, name)))

    def popen(self, command, **options):
        """As the switch does it for the interpreters that have it, PYTHONPATH does it for the others."""
        switched_on = "-Xperf" in command
        command = [word for word in command if word != "-Xperf"]
        path = self.launch if switched_on else self.package
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": path}, **options)

    def with_package(self, function):
        def call(option, source):
            return function(option, translated(source), PYTHONPATH=self.package)

        return call


def translated(source):
    for theirs, ours in FUNCTIONS.items():
        source = source.replace(theirs, ours)
    if "_stack_trampoline" in source:
        raise unittest.SkipTest(NO_CHOICE)
    return "import pyprof_trampoline\n" + source if "pyprof_trampoline" in source else source
