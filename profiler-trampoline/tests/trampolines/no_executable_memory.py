"""Memory that was written must not become executable here: activating is an error, and the program goes on."""

import ctypes

import common

PR_SET_MDWE = 65
PR_MDWE_REFUSE_EXEC_GAIN = 1

# ctypes makes code of its own before that is forbidden.
if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
    common.skip("the kernel cannot forbid it (PR_SET_MDWE, Linux 6.3)")


def work():
    return 1


common.expect(RuntimeError, common.activate, "executable memory")
assert not common.is_active()
assert work() == 1
common.done()
