"""Does ``python -m pyprof_trampoline app.py`` do what ``python app.py`` does?

Each test writes a program, runs it both ways with this Python, and compares all that can be seen of the two. The
package is found by PYTHONPATH. One test for each run: ``running.py Running.test_NAME``.
"""

import os
import re
import signal
import subprocess
import sys
import tempfile
import textwrap
import unittest
import zipfile

FACTS = """
import builtins, json, sys
names = sorted(set(globals()) - {"builtins", "json", "sys"})
main = sys.modules["__main__"]
print(json.dumps([
    sys.argv, sys.path[:2], names, __name__, main.__dict__ is globals(),
    repr(__package__), repr(__cached__ if "__cached__" in names else None), repr(__doc__), __file__, type(__loader__).__name__, repr(getattr(__loader__, "name", "")), repr(__spec__),
    __builtins__ is builtins, sys._getframe().f_code.co_filename,
], indent=0))
"""


class Running(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = os.path.realpath(folder.name)

    def write(self, name, text):
        path = os.path.join(self.folder, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(text if isinstance(text, bytes) else textwrap.dedent(text).encode())
        return path

    def run_python(self, *words, flags=(), **options):
        process = subprocess.Popen(
            [sys.executable, *flags, *words],
            cwd=self.folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            env=dict(os.environ, PYTHONDONTWRITEBYTECODE="1", **options.pop("env", {})),
            **options
        )
        out, err = process.communicate("")
        # A map that is left of an older process with this pid is added to.
        self.map = "/tmp/perf-%d.map" % process.pid
        self.names = ""
        if os.path.exists(self.map):
            with open(self.map, encoding="utf-8") as file:
                self.names = file.read()
            os.unlink(self.map)
        # Where objects lie is another thing each time.
        return process.returncode, re.sub("0x[0-9a-f]{8,}", "0x...", out), err

    def both(self, *words, flags=(), **options):
        """Runs the program both ways, and returns what both did."""
        plain = self.run_python(*words, flags=flags, **options)
        self.assertNotIn(self.folder, self.names, "without the package there are no trampolines")
        ours = self.run_python("-m", "pyprof_trampoline", *words, flags=flags, **options)
        self.assertEqual(ours, plain)
        return ours

    def expect(self, done, code=0, out=None, err=None):
        self.assertEqual(done[0], code, done)
        if out is not None:
            self.assertEqual(done[1], out)
        if err is not None:
            self.assertIn(err, done[2])

    def test_a_script_finds_itself(self):
        self.write("app.py", FACTS)
        self.write("below/app.py", '"""Its text."""' + FACTS)
        for script in ("app.py", "./app.py", "below/../app.py", "below/app.py", os.path.join(self.folder, "app.py")):
            with self.subTest(script):
                self.expect(self.both(script, "-m", "--help", "a b"))
                self.assertIn("py::<module>:" + self.folder, self.names)

    def test_a_link_leads_to_the_folder_of_the_script(self):
        self.write("below/app.py", FACTS + "import beside\n")
        self.write("below/beside.py", "print('imported')")
        os.symlink("below/app.py", os.path.join(self.folder, "link.py"))
        self.expect(self.both("link.py"))

    def test_a_module_finds_itself(self):
        self.write("module.py", FACTS)
        self.write("package/__init__.py", "import sys; print(sys.argv, sys.modules['__main__'].__name__)")
        self.write("package/__main__.py", FACTS + "from . import part")
        self.write("package/part.py", FACTS)
        for module in ("module", "package", "package.part"):
            with self.subTest(module):
                self.expect(self.both("-m", module, "-m", "x"))
                self.assertIn("py::<module>:" + self.folder, self.names)

    def test_folders_and_zip_files_run(self):
        self.write("folder/__main__.py", FACTS + "import beside\n")
        self.write("folder/beside.py", "print('imported')")
        for name in ("program.zip", "program.pyz", "program"):
            with zipfile.ZipFile(os.path.join(self.folder, name), "w") as file:
                file.write(os.path.join(self.folder, "folder/__main__.py"), "__main__.py")
                file.write(os.path.join(self.folder, "folder/beside.py"), "beside.py")
        for script in ("folder", "folder/", "program.zip", "program.pyz", "program", "."):
            with self.subTest(script):
                done = self.both(script, "x")
                self.assertEqual(done[0], 1 if script == "." else 0, done)

    def test_compiled_files_run(self):
        import py_compile

        py_compile.compile(self.write("app.py", FACTS), os.path.join(self.folder, "app.pyc"))
        self.expect(self.both("app.pyc", "x"))

    def test_safe_paths_stay_safe(self):
        self.write("app.py", FACTS)
        self.write("folder/__main__.py", FACTS)
        if sys.version_info >= (3, 11):
            self.expect(self.both("app.py", flags=["-P"]))
            self.expect(self.both("folder", flags=["-P"]))
            self.assertEqual(self.both("-m", "app", flags=["-P"])[0], 1)

    def test_flags_of_the_interpreter_hold(self):
        self.write("app.py", "import sys, warnings; print(__debug__, sys.flags, sys.warnoptions); assert False")
        self.expect(self.both("app.py", flags=["-O", "-W", "error", "-B"]))

    def test_exit_codes_are_handed_on(self):
        for ending in ("import sys; sys.exit(7)", "raise SystemExit", "raise SystemExit('reason')",
                       "import os; os._exit(9)", "1 / 0", "import sys; sys.exit(None)"):
            with self.subTest(ending):
                self.both(self.write("app.py", ending + "\n"))

    def test_a_traceback_begins_in_the_program(self):
        self.write("app.py", """
            import sys
            def inner():
                raise ValueError("told")
            def outer():
                try:
                    inner()
                except ValueError as err:
                    raise KeyError("again") from err
            outer()
            """)
        done = self.both("app.py")
        self.expect(done, 1, "", "told")
        self.assertNotIn("pyprof_trampoline", done[2])
        # Here `python` shows frames of runpy, and so do we.
        self.expect(self.both("-m", "app"), 1, "", "told")

    def test_a_traceback_group_and_notes_are_shown_the_same(self):
        if sys.version_info >= (3, 11):
            self.write("app.py", """
                err = ValueError("one")
                err.add_note("a note")
                raise ExceptionGroup("several", [err, KeyError("two")])
                """)
            self.expect(self.both("app.py"), 1, "", "a note")

    def test_hooks_for_exceptions_get_the_program_only(self):
        self.write("app.py", """
            import atexit, sys, traceback
            def hook(kind, value, trace):
                frames = [frame.name for frame in traceback.extract_tb(trace)]
                print(kind.__name__, value, frames, value.__traceback__ is trace)
            sys.excepthook = hook
            atexit.register(lambda: print("at the end", sys.modules["__main__"].hook is hook))
            1 / 0
            """)
        self.expect(self.both("app.py"), 1, "ZeroDivisionError division by zero ['<module>'] True\nat the end True\n")
        self.write("app.py", "import sys\ndel sys.excepthook\n1 / 0\n")
        self.assertEqual(self.run_python("-m", "pyprof_trampoline", "app.py")[0], 1)

    def test_a_program_that_is_interrupted_ends_by_the_signal(self):
        self.write("app.py", """
            import os, signal
            signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it from the start
            os.kill(os.getpid(), signal.SIGINT)
            input()
            """)
        done = self.both("app.py")
        self.expect(done, -signal.SIGINT, "", "KeyboardInterrupt")

    def test_a_syntax_error_is_told_as_ever(self):
        self.write("app.py", "def f(:\n  pass\n")
        done = self.both("app.py")
        self.expect(done, 1, "", "SyntaxError")
        self.assertNotIn("Traceback", done[2])
        self.assertNotIn("__main__", done[2])

    def test_an_encoding_is_seen(self):
        self.write("app.py", "# coding: latin-1\nprint(ascii('\xe9'))\n".encode("latin-1"))
        self.expect(self.both("app.py"), 0, "'\\xe9'\n")
        self.write("app.py", b"\xef\xbb\xbfprint(ascii('\xc3\xa9'))\n")
        self.expect(self.both("app.py"), 0, "'\\xe9'\n")

    def test_future_statements_of_ours_are_not_the_programs(self):
        self.write("app.py", "def f(x: 1 + 1): pass\nprint(f.__annotations__)\ny: int = 1\nprint(__annotations__)\n"
                   if sys.version_info < (3, 14) else "def f(x: 1 + 1): pass\nprint(f.__annotations__)\n")
        self.expect(self.both("app.py"))

    def test_a_script_that_cannot_be_read_is_told(self):
        for words in (["none.py"], ["below/none.py"]):
            done = self.run_python("-m", "pyprof_trampoline", *words)
            self.expect(done, 2, "", "cannot read %s: No such file" % os.path.join(self.folder, words[0]))
            self.assertEqual(done[0], self.run_python(*words)[0])
            self.assertEqual(done[2].count("\n"), 1)
            self.assertNotIn(self.folder, self.names)
        done = self.both("-m", "none.such")
        self.expect(done, 1, "", "none")

    def test_wrong_use_is_told(self):
        for words in ([], ["-m"], ["-x"], ["-c", "pass"]):
            self.expect(self.run_python("-m", "pyprof_trampoline", *words), 2, "", "usage: ")
        self.expect(self.run_python("-m", "pyprof_trampoline", "--help"), 0, err="")

    def test_a_map_that_cannot_be_made_stops_before_the_program(self):
        # The process makes its own map a folder, and then becomes the program.
        self.write("app.py", "print('ran')\n")
        self.write("first.py", """
            import os, sys
            path = "/tmp/perf-%d.map" % os.getpid()
            if os.path.exists(path):
                os.unlink(path)  # left of an older process with this pid
            os.mkdir(path)
            os.execv(sys.executable, [sys.executable, "-m", "pyprof_trampoline", "app.py"])
            """)
        process = subprocess.Popen([sys.executable, "first.py"], cwd=self.folder, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, encoding="utf-8")
        out, err = process.communicate()
        if os.path.isdir("/tmp/perf-%d.map" % process.pid):
            os.rmdir("/tmp/perf-%d.map" % process.pid)
        self.assertEqual((process.returncode, out), (1, ""))
        self.assertIn("/tmp/perf-%d.map" % process.pid, err)
        self.assertEqual(err.count("\n"), 1)

    def test_functions_of_the_program_are_pickled(self):
        self.write("app.py", """
            import pickle
            class Thing: pass
            def function(): return 5
            print(pickle.loads(pickle.dumps(function))(), type(pickle.loads(pickle.dumps(Thing()))) is Thing)
            print(pickle.dumps(function, 0))
            """)
        self.expect(self.both("app.py"))
        self.expect(self.both("-m", "app"))

    def test_processes_are_spawned_forked_and_served(self):
        text = """
            import multiprocessing, os
            def square(n):
                return n * n, __name__
            if __name__ == "__main__":
                for way in ("spawn", "fork", "forkserver"):
                    context = multiprocessing.get_context(way)
                    with context.Pool(2) as pool:
                        print(pool.map(square, range(4)))
                        workers = [process.pid for process in pool._pool]
                    pool.join()
                    for pid in workers:  # forked ones have maps
                        if os.path.exists("/tmp/perf-%d.map" % pid):
                            os.unlink("/tmp/perf-%d.map" % pid)
            """
        self.write("app.py", text)
        self.write("folder/__main__.py", text.replace('("spawn", "fork", "forkserver")', '("fork",)'))
        self.expect(self.both("app.py", flags=["-W", "ignore"]))
        self.expect(self.both("-m", "app", flags=["-W", "ignore"]))
        self.expect(self.both("folder", flags=["-W", "ignore"]))

    def test_threads_and_exit_functions_find_the_program_after_its_end(self):
        self.write("app.py", """
            import atexit, sys, threading
            go = threading.Event()
            def late():
                go.wait()
                import __main__
                print("thread", __main__.VALUE)
            def last():
                import __main__
                print("exit", __main__.VALUE, VALUE)
            VALUE = 5
            atexit.register(last)
            threading.Thread(target=late).start()
            class Ends:
                def __del__(self):
                    print("ends")
            ends = Ends()
            go.set()
            """)
        self.write("folder/__main__.py", "exec(open(%r).read())" % os.path.join(self.folder, "app.py"))
        for words in (["app.py"], ["-m", "app"], ["folder"]):
            with self.subTest(words):
                self.expect(self.both(*words), 0, "thread 5\nexit 5 5\nends\n")

    def test_standard_input_is_the_programs(self):
        self.write("app.py", "import sys; print(repr(sys.stdin.read()))")
        self.expect(self.both("app.py"), 0, "''\n")
        self.both("/dev/stdin")

    def test_every_function_called_is_named(self):
        path = self.write("app.py", """
            import json
            def outer():
                return inner()
            def inner():
                return json.dumps([1])
            outer()
            """)
        self.run_python("-m", "pyprof_trampoline", "app.py")
        for name in ("<module>", "outer", "inner"):
            line = "^[0-9a-f]+ [0-9a-f]+ py::%s:%s$" % (name, re.escape(path))
            self.assertTrue(re.search(line, self.names, re.MULTILINE), name)
        self.assertIn("json/__init__.py", self.names)
        # What runs the program would be at the root of all its stacks.
        self.assertNotIn("pyprof_trampoline/__main__.py", self.names)


if __name__ == "__main__":
    unittest.main()
