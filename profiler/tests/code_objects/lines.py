"""Prints the line table of each code object of the standard library, and which line the interpreter finds in it.

Argument: of how many files at most, spread over all of them; 0: of every file.
One line of output for each code object: first line, table in hexadecimal, bytes of code, then the runs of bytes that are
of one line: where they begin, and the line or `-`."""

import dis
import os
import sys
import types


def sources():
    top = os.path.dirname(os.__file__)
    for folder, folders, files in os.walk(top):
        folders[:] = [name for name in folders if name not in ("site-packages", "dist-packages", "__pycache__")]
        yield from (os.path.join(folder, name) for name in files if name.endswith(".py"))


def nested(code):
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from nested(constant)


def runs(code):
    if hasattr(code, "co_lines"):
        for begin, _, line in code.co_lines():
            yield begin, line
    else:
        yield from dis.findlinestarts(code)


def table(code):
    return code.co_linetable if hasattr(code, "co_lines") else code.co_lnotab


def show(code):
    words = [str(code.co_firstlineno), table(code).hex() or "-", str(len(code.co_code))]
    words += ["%d:%s" % (begin, "-" if line is None else line) for begin, line in runs(code)]
    print(*words)


files = sorted(sources())
most = int(sys.argv[1]) or len(files)
for path in files[:: max(1, len(files) // most)]:
    with open(path, "rb") as file:
        source = file.read()
    try:
        module = compile(source, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        continue  # the library has such files for its own tests
    for code in nested(module):
        show(code)
