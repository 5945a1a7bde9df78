"""Calls of every kind that Python has, on three threads."""

import asyncio
import functools
import re
import sys
import threading

import claims

SPIN = 8000
FEW = 60
WORDS = re.compile(r"\w+")


def L24_S16_20_deep(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def L28_c(count):
    return L24_S16_20_deep(count)


def L32_b(count):
    return L28_c(count)


def L221_a(count):
    return L32_b(count)


def L44_S35_39_under_201_rec(count):
    total = 0
    for number in range(count):
        total += number * number
    return total


def L45_L222_rec(depth, count):
    if depth == 0:
        return L44_S35_39_under_201_rec(count)
    return L45_L222_rec(depth - 1, count)


def L57_S48_52_made_number(number):
    total = number
    for other in range(FEW):
        total += other * number
    return total


def L61_inner(count):
    for number in range(count):
        yield L57_S48_52_made_number(number)


def L65_middle(count):
    yield from L61_inner(count)


def L70_outer(count):
    yield from L65_middle(count)


def L223_generators(count):
    total = 0
    for number in L70_outer(count):
        total += number
    return total


def L83_S75_79_via_list_sort(value):
    total = 0
    for number in range(FEW):
        total += number * value
    return total


def L224_sort(values):
    return sorted(values, key=L83_S75_79_via_list_sort)


def L94_S86_90_via_reduce(left, right):
    total = left
    for number in range(FEW):
        total += number * right
    return total % 1000


def L225_fold(values):
    return functools.reduce(L94_S86_90_via_reduce, values)


def L105_S97_101_via_pattern_subx(match):
    total = 0
    for number in range(FEW):
        total += number * number
    return match[0].upper()


def L226_substitute(text):
    return WORDS.sub(L105_S97_101_via_pattern_subx, text)


def L116_S108_112_as_it_is(value):
    total = 0
    for number in range(FEW):
        total += number * value
    return value


def L228_wrapper(*values, **options):
    return L116_S108_112_as_it_is(*values, **options)


class Made:
    def L156_L158_S120_124_init(self, number):
        total = 0
        for other in range(FEW):
            total += other * number
        self.number = total

    def L159_S126_130_half(self):
        total = 0
        for number in range(FEW):
            total += number * number
        return total / 2

    def L160_S132_136_less(self, other):
        total = 0
        for number in range(FEW):
            total += number * number
        return self.number < other.number + total

    def L161_S138_142_enter(self):
        total = 0
        for number in range(FEW):
            total += number * number
        return total

    def leave(self, kind, value, traceback):
        return False

    __init__ = L156_L158_S120_124_init
    __lt__ = L160_S132_136_less
    __enter__ = L161_S138_142_enter
    __exit__ = leave
    half = property(L159_S126_130_half)


def L230_objects(count):
    total = 0
    last = Made(1)  # calls init
    for number in range(count):
        made = Made(number)  # calls init
        total += made.half  # calls half
        total += made < last  # calls less
        with made as number:  # calls enter
            total += number
        last = made
    return total


def L189_S167_171_item(number):
    total = 0
    for other in range(FEW):
        total += other * number
    return total


def L190_S174_178_entry(number):
    total = 0
    for other in range(FEW):
        total += other * number
    return total


def L191_S181_185_summand(number):
    total = 0
    for other in range(FEW):
        total += other * number
    return total


def L231_comprehensions(numbers):
    items = [L189_S167_171_item(number) for number in numbers]
    entries = {number: L190_S174_178_entry(number) for number in numbers}
    return sum(L191_S181_185_summand(number) for number in numbers) + len(items) + len(entries)


async def L203_S194_199_compute(count):
    total = 0
    for number in range(count):
        total += number * number
    await asyncio.sleep(0)
    return total


async def L207_awaits(count):
    return await L203_S194_199_compute(count)


async def T_request(count):
    return await L207_awaits(count)


async def T_serve():
    await asyncio.gather(*(T_request(SPIN) for _ in range(3)))


# In 3.13, the trampoline of an initializer is not called (CALL_ALLOC_AND_ENTER_INIT, Python/bytecodes.c).
WITH_OBJECTS = "--without-objects" not in sys.argv
VALUES = list(range(40))
TEXT = " ".join(f"word{number}" for number in VALUES)


def L236_L240_L246_round():
    L221_a(SPIN)
    L45_L222_rec(200, SPIN)
    L223_generators(60)
    L224_sort(VALUES)
    L225_fold(VALUES)
    L226_substitute(TEXT)
    for number in VALUES:
        L228_wrapper(value=number)
    if WITH_OBJECTS:
        L230_objects(25)
    L231_comprehensions(VALUES)


def T_thread():
    while True:
        L236_L240_L246_round()


def L251_main():
    L236_L240_L246_round()
    asyncio.run(T_serve())
    for _ in range(2):
        threading.Thread(target=T_thread, daemon=True).start()
    claims.start(__doc__)
    while True:
        L236_L240_L246_round()
        asyncio.run(T_serve())


if __name__ == "__main__":
    sys.exit(L251_main())
