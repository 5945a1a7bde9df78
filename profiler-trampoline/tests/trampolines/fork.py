"""Forked children: a map of their own that names all of their code, and trampolines of their own."""

import multiprocessing
import os
import subprocess
import sys
import threading

import common


def before():
    return 1


def in_child():
    return 2


def in_grandchild():
    return 3


def in_parent():
    return 4


def in_both():
    return 5


def pool_worker(number):
    return os.getpid(), number * 2


def child_of(work):
    """Runs `work` in a forked child; gives its pid. The child must end well."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
            status = 1
        sys.stderr.flush()
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0
    return pid


def check_child():
    assert common.is_active()
    in_child()
    in_both()
    assert len(common.named("before")) == 1
    assert len(common.named("in_child")) == 1
    assert not common.named("in_parent")
    common.check_ranges()
    pid = child_of(check_grandchild)
    os.unlink("/tmp/perf-%d.map" % pid)


def check_grandchild():
    in_grandchild()
    for name in ("before", "in_child", "in_grandchild"):
        assert len(common.named(name)) == 1, name
    common.check_ranges()


def nothing():
    pass


def main():
    before()
    child = child_of(check_child)
    in_parent()
    in_both()
    children = {entry.start: entry.name for entry in common.entries(child)}
    parents = {entry.start: entry.name for entry in common.entries()}
    # An address has one name in the whole family.
    for start in set(children) & set(parents):
        assert children[start] == parents[start]
    assert not common.named("in_child") and not common.named("in_parent", child)
    assert common.named("in_both")[0].start != common.named("in_both", child)[0].start
    os.unlink("/tmp/perf-%d.map" % child)

    # Whoever only forks to run another program leaves no map behind.
    pid = subprocess.Popen(["true"], preexec_fn=None)
    assert pid.wait() == 0
    assert not os.path.exists("/tmp/perf-%d.map" % pid.pid)

    # From a thread, while others run.
    stop = threading.Event()

    def busy():
        while not stop.is_set():
            before()

    threads = [threading.Thread(target=busy) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(20):
        pid = child_of(in_child)
        assert len(common.named("in_child", pid)) == 1
        os.unlink("/tmp/perf-%d.map" % pid)
    stop.set()
    for thread in threads:
        thread.join()

    # From one with the smallest stack that Python gives.
    children = []
    size = threading.stack_size(32 * 1024)
    thread = threading.Thread(target=lambda: children.append(child_of(nothing)))
    thread.start()
    threading.stack_size(size)
    thread.join()
    assert len(common.named("nothing", children[0])) == 1
    os.unlink("/tmp/perf-%d.map" % children[0])

    with multiprocessing.get_context("fork").Pool(2) as pool:
        answers = pool.map(pool_worker, range(20), chunksize=1)
        pool.close()
        pool.join()
    assert [number for _, number in answers] == list(range(0, 40, 2))
    for pid in {pid for pid, _ in answers}:
        assert len(common.named("pool_worker", pid)) == 1
        os.unlink("/tmp/perf-%d.map" % pid)

    common.deactivate()
    assert not common.is_active()
    pid = child_of(nothing)
    assert not os.path.exists("/tmp/perf-%d.map" % pid)


common.activate()
main()
common.done()
