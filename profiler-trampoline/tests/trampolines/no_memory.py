"""Memory is all used up: functions have no names then, and the program goes on, with MemoryError at worst."""

import os
import resource
import tempfile

import common


def function(number):
    functions = {}
    exec("def f(): return 1", functions)
    # A name with escapes takes more than the name itself.
    code = functions["f"].__code__.replace(co_name="f%d" % number + "\n" * 20000)
    functions["f"].__code__ = code
    return functions["f"]


def use_up():
    kept = None
    for size in (1 << 20, 1 << 12, 64):
        try:
            while True:
                kept = [kept, bytes(size)]
        except MemoryError:
            pass
    return kept


def call(functions):
    called = 0
    for function in functions:
        try:
            called += function()
        except MemoryError:
            pass
    return called


with tempfile.TemporaryFile() as errors:
    kept = os.dup(2)
    functions = [function(number) for number in range(50)]
    common.activate()
    assert call([]) == 0
    with open("/proc/self/statm") as statm:
        size = int(statm.read().split()[0]) * resource.getpagesize()
    limits = resource.getrlimit(resource.RLIMIT_AS)
    os.dup2(errors.fileno(), 2)
    resource.setrlimit(resource.RLIMIT_AS, (size + (16 << 20), limits[1]))
    memory = use_up()
    call(functions)
    resource.setrlimit(resource.RLIMIT_AS, limits)
    os.dup2(kept, 2)
    while memory:
        memory = memory[0]
    errors.seek(0)
    said = errors.read().decode()
    assert said == "" or said.count("\n") == 1 and "no memory" in said, said
common.done()
