"""Little but C code that calls Python functions, from callers at different Python depths and C depths in turn."""

import functools

import claims

PAIR = (1, 2)


def L15_S10_11_near_key(number):
    return number


def L77_near():
    return max(PAIR, key=L15_S10_11_near_key)


def L23_S18_19_far_key(number):
    return number


def L27_far():
    return max(PAIR, key=L23_S18_19_far_key)


def L78_between():
    return L27_far()


def L35_S30_31_sort_key(number):
    return -number


def L79_sort():
    return sorted(PAIR, key=L35_S30_31_sort_key)


def L44_S38_40_numbers():
    for number in PAIR:
        yield number


def L80_total():
    return sum(L44_S38_40_numbers())


def L52_S47_48_inner_key(number):
    return number


def L56_step(left, right):
    return left + min(PAIR, key=L52_S47_48_inner_key)


def L81_nested():
    return functools.reduce(L56_step, PAIR)


class Number:
    def __init__(self, number):
        self.number = number

    def __lt__(self, other):
        return self.number < other.number


NUMBERS = [Number(2), Number(1)]


def L82_compare():
    return min(NUMBERS)


def L86_main():
    claims.start(__doc__)
    while True:
        L77_near()
        L78_between()
        L79_sort()
        L80_total()
        L81_nested()
        L82_compare()


if __name__ == "__main__":
    L86_main()
