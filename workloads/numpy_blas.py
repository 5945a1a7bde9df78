"""numpy: matrix products in the BLAS library, its own loops, sorting. Needs numpy."""

import time

import numpy

import common


def multiply(left, right):
    return left @ right


def elementwise(values):
    return numpy.sqrt(values * values + 1.0).sum()


def order(values):
    return numpy.sort(values, axis=None)


def main():
    rnd = numpy.random.default_rng(1)
    left, right = rnd.random((400, 400)), rnd.random((400, 400))
    deadline = common.start(__doc__)
    while time.monotonic() < deadline:
        product = multiply(left, right)
        elementwise(product)
        order(product)


if __name__ == "__main__":
    main()
