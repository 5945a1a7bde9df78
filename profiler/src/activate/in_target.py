# Runs inside the process, in a namespace of its own, which has: path, on, folder (None, or one with trampolines for
# CPython 3.9 to 3.11), crash (to switch would crash it). Defines no function: it would get a trampoline, and a name in the perf map, itself.
# Imports only what every interpreter has loaded, so that nothing stays behind.
import posix, sys

try:
    letter = posix.open(path, posix.O_RDWR | posix.O_NOFOLLOW | posix.O_CLOEXEC)
except OSError:
    letter = None
if letter is not None:
    try:
        # Whoever removes the file has the word: this, or the one who asked, who has waited long enough.
        posix.unlink(path)
        try:
            own = hasattr(sys, "activate_stack_trampoline")
            package = None if own else sys.modules.get("pyprof_trampoline")
            active = sys.is_stack_trampoline_active() if own else package is not None and package.is_active()
            answer = "on" if on else "off"
            if active == on:
                answer = "already"
            elif crash:
                answer = "refused"
            elif own and on:
                # CPython waits for ever where this is a FIFO, and says nothing where it cannot be opened.
                name = "/tmp/perf-%d.map" % posix.getpid()
                flags = posix.O_WRONLY | posix.O_CREAT | posix.O_APPEND
                flags |= posix.O_NOFOLLOW | posix.O_CLOEXEC | posix.O_NONBLOCK
                file = posix.open(name, flags, 0o600)
                kind = posix.fstat(file).st_mode & 0o170000
                posix.close(file)
                if kind != 0o100000:
                    raise OSError(name + " is not a regular file")
                sys.activate_stack_trampoline("perf")
            elif own:
                sys.deactivate_stack_trampoline()
            elif on:
                if package is None:
                    import _frozen_importlib, _frozen_importlib_external

                    spec = _frozen_importlib_external.spec_from_file_location(
                        "pyprof_trampoline", folder + "/__init__.py", submodule_search_locations=[folder]
                    )
                    package = _frozen_importlib.module_from_spec(spec)
                    sys.modules["pyprof_trampoline"] = package
                    try:
                        spec.loader.exec_module(package)
                        package.activate()
                    except BaseException:
                        sys.modules.pop("pyprof_trampoline", None)
                        raise
                    answer = "on loaded"
                else:
                    package.activate()
            else:
                package.deactivate()
        except BaseException as error:
            answer = "failed %s: %s" % (type(error).__name__, error)
        answer = "answer " + answer[:1000] + chr(0)
        posix.pwrite(letter, answer.encode("utf-8", "backslashreplace"), 0)
    except BaseException:
        pass
    finally:
        posix.close(letter)
