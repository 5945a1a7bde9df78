"""Says where its code objects are and what they say, then frees half of those that it made, and says so.

Output, words between tabs: the version, whether it is free-threaded, the address of the type; then for each code object
its address, whether it will be freed, name, file (both in hexadecimal UTF-8), first line, and the line of each code unit
(`-`: none); then `ready`. After a line of input it frees, and prints `freed`."""

import dis
import gc
import os
import sys
import sysconfig
import types

ODD = {
    "latin": ("café", "/srv/größe.py"),
    "wide": ("функция.<locals>.名", "/srv/\udcff\udcfe/file.py"),
    "wider": ("𝒇.__init__", "/srv/🦀.py"),
    "long": ("long_" * 100, "/srv/" + "folder/" * 500),
    "longer": ("𝒏" * 9000, "/f" * 3000),
    "empty": ("", ""),
    "lines": ("a\nb", "c\td"),
}


def renamed(code, name, file):
    names = {"co_name": name, "co_filename": file}
    if hasattr(code, "co_qualname"):
        names["co_qualname"] = name
    return code.replace(**names)


def made(number):
    text = "def f%d():\n    return [\n        %d,\n        f%d,\n    ]\n" % ((number,) * 3)
    names = {}
    exec(compile(text, "made%d.py" % number, "exec"), names)
    return names["f%d" % number].__code__


def lines(code):
    units = [None] * (len(code.co_code) // 2)
    if hasattr(code, "co_lines"):
        for begin, end, line in code.co_lines():
            units[begin // 2 : end // 2] = [line] * ((end - begin) // 2)
    else:
        for begin, line in dis.findlinestarts(code):
            units[begin // 2 :] = [line] * (len(units) - begin // 2)
    return ",".join("-" if line is None else str(line) for line in units)


def text(text):
    whole = "".join("\ufffd" if "\ud800" <= c <= "\udfff" else c for c in text)
    return whole.encode().hex()


def show(code, goes):
    name = code.co_qualname if hasattr(code, "co_qualname") else code.co_name
    print(hex(id(code)), int(goes), text(name), text(code.co_filename), code.co_firstlineno, lines(code), sep="\t")


free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
print(sys.version_info[1], int(free_threaded), hex(id(types.CodeType)), sep="\t")
known = [f.__code__ for f in gc.get_objects() if isinstance(f, types.FunctionType)]
odd = [renamed(made.__code__, *names) for names in ODD.values()]
stay = [made(number) for number in range(500)]
go = [made(number) for number in range(500, 1000)]
for code in known + odd + stay:
    show(code, False)
for code in go:
    show(code, True)
code = None
print("ready", flush=True)
sys.stdin.readline()
go = None
gc.collect()
others = [made(number) for number in range(5000, 5300)]
print("freed", flush=True)
sys.stdin.readline()
