"""Generators that feed each other, and asyncio tasks that await each other."""

import asyncio
import time

import common


def numbers(count):
    for number in range(count):
        yield number


def squares(source):
    for number in source:
        yield number * number


def flattened(depth, count):
    """A generator inside a generator, `depth` times."""
    if depth == 0:
        yield from squares(numbers(count))
    else:
        yield from flattened(depth - 1, count)


def pipeline():
    return sum(flattened(10, 5000))


async def compute(count):
    total = 0
    for number in range(count):
        total += number * number
    await asyncio.sleep(0)
    return total


async def middle(count):
    return await compute(count)


async def request(deadline):
    while time.monotonic() < deadline:
        await middle(5000)


async def stream(deadline):
    while time.monotonic() < deadline:
        yield pipeline()
        await asyncio.sleep(0)


async def consume(deadline):
    async for _ in stream(deadline):
        pass


async def serve(deadline):
    await asyncio.gather(*(request(deadline) for _ in range(5)), consume(deadline))


if __name__ == "__main__":
    asyncio.run(serve(common.start(__doc__)))
