"""Has one of CPython's own tests judge something of ours.

The tests are those that are installed with an interpreter. They are read when they are needed, and stay as they are; it
is their surroundings that change, so that they meet our code where they mean CPython's, or perf.

    judge.py list ROLE FILE                    which tests of FILE can judge ROLE, one a line
    judge.py run ROLE FILE TEST [ARGUMENT...]  exit code 0: passed; 77: cannot judge, why is on standard output

    test_perfmaps.py:
    perf-map-python FOLDER                     write_perf_map_entry() of the package pyprof_trampoline
    perf-map-c FOLDER                          pyprof_perf_map_write_entry() of the shared object
    perf-map-rust COMMAND...                   PerfMap of the library, in another process

    test_perf_profiler.py:
    trampolines FOLDER                         trampolines for interpreters that have none
    profiler PROGRAM                           pyprof-bpf, in the place of perf
    profiler-and-trampolines PROGRAM FOLDER    both

PROGRAM is pyprof-bpf, FOLDER has launch/ and package/ (kernel/trampolines.rs), COMMAND is a program that writes entries
(kernel_cpython.rs).

These tests remove every perf map in /tmp that has come while they ran: give them a /tmp of their own.
"""

import ast
import sys
import types
import unittest

import perf_map_role
import profiler_role
import trampolines_role

ROLES = {
    "perf-map-python": perf_map_role.PythonFace,
    "perf-map-c": perf_map_role.CFace,
    "perf-map-rust": perf_map_role.RustFace,
    "trampolines": trampolines_role.Trampolines,
    "profiler": profiler_role.Profiler,
    "profiler-and-trampolines": profiler_role.ProfilerAndTrampolines,
}
CANNOT_JUDGE = 77


def tests_of(path):
    """The tests of a file, found without running any of it."""
    with open(path) as file:
        classes = {node.name: node for node in ast.parse(file.read()).body if isinstance(node, ast.ClassDef)}

    def ancestry(name):
        yield name
        for base in classes[name].bases if name in classes else ():
            yield from ancestry(ast.unparse(base))

    for name in classes:
        family = list(ancestry(name))
        if "unittest.TestCase" not in family:
            continue
        functions = (item for member in family if member in classes for item in classes[member].body)
        for function in functions:
            if isinstance(function, ast.FunctionDef) and function.name.startswith("test_"):
                yield name, function.name


def run(role, path, name):
    """The result of one test, in the surroundings that the role makes."""
    role.prepare()
    module = types.ModuleType("judge_from_cpython")
    module.__file__ = path
    sys.modules[module.__name__] = module
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), module.__dict__)
    role.adapt(module)
    suite = unittest.defaultTestLoader.loadTestsFromName(name, module)
    return unittest.TextTestRunner(verbosity=2).run(suite)


def main():
    command, role_name, path, *rest = sys.argv[1:]
    role = ROLES[role_name]
    if command == "list":
        for class_name, test in tests_of(path):
            if class_name in role.CLASSES:
                print(f"{class_name}.{test}")
        for extra in role.MORE_TESTS:
            print(extra)
        return 0
    name, *arguments = rest
    try:
        result = run(role(*arguments), path, name)
    except ImportError as err:
        # Distributions leave out the package `test`, or parts of it.
        if not (err.name or "").startswith("test"):
            raise
        print(f"this interpreter is installed without {err.name}")
        return CANNOT_JUDGE
    for _, why in result.skipped:
        print(why)
        # Where tests skip themselves they have met something that the role should have taken care of.
        return CANNOT_JUDGE if why in role.CANNOT_JUDGE else 1
    return 0 if result.wasSuccessful() and result.testsRun == 1 else 1


sys.exit(main())
