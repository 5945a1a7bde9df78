"""Speaks as perf does, and has pyprof-bpf do the work: as much of it as CPython's tests use.

    perf.py PROGRAM [NAME=VALUE] record [-F HZ] [OPTION...] -o FILE -- COMMAND...
    perf.py PROGRAM [NAME=VALUE] inject -j -i FILE -o FILE
    perf.py PROGRAM [NAME=VALUE] script -i FILE
    perf.py PROGRAM [NAME=VALUE] --help | --version

NAME=VALUE is what switches trampolines on in the environment of a COMMAND that does not know -Xperf.
"""

import argparse
import os
import shutil
import subprocess
import sys

NOTHING_TO_DRAW = 3  # exit code of pyprof-bpf


def record(program, switch, words):
    parser = argparse.ArgumentParser()
    parser.add_argument("-F", default="999")
    parser.add_argument("-o", required=True)
    # Other options say how perf is to find stacks, and how large its buffers are.
    options, _ = parser.parse_known_args(words[: words.index("--")])
    command = words[words.index("--") + 1 :]
    # The dump exists for perf's sake, which cannot walk past trampolines without it. We can, and read the map.
    command = ["-Xperf" if word == "-Xperf_jit" else word for word in command]
    # pyprof-bpf asks the command for trampolines; perf leaves that to the command line, and the tests count on it.
    environment = ["-u", "PYTHONPERFSUPPORT", "-u", "PYTHONPATH"]
    if switch and "-Xperf" in command:
        command.remove("-Xperf")
        environment.append(switch)
    command = ["env", *environment, *command]
    if os.path.exists(options.o):
        os.unlink(options.o)
    # These tests are of trampolines: whether names are there must follow from them alone.
    own = [program, "record", "--python-from", "perf-map", "-F", options.F]
    own += ["--view", "mixed", "--format", "folded", "-o", options.o]
    code = subprocess.run([*own, "--", *command]).returncode
    if code != NOTHING_TO_DRAW:
        return code
    with open(options.o, "w"):
        return 0  # perf has written a file with no samples in it


def inject(words):
    parser = argparse.ArgumentParser()
    parser.add_argument("-j", action="store_true")
    parser.add_argument("-i", required=True)
    parser.add_argument("-o", required=True)
    options = parser.parse_args(words)
    shutil.copyfile(options.i, options.o)
    return 0


def script(words):
    """Stacks as perf prints them: a paragraph each, a frame a line, the innermost first."""
    parser = argparse.ArgumentParser()
    parser.add_argument("-i", required=True)
    with open(parser.parse_args(words).i) as file:
        for line in file:
            frames, _, count = line.rstrip("\n").rpartition(" ")
            print(f"samples: {count}")
            for frame in reversed(frames.split(";")):
                print(f"\t{frame}")
            print()
    return 0


def main():
    program, command, *words = sys.argv[1:]
    switch = None
    if "=" in command:
        switch, command, *words = (command, *words)
    if command == "record":
        return record(program, switch, words)
    if command == "inject":
        return inject(words)
    if command == "script":
        return script(words)
    if command == "--version":
        print("perf version 6.6")  # the oldest whose `inject` the tests believe in
        return 0
    print("usage: perf record | inject | script, by way of perf.data as far as anybody can tell")
    return 0


sys.exit(main())
