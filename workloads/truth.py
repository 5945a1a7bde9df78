"""Functions with known shares of the CPU time.

level1 calls level2, and so on to level10. spin_a hangs under level3 and takes 10 % of
the time, spin_b under level6 takes 20 %, spin_c under level10 takes 70 %. Bursts have
random lengths, so nothing beats with a sampling clock. The CPU time that each spin_*
really used is booked, and written as JSON when the program ends by itself or by
SIGTERM: to --truth FILE, else to standard output. `self` is a function's own share,
with the C functions that it calls; `inclusive` has its callees too. `pieces` is how
often the program began to run: the bursts, and what the scheduler made of them.
"""

import json
import random
import resource
import signal
import sys
import time

import common

PLAN = {"spin_a": (3, 0.1), "spin_b": (6, 0.2), "spin_c": (10, 0.7)}
BOOK = dict.fromkeys(PLAN, 0.0)
now = time.thread_time
ended = False


def spin_a(length):
    end = now() + length
    while now() < end:
        for number in range(300):
            number * number


def spin_b(length):
    end = now() + length
    while now() < end:
        for number in range(300):
            number * number


def spin_c(length):
    end = now() + length
    while now() < end:
        for number in range(300):
            number * number


def level10(depth, length):
    spin_c(length)


def level9(depth, length):
    level10(depth, length)


def level8(depth, length):
    level9(depth, length)


def level7(depth, length):
    level8(depth, length)


def level6(depth, length):
    if depth == 6:
        spin_b(length)
    else:
        level7(depth, length)


def level5(depth, length):
    level6(depth, length)


def level4(depth, length):
    level5(depth, length)


def level3(depth, length):
    if depth == 3:
        spin_a(length)
    else:
        level4(depth, length)


def level2(depth, length):
    level3(depth, length)


def level1(depth, length):
    level2(depth, length)


def stop(signum, frame):
    global ended
    ended = True


def lag(name):
    """By how much a function is behind its share of all that is booked."""
    return PLAN[name][1] * (sum(BOOK.values()) + 1e-3) - BOOK[name]


def switches():
    """How often the scheduler took the CPU away."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def truth(cpu, pieces):
    total = sum(BOOK.values())
    shares = {name: booked / total for name, booked in BOOK.items()}
    inclusive = dict(shares)
    for level in range(1, 11):
        below = (shares[name] for name, (depth, _) in PLAN.items() if depth >= level)
        inclusive[f"level{level}"] = sum(below)
    return {
        "self": shares,
        "inclusive": inclusive,
        "booked": total / cpu,
        "cpu_seconds": cpu,
        "pieces": pieces,
    }


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--truth", help="file for the shares (default: standard output)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, stop)
    common.ready()
    rnd = random.Random(11)
    deadline = time.monotonic() + options.seconds
    start, pieces = now(), -switches()
    while not ended and time.monotonic() < deadline:
        name = max(PLAN, key=lag)
        before = now()
        level1(PLAN[name][0], rnd.uniform(0.002, 0.02))
        BOOK[name] += now() - before
        pieces += 1
    text = json.dumps(truth(now() - start, pieces + switches()))
    if options.truth:
        with open(options.truth, "w") as file:
            file.write(text + "\n")
    else:
        print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
