"""Switched on and off, again and again, while threads run; what is on twice is on once."""

import threading

import common


def work(n):
    return n if n < 2 else work(n - 1) + work(n - 2)


def thread():
    for _ in range(30):
        assert work(12) == 144


assert not common.is_active()
common.deactivate()
for _ in range(12):
    common.activate()
    assert common.is_active()
    assert work(5) == 5
common.deactivate()
assert not common.is_active()
if common.OURS:
    # Whoever was given a trampoline keeps it.
    for _ in range(50):
        common.activate()
        work(5)
        common.deactivate()
    threads = [threading.Thread(target=thread) for _ in range(4)]
    for one in threads:
        one.start()
    for _ in range(500):
        common.activate()
        work(3)
        common.deactivate()
    for one in threads:
        one.join()
    assert len(common.named("work")) == 1
    assert len(common.named("thread")) <= 1
common.done()
