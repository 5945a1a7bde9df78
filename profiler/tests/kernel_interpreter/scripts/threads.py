"""Threads of every kind: old ones that hash without the GIL, 300 that wait, new ones that soon end."""

import hashlib
import threading

import claims

WAITING = 300
BLOCK = bytes(1 << 20)
never = threading.Event()


def L19_hash_blocks(digest):
    while True:
        digest.update(BLOCK)


def T_hash():
    L19_hash_blocks(hashlib.sha256())


def T_wait():
    never.wait()


def L34_S26_30_short(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def T_short():
    L34_S26_30_short(5000)


def L57_L60_start_and_join(count):
    threads = [threading.Thread(target=T_short) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def L61_S45_49_alone(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def L65_main():
    # The newest thread comes first in the interpreter's list: these are behind 300 others.
    targets = [T_hash] * 3 + [T_wait] * WAITING
    for target in targets:
        threading.Thread(target=target, daemon=True).start()
    L57_L60_start_and_join(4)
    claims.start(__doc__)
    while True:
        L57_L60_start_and_join(4)
        L61_S45_49_alone(20000)


if __name__ == "__main__":
    L65_main()
