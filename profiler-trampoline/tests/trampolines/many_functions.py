"""Many functions that live for a moment: each has an address of its own, and what they cost is bounded."""

import common

NUMBER = 20_000


def memory():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmRSS:"))


def make(number):
    namespace = {}
    exec(compile("def f%d(): return %d" % (number, number), "<made>", "exec"), namespace)
    return namespace["f%d" % number]()


common.activate()
make(0)
before = memory()
for number in range(1, NUMBER):
    assert make(number) == number
after = memory()
common.deactivate()
entries = [entry for entry in common.check_ranges() if entry.name.endswith(":<made>")]
# The function, and the module that defines it.
assert len(entries) == 2 * NUMBER, len(entries)
assert len({entry.start for entry in entries}) == 2 * NUMBER
# 32 bytes each, and what Python itself does not give back.
assert after - before < 8 * 1024, after - before
common.done()
