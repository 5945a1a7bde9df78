"""Functions whose names a careless reader trips over: separators, control characters,
markup, a digit at the end, five thousand letters, other scripts."""

import time
import types

import common

NAMES = {
    "semicolon": "semi;colon",
    "newline": "new\nline",
    "tab": "tab\tbed",
    "escape": "esc\x1b[31mred",
    "markup": "<script>alert('&\"')</script>",
    "entity": "&lt;&#0;",
    "number": "ends with a number 12",
    "colons": "py::looks::like:a:/path.py",
    "blank": "   ",
    "hash": "# comment",
    "long": "x" * 5000,
    "accents": "naïve_größe_函数_🐍",
    "bidi": "right\u202eleft",
}


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def renamed(name):
    """A function that spins, called `name`."""

    def template():
        spin(0.02)

    changes = {"co_name": name}
    if hasattr(template.__code__, "co_qualname"):
        changes["co_qualname"] = name
    return types.FunctionType(template.__code__.replace(**changes), globals())


def main():
    functions = [renamed(name) for name in NAMES.values()]
    deadline = common.start(__doc__)
    while time.monotonic() < deadline:
        for function in functions:
            function()


if __name__ == "__main__":
    main()
