"""What people do with the wheel, run by the Python of an environment that it is installed in."""

import importlib.metadata
import inspect
import os
import pydoc
import subprocess
import sys
import typing

import pyprof_trampoline
from pyprof_trampoline import _native

BIN = os.path.dirname(sys.executable)
VERSION = importlib.metadata.version("pyprof-bpf")


def run(*words):
    """Standard output of a command that succeeds, and the perf map that it wrote."""
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8")
    out, err = process.communicate()
    assert process.returncode == 0, (words, process.returncode, out, err)
    return out, take_map(process.pid)


def take_map(pid):
    path = "/tmp/perf-%d.map" % pid
    if not os.path.exists(path):
        return ""
    with open(path, encoding="utf-8") as file:
        names = file.read()
    os.unlink(path)
    return names


def the_program_starts():
    out, _ = run(os.path.join(BIN, "pyprof-bpf"), "--version")
    assert out.startswith("pyprof-bpf " + VERSION), out
    out, _ = run(os.path.join(BIN, "pyprof-bpf"), "--help")
    assert "--pid" in out, out


def the_module_switches():
    assert os.path.dirname(pyprof_trampoline.__file__).startswith(sys.prefix), pyprof_trampoline.__file__

    def before(): pass
    def during(): pass
    def after(): pass

    before()
    assert not pyprof_trampoline.is_active()
    pyprof_trampoline.activate()
    pyprof_trampoline.activate()
    assert pyprof_trampoline.is_active()
    during()
    pyprof_trampoline.deactivate()
    assert not pyprof_trampoline.is_active()
    after()
    pyprof_trampoline.write_perf_map_entry(0x1000, 16, "made::here")
    pyprof_trampoline.close_perf_map()
    lines = take_map(os.getpid()).splitlines()
    # Qualified names are there from 3.11 on.
    called = [line.split(":")[2] for line in lines if " py::" in line]
    named = [name for name in ("before", "during", "after") if any(call.endswith(name) for call in called)]
    assert named == ["during"], named
    assert "1000 10 made::here" in lines


def programs_run_under_it():
    here = os.getcwd()
    with open("app.py", "w") as file:
        file.write("import sys\ndef main():\n    print(sys.argv)\nmain()\n")
    for words, argv0 in ((["app.py"], "app.py"), (["-m", "app"], os.path.join(here, "app.py"))):
        out, names = run(sys.executable, "-m", "pyprof_trampoline", *words, "a", "-b")
        assert out == "%s\n" % [argv0, "a", "-b"], out
        assert "py::main:%s/app.py\n" % here in names, names


def help_and_types_are_there():
    folder = os.path.dirname(pyprof_trampoline.__file__)
    assert os.path.exists(os.path.join(folder, "py.typed"))
    with open(os.path.join(folder, "_native.pyi")) as file:
        stubs = file.read()
    for name in vars(_native):
        if not name.startswith("__"):
            assert "def %s(" % name in stubs, name
    text = pydoc.render_doc(pyprof_trampoline, renderer=pydoc.plaintext)
    for name in pyprof_trampoline.__all__:
        function = getattr(pyprof_trampoline, name)
        assert inspect.getdoc(function), name
        assert inspect.signature(function).return_annotation, name
        assert inspect.getdoc(function).splitlines()[0] in text, name
        if sys.version_info >= (3, 10):
            typing.get_type_hints(function)


def the_metadata_is_whole():
    metadata = importlib.metadata.metadata("pyprof-bpf")
    assert metadata["Requires-Python"] == ">=3.9"
    assert metadata["License-Expression"] == "MIT OR Apache-2.0"
    files = [str(file) for file in importlib.metadata.files("pyprof-bpf")]
    for name in ("LICENSE-APACHE", "LICENSE-GPL2", "LICENSE-MIT", "THIRD-PARTY.md", "DEPENDENCIES.txt"):
        assert any(file.endswith("licenses/" + name) for file in files), (name, files)
    assert importlib.metadata.requires("pyprof-bpf") is None


the_program_starts()
the_module_switches()
programs_run_under_it()
help_and_types_are_there()
the_metadata_is_whole()
