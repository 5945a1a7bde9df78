"""Functions that live for less than a thousandth of a second, each called once.

The number of each is its name, that of its file, and says which lines it takes up: whatever is taken from another one
does not fit.
"""

import claims

SOURCE = """{blank}def L{call}_S{first}_{last}_f{number}():
    total = 0
    for number in range(4000):
        total += number * number
    return total

L{call}_S{first}_{last}_f{number}()
"""


def source(number):
    first = number % 40 + 1
    lines = {"first": first, "last": first + 4, "call": first + 6}
    return SOURCE.format(number=number, blank="\n" * (first - 1), **lines)


def L34_run(number):
    exec(compile(source(number), f"f{number}.py", "exec"), {})


def L38_main():
    claims.start(__doc__)
    number = 0
    while True:
        number += 1
        L34_run(number)


if __name__ == "__main__":
    L38_main()
