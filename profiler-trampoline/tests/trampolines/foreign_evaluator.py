"""Another user of the frame evaluation hook is left alone: here a second copy of this very library."""

import os
import shutil
import sys
import tempfile

import common

import pyprof_trampoline

with tempfile.TemporaryDirectory() as folder:
    copy = os.path.join(folder, "second_copy")
    shutil.copytree(os.path.dirname(pyprof_trampoline.__file__), copy)
    sys.path.insert(0, folder)
    import second_copy

    second_copy.activate()
    common.expect(RuntimeError, common.activate, "another frame evaluation function")
    assert not common.is_active() and second_copy.is_active()
    common.expect(RuntimeError, common.deactivate, "another frame evaluation function")
    assert second_copy.is_active()
    second_copy.deactivate()

    common.activate()
    common.expect(RuntimeError, second_copy.activate, "another frame evaluation function")
    assert common.is_active()
    common.deactivate()
common.done()
