"""Six lines that keep book of their time.

The work of each line is on that line; its time is taken on the lines around it, which take a hundredth of that. Lengths
are random, so that nothing beats with a sampling clock. It begins when it is given a line to read, and goes on until it
has had so many seconds of a CPU as that line says. Then it prints what each line took as `LINE WALL CPU`, in seconds, and
`pieces COUNT`, how often work began, or began again after the scheduler had taken the CPU away.
"""

import random
import resource
import time

import claims

# What is done on each line in one round: some 12 ms together.
STEPS = (240_000, 180_000, 120_000, 90_000, 60_000, 30_000)
wall, cpu = time.perf_counter, time.thread_time


def switches():
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def L52_timed(steps):
    """One round: the lengths of the six lines in seconds, by both clocks."""
    a, b, c, d, e, f = steps
    i, w0, c0 = 0, wall(), cpu()
    while i < a: i += 1  # work 0
    i, w1, c1 = 0, wall(), cpu()
    while i < b: i = i + 1  # work 1
    i, w2, c2 = 0, wall(), cpu()
    for i in range(c): i * i  # work 2
    i, w3, c3 = 0, wall(), cpu()
    while i < d: i += 1  # work 3
    i, w4, c4 = 0, wall(), cpu()
    sum(range(2 * e)), sum(range(2 * e))  # work 4
    i, w5, c5 = 0, wall(), cpu()
    for i in range(f): i ^ f  # work 5
    w6, c6 = wall(), cpu()
    walls = (w1 - w0, w2 - w1, w3 - w2, w4 - w3, w5 - w4, w6 - w5)
    cpus = (c1 - c0, c2 - c1, c3 - c2, c4 - c3, c5 - c4, c6 - c5)
    return walls, cpus


def L66_main():
    rnd = random.Random(7)
    books = [[0.0] * len(STEPS), [0.0] * len(STEPS)]
    claims.start(__doc__)
    end = cpu() + float(input())
    pieces = -switches()
    while cpu() < end:
        times = L52_timed([int(count * rnd.uniform(0.5, 1.5)) for count in STEPS])
        for book, taken in zip(books, times):
            book[:] = map(sum, zip(book, taken))
        pieces += len(STEPS)
    pieces += switches()
    with open(__file__) as file:
        marked = [number for number, line in enumerate(file, 1) if "  # work " in line]
    for number, *booked in zip(marked, *books):
        print(number, *booked)
    print("pieces", pieces, flush=True)
    input()


if __name__ == "__main__":
    L66_main()
