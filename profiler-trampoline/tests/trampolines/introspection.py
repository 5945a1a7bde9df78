"""What Python code can see of itself is the same with trampolines: frames, tracebacks, tracing, profiling."""

import inspect
import sys
import traceback

import common


def inner():
    return [frame.function for frame in inspect.stack()], sys._getframe().f_back.f_code.co_name


def outer():
    return inner()


def failing():
    def deepest():
        raise ValueError("deep")

    deepest()


def trace_of():
    try:
        failing()
    except ValueError as err:
        return [entry.name for entry in traceback.extract_tb(err.__traceback__)]


def events(setter):
    seen = []

    def hook(frame, event, argument):
        seen.append((frame.f_code.co_name, event, frame.f_lineno if setter is sys.settrace else 0))
        return hook

    setter(hook)
    outer()
    setter(None)
    return seen


def observe():
    return outer(), trace_of(), events(sys.settrace), events(sys.setprofile), sorted(locals())


observe()
without = observe()
common.activate()
first = observe()
second = observe()
common.deactivate()
after = observe()
assert without == first == second == after, (without, first, second, after)
assert len(common.named("deepest")) == 1
common.done()
