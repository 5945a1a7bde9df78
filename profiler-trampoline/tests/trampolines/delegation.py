"""CPython's own trampolines, where it has them, by the same calls."""

import sys

import common


def work():
    return 1


assert not common.is_active()
for _ in range(10):
    common.activate()
    assert common.is_active() and sys.is_stack_trampoline_active()
work()
common.deactivate()
assert not common.is_active() and not sys.is_stack_trampoline_active()
common.deactivate()
sys.activate_stack_trampoline("perf")
assert common.is_active()
common.activate()
sys.deactivate_stack_trampoline()
assert len(common.named("work")) == 1
common.done()
