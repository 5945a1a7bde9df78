"""Generators and coroutines: resumed, thrown into before they began and after, closed, and collected."""

import asyncio
import gc

import common


class Signal(Exception):
    pass


def counting(n):
    received = []
    try:
        for number in range(n):
            received.append((yield number))
    except Signal as err:
        yield "caught %s" % err
    finally:
        received.append("end")
    return received


def delegating(n):
    return (yield from counting(n))


def thrown_before_it_began():
    yield 1


def thrown_through():
    yield from thrown_before_it_began()


async def leaf(n):
    await asyncio.sleep(0)
    if n == 3:
        raise Signal("three")
    return n


async def ticking(n):
    for number in range(n):
        await asyncio.sleep(0)
        yield number


async def main():
    seen = [number async for number in ticking(4)]
    results = await asyncio.gather(*(leaf(n) for n in range(5)), return_exceptions=True)
    return seen, results


common.activate()
assert list(counting(5)) == [0, 1, 2, 3, 4]
assert list(delegating(5)) == [0, 1, 2, 3, 4]
generator = counting(5)
next(generator)
assert generator.throw(Signal("here")) == "caught here"
generator.close()
# The very first evaluation of this code, with an exception under way.
for make in (thrown_before_it_began, thrown_through):
    common.expect(Signal, lambda: make().throw(Signal("early")), "early")
fresh = thrown_before_it_began()
assert next(fresh) == 1
common.expect(StopIteration, lambda: next(fresh))
abandoned = counting(3)
next(abandoned)
del abandoned
gc.collect()
seen, results = asyncio.run(main())
assert seen == [0, 1, 2, 3]
assert results[:3] == [0, 1, 2] and isinstance(results[3], Signal) and results[4] == 4
common.deactivate()
for name in ("counting", "delegating", "thrown_before_it_began", "leaf", "ticking", "main"):
    assert len(common.named(name)) == 1, name
common.done()
