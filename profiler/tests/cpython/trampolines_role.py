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
# What is not to be the same.
NO_CHOICE = "pyprof_trampoline.activate() takes no name of a back end"
NO_COMPANY = "our trampolines refuse to take the place of another frame evaluation function"
FAMILY = "the map of a forked child has its parent's names too, so that it can be read alone"
NO_JIT = "requires a real JIT (_Py_JIT)"


class Trampolines:
    CLASSES = ("TestPerfTrampoline",)
    MORE_TESTS = ()
    CANNOT_JUDGE = (NO_CHOICE, NO_COMPANY, FAMILY, NO_JIT)

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
        # In 3.15 a child's map must not have the parent's names; before, that was left open.
        tests = module.TestPerfTrampoline
        forks = tests.test_trampoline_works_with_forks
        if "assertNotIn" in forks.__code__.co_names:
            tests.test_trampoline_works_with_forks = unittest.skip(FAMILY)(forks)

    def popen(self, command, *, env=None, **options):
        """As the switch does it for the interpreters that have it, PYTHONPATH does it for the others."""
        switched_on = "-Xperf" in command
        command = [word for word in command if word != "-Xperf"]
        path = self.launch if switched_on else self.package
        return subprocess.Popen(command, env={**(env or os.environ), "PYTHONPATH": path}, **options)

    def with_package(self, function):
        def call(option, source, **environment):
            return function(option, translated(source), PYTHONPATH=self.package, **environment)

        return call


def translated(source):
    for theirs, ours in FUNCTIONS.items():
        source = source.replace(theirs, ours)
    if "_stack_trampoline" in source:
        raise unittest.SkipTest(NO_CHOICE)
    if "set_eval_frame_record" in source:
        raise unittest.SkipTest(NO_COMPANY)
    return "import pyprof_trampoline\n" + source if "pyprof_trampoline" in source else source
