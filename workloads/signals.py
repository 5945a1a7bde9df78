"""Signal handlers in Python and in C, the C ones on a stack of their own.

SIGALRM comes every 40 microseconds and is handled by the C library's srandom(), which
takes one int, computes for about a microsecond and is used by nothing else here. SIGPROF
comes to a handler in Python 10 ms of CPU time after it has run.
"""

import ctypes
import signal
import time

import common

SA_ONSTACK = 0x08000000
SA_RESTART = 0x10000000
STACK_BYTES = 64 * 1024

libc = ctypes.CDLL(None, use_errno=True)


class SignalStack(ctypes.Structure):
    """stack_t"""

    _fields_ = [
        ("ss_sp", ctypes.c_void_p),
        ("ss_flags", ctypes.c_int),
        ("ss_size", ctypes.c_size_t),
    ]


class SignalAction(ctypes.Structure):
    """struct sigaction, as glibc has it on 64-bit machines"""

    _fields_ = [
        ("sa_handler", ctypes.c_void_p),
        ("sa_mask", ctypes.c_ulong * 16),
        ("sa_flags", ctypes.c_int),
        ("sa_restorer", ctypes.c_void_p),
    ]


memory = ctypes.create_string_buffer(STACK_BYTES)


def checked(result):
    if result != 0:
        raise OSError(ctypes.get_errno(), "a signal call failed")


def use_own_stack():
    stack = SignalStack(ctypes.addressof(memory), 0, STACK_BYTES)
    checked(libc.sigaltstack(ctypes.byref(stack), None))


def handle_in_c(signum):
    action = SignalAction(sa_flags=SA_ONSTACK | SA_RESTART)
    action.sa_handler = ctypes.cast(libc.srandom, ctypes.c_void_p).value
    checked(libc.sigaction(int(signum), ctypes.byref(action), None))


def handle_in_python(signum, frame):
    for number in range(20_000):
        number * number
    signal.setitimer(signal.ITIMER_PROF, 0.01)  # a fixed interval would let it nest


def interrupted_work(deadline):
    while time.monotonic() < deadline:
        for number in range(10_000):
            number * number


def main():
    use_own_stack()
    handle_in_c(signal.SIGALRM)
    signal.signal(signal.SIGPROF, handle_in_python)
    deadline = common.start(__doc__)
    signal.setitimer(signal.ITIMER_REAL, 0.00004, 0.00004)
    signal.setitimer(signal.ITIMER_PROF, 0.01)
    interrupted_work(deadline)
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.setitimer(signal.ITIMER_PROF, 0)


if __name__ == "__main__":
    main()
