"""A process that forks, whose children fork: each has functions from before its fork and calls others after it."""

import os

import claims


def L50_S8_12_of_the_parent(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def L39_S15_19_of_a_child(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def L30_S22_26_of_a_grandchild(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def L37_grandchild():
    L30_S22_26_of_a_grandchild(500_000)
    os._exit(0)


def L48_child():
    pid = os.fork()
    if pid == 0:
        L37_grandchild()
    os.waitpid(pid, 0)
    L39_S15_19_of_a_child(500_000)
    os._exit(0)


def L54_main():
    claims.start(__doc__)
    while True:
        pid = os.fork()
        if pid == 0:
            L48_child()
        os.waitpid(pid, 0)
        L50_S8_12_of_the_parent(500_000)


if __name__ == "__main__":
    L54_main()
