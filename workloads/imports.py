"""Loads libraries and modules while it is being watched.

After --delay seconds it imports numpy (where installed) and sqlite3, which map new
libraries into the process; from then on it uses them, and imports pure Python modules
anew, which gives new code objects all the time.
"""

import importlib
import sys
import time

import common

RELOADED = ("colorsys", "textwrap", "fractions", "statistics", "difflib", "configparser")


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for number in range(1000):
            number * number


def import_again():
    for name in RELOADED:
        sys.modules.pop(name, None)
        importlib.import_module(name)


def use_sqlite(sqlite3):
    database = sqlite3.connect(":memory:")
    database.execute("create table t (n integer, s text)")
    database.executemany("insert into t values (?, ?)", ((n, str(n)) for n in range(2000)))
    database.execute("select s, sum(n) from t group by s order by 2 desc").fetchall()
    database.close()


def use_numpy(numpy):
    values = numpy.arange(100_000, dtype=float)
    numpy.sort(numpy.sin(values))


def main():
    parser = common.arguments(__doc__)
    parser.add_argument("--delay", type=float, default=2.0)
    options = parser.parse_args()
    common.ready()
    deadline = time.monotonic() + options.seconds
    spin(min(options.delay, options.seconds))
    import sqlite3

    try:
        import numpy
    except ImportError:
        numpy = None
    while time.monotonic() < deadline:
        import_again()
        use_sqlite(sqlite3)
        if numpy:
            use_numpy(numpy)


if __name__ == "__main__":
    main()
