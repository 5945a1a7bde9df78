"""A fixed amount of work, for measuring what profiling costs.

Prints `ready`. For each line on standard input it does the work once, and prints the
CPU seconds of each chunk as a JSON list. Ends with its input, so that whoever watches
it sees a live process.
"""

import json
import re
import sys
import time

import common

TEXT = " ".join(f"user{n % 97}@host{n % 13}.example:{n}" for n in range(400))
ADDRESS = re.compile(r"(\w+)@(\w+)\.example:(\d+)")


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def swap(match):
    return match[2] + match[1]


def chunk():
    """Some milliseconds: recursion, C that calls back, plain loops."""
    fib(17)
    for _ in range(4):
        ADDRESS.sub(swap, TEXT)
    for _ in range(3):
        json.loads(json.dumps({"rows": list(range(800)), "text": TEXT}))
    total = 0
    for number in range(60_000):
        total += number * number
    return total


def calls():
    """About as long, of nothing but calls."""
    return fib(25)


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--chunks", type=int, default=500)
    parser.add_argument("--calls", action="store_true", help="nothing but calls")
    options = parser.parse_args()
    work = calls if options.calls else chunk
    work()
    common.ready()
    for _ in sys.stdin:
        spent = []
        for _ in range(options.chunks):
            before = time.thread_time()
            work()
            spent.append(time.thread_time() - before)
        print(json.dumps(spent), flush=True)


if __name__ == "__main__":
    main()
