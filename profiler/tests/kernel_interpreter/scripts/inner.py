"""A subinterpreter that runs on the main thread, so that this thread has a state in each of two interpreters."""

import claims

INNER = """\
def L7_S1_5_spin():
    total = 0
    for number in range(20000):
        total += number * number
    return total
def L10_calls():
    L7_S1_5_spin()

while True:
    L10_calls()
"""

try:
    import _interpreters as interpreters
except ImportError:  # before 3.13
    import _xxsubinterpreters as interpreters


def L31_run_inner(which):
    interpreters.run_string(which, INNER)


def L35_main():
    which = interpreters.create()
    claims.start(__doc__)
    L31_run_inner(which)


if __name__ == "__main__":
    L35_main()
