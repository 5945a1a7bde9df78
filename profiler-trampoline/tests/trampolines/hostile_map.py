"""Something else lies where the map should be: activating is an error at once, and the program goes on."""

import os
import socket
import tempfile

import common

path = "/tmp/perf-%d.map" % os.getpid()


def work():
    return 1


def refused(*words):
    common.expect(OSError, common.activate, path, *words)
    assert not common.is_active()
    assert work() == 1


with tempfile.TemporaryDirectory() as folder:
    victim = os.path.join(folder, "victim")
    with open(victim, "w") as file:
        file.write("precious")

    os.mkfifo(path)
    refused("regular file")
    os.unlink(path)

    for target in (victim, os.path.join(folder, "nothing")):
        os.symlink(target, path)
        refused("symbolic link")
        os.unlink(path)

    os.mkdir(path)
    refused()
    os.rmdir(path)

    os.link(victim, path)
    refused("hard links")
    os.unlink(path)

    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    refused()
    listener.close()
    os.unlink(path)

    with open(victim) as file:
        assert file.read() == "precious"
    assert os.listdir(folder) == ["victim"]

    if os.geteuid() == 0:
        with open(path, "w"):
            pass
        os.chown(path, 65534, 65534)
        refused()
        os.unlink(path)

# The mode is what is promised, whatever the umask.
before = os.umask(0o777)
common.activate()
os.umask(before)
if common.OURS:
    assert os.stat(path).st_mode & 0o777 == 0o600
assert work() == 1
assert len(common.named("work")) == 1
common.deactivate()
common.done()
