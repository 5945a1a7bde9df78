"""The launcher's sitecustomize in a program whose current directory is gone: it gives way to the user's all the same."""

import os
import shutil
import subprocess
import sys
import tempfile

import common

import pyprof_trampoline

if sys.version_info >= (3, 11):
    common.skip("this version does not start in such a directory with a relative path in PYTHONPATH")

LAUNCH = os.path.join(os.path.dirname(__file__), "..", "..", "python", "launch", "sitecustomize.py")
# Enters a directory, removes it, and becomes the program.
START = "import os, sys; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone'); os.execv(sys.argv[1], sys.argv[1:])"

with tempfile.TemporaryDirectory() as folder:
    ours, users = os.path.join(folder, "ours"), os.path.join(folder, "users")
    os.mkdir(ours)
    os.mkdir(users)
    shutil.copy(LAUNCH, ours)
    shutil.copytree(os.path.dirname(pyprof_trampoline.__file__), os.path.join(ours, "pyprof_trampoline"))
    with open(os.path.join(users, "sitecustomize.py"), "w") as file:
        file.write("print('the user was here')")
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join((ours, "relative", users)))
    program = [sys.executable, "-c", "import sys; print(sys.modules['sitecustomize'].__file__)"]
    child = subprocess.run(
        [sys.executable, "-S", "-c", START, *program], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert child.returncode == 0 and child.stderr == "", child
    assert child.stdout == "the user was here\n%s\n" % os.path.join(users, "sitecustomize.py"), child
common.done()
