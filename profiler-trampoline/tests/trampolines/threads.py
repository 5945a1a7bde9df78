"""Threads: all of them are covered, and each function has one entry, whoever calls it first."""

import sys
import threading

import common

FUNCTIONS = 200
sys.setswitchinterval(1e-6)
namespace = {}
for number in range(FUNCTIONS):
    exec(compile("def shared_%d(): return %d" % (number, number), __file__, "exec"), namespace)


def worker(results):
    results.append(sum(namespace["shared_%d" % number]() for number in range(FUNCTIONS)))


common.activate()
for _ in range(5):
    results = []
    threads = [threading.Thread(target=worker, args=(results,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [sum(range(FUNCTIONS))] * 8, results
common.deactivate()
for number in range(FUNCTIONS):
    found = len(common.named("shared_%d" % number))
    assert found == 1, (number, found)
assert len(common.named("worker")) == 1
common.check_ranges()
common.done()
