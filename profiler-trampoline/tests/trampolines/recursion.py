"""Recursion ends in RecursionError, as without trampolines, and goes as deep as the limit says."""

import sys
import threading

import common


def down(n):
    return 0 if n == 0 else 1 + down(n - 1)


def endless():
    endless()


def check():
    common.expect(RecursionError, endless)
    # CPython 3.12 counts C calls, too, and stops earlier with trampolines of its own.
    if common.OURS:
        assert down(sys.getrecursionlimit() - 50) == sys.getrecursionlimit() - 50


def deep():
    results.append(down(40_000))


results = []
common.activate()
check()
if common.OURS:
    sys.setrecursionlimit(50_000)
    threading.stack_size(256 * 1024 * 1024)
    thread = threading.Thread(target=deep)
    thread.start()
    thread.join()
    assert results == [40_000]
common.deactivate()
assert len(common.named("down")) == (1 if common.OURS else len(common.named("down")))
common.done()
