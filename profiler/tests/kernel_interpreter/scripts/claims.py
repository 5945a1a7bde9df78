"""What the programs beside this file have in common: their functions say what their stacks look like.

A function's name is made of claims, in this order, joined by underscores:

    L12           it is called from line 12 of its own file; with several of them, from one of these lines
    S4_9          it takes up lines 4 to 9
    under_201_f   there are 201 frames of a function whose name ends in _f below it, no more and no fewer
    via_c_code    C code of that name stands between it and its caller; or, as the others:
    f             any other word

Whoever drops a frame from such a stack, adds one, or gets a line wrong, contradicts a claim. `python3 claims.py FILE`
writes the numbers: run it when lines have moved. It goes by the name's last part, wherever that stands in the file;
`# calls NAME` is for calls that do not show the name.

Each program takes `--codes FILE`: all functions that are loaded, one a line (name, file, lines), so that frames of the
library can be judged, too. With `--fold COUNT` it samples itself instead of waiting to be sampled, writes so many
samples as folded stacks, and ends.
"""

import argparse
import ast
import dis
import gc
import os
import re
import sys
import threading
import time
import types


def start(doc):
    """Do as the command line says, once all functions of the program exist, and say that it runs."""
    parser = argparse.ArgumentParser(description=doc)
    parser.add_argument("--codes", help="file for the functions that are loaded")
    parser.add_argument("--fold", type=int, help="so many samples of this program itself")
    parser.add_argument("--without-objects", action="store_true", help="(frames.py)")
    options = parser.parse_args()
    if options.codes:
        write_codes(options.codes)
    if options.fold:
        threading.Thread(target=sample_self, args=(options.fold,), daemon=True).start()
    else:
        print("ready", flush=True)


def full_name(code):
    """As the interpreter knows it: since 3.11 with the functions and classes around it."""
    return getattr(code, "co_qualname", code.co_name)


def write_codes(path):
    """All code objects, with the lines that their instructions have."""
    functions = (each for each in gc.get_objects() if isinstance(each, types.FunctionType))
    waiting = [function.__code__ for function in functions]
    for frame in sys._current_frames().values():
        while frame:
            waiting.append(frame.f_code)
            frame = frame.f_back
    codes = set()
    while waiting:
        code = waiting.pop()
        if code not in codes:
            codes.add(code)
            waiting += (each for each in code.co_consts if isinstance(each, types.CodeType))
    with open(path, "w") as file:
        for code in codes:
            lines = {line for _, line in dis.findlinestarts(code) if line is not None}
            lines.add(code.co_firstlineno)
            numbers = ",".join(map(str, sorted(lines)))
            print(full_name(code), code.co_filename, numbers, sep="\t", file=file)


def sample_self(count):
    """Print folded stacks of all other threads, as the profiler would."""
    sys.setswitchinterval(1e-4)
    own = threading.get_ident()
    stacks = {}
    while count > 0:
        time.sleep(0.0005)
        for thread in sys._current_frames():
            frames = frames_of(thread)
            # It may have run while it was looked at.
            if thread == own or frames != frames_of(thread):
                continue
            stack = ";".join(text for _, _, text in reversed(frames))
            stacks[stack] = stacks.get(stack, 0) + 1
            count -= 1
    for stack, times in stacks.items():
        print(stack, times)
    sys.stdout.flush()
    os._exit(0)


def frames_of(thread):
    """Innermost first: the frame, its instruction, its text."""
    frames = []
    frame = sys._current_frames().get(thread)
    while frame:
        code = frame.f_code
        line = frame.f_lineno or code.co_firstlineno
        text = f"{full_name(code)} ({os.path.basename(code.co_filename)}:{line})"
        frames.append((frame, frame.f_lasti, text))
        frame = frame.f_back
    return frames


CLAIMS = r"\b(?:L\d+_)+(?:S\d+_\d+_)?(\w+)\b"


def renumbered(source):
    """The source with the numbers in its functions' names made true."""
    lines = source.split("\n")
    spans, called = {}, {}
    for node in ast.walk(ast.parse(source)):
        match = re.fullmatch(CLAIMS, getattr(node, "name", None) or "")
        if match and isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            spans[match[1]] = (node.lineno, node.end_lineno)
    for number, line in enumerate(lines, 1):
        is_definition = re.match(r" *(async def|def|__\w+__ =|\w+ = property\()", line)
        for stem in [] if is_definition else re.findall(CLAIMS, line):
            called.setdefault(stem, []).append(number)
        for stem in re.findall(r"# calls (\w+)", line):
            called.setdefault(stem, []).append(number)

    def name(match):
        stem = match[1]
        if stem not in spans:  # defined elsewhere, or in a text
            return match[0]
        calls = "".join(f"L{number}_" for number in sorted(set(called[stem])))
        span = "S{}_{}_".format(*spans[stem]) if re.search(r"_S\d", match[0]) else ""
        return calls + span + stem

    return re.sub(CLAIMS, name, source)


if __name__ == "__main__":
    for path in sys.argv[1:]:
        with open(path) as file:
            text = renumbered(file.read())
        with open(path, "w") as file:
            file.write(text)
