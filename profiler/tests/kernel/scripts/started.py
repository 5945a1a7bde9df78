"""Works in functions that are known beforehand, however it is started, and says what it finds around it.

    started.py SECONDS [WAY OF STARTING A CHILD]

It is understood by every Python, the old ones too.
"""

from __future__ import print_function

import os
import subprocess
import sys
import time

# CPU time, so that a busy machine leaves as many samples.
clock = getattr(time, "process_time", None) or time.clock


def work(seconds):
    end = clock() + seconds
    while clock() < end:
        for number in range(1000):
            number * number


def main(seconds, way):
    sys.stdout.write("pid %d\n" % os.getpid())
    sys.stdout.write("customized by %s\n" % os.environ.get("CUSTOMIZED", "nobody"))
    sys.stdout.write("sitecustomize from %s\n" % getattr(sys.modules.get("sitecustomize"), "__file__", None))
    sys.stdout.write("path clean: %s\n" % (not any("pyprof-trampolines-" in folder for folder in sys.path)))
    sys.stdout.flush()
    work(seconds)
    if way == "subprocess":
        subprocess.check_call([sys.executable, os.path.abspath(__file__), str(seconds)])
    elif way in ("spawn", "fork"):
        import multiprocessing

        child = multiprocessing.get_context(way).Process(target=main, args=(seconds, None))
        child.start()
        child.join()
        sys.exit(child.exitcode)


if __name__ == "__main__":
    main(float(sys.argv[1]), sys.argv[2] if len(sys.argv) > 2 else None)
