"""A version that there are no trampolines for: said so, and perf maps can still be written."""

import common

import pyprof_trampoline

common.expect(RuntimeError, common.activate, "3.9, 3.10 and 3.11")
assert not common.is_active()
common.deactivate()
pyprof_trampoline.write_perf_map_entry(0x1234, 16, "some code")
assert common.text() == "1234 10 some code\n"
common.done()
