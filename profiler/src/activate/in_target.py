# Runs inside the process, in a namespace of its own, which has: path, on, crash (to switch would crash it). Defines no
# function: it would get a trampoline, and a name in the perf map, itself.
# Imports only what every interpreter has loaded, so that nothing stays behind.
import posix, sys

try:
    request = posix.open(path, posix.O_RDWR | posix.O_NOFOLLOW | posix.O_CLOEXEC)
except OSError:
    request = None
if request is not None:
    try:
        # Whoever removes the file has the word: this, or the one who asked, who has waited long enough.
        posix.unlink(path)
        try:
            answer = "on" if on else "off"
            if sys.is_stack_trampoline_active() == on:
                answer = "already"
            elif crash:
                answer = "refused"
            elif on:
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
            else:
                sys.deactivate_stack_trampoline()
        except BaseException as error:
            answer = "failed %s: %s" % (type(error).__name__, error)
        answer = "answer " + answer[:1000] + chr(0)
        posix.pwrite(request, answer.encode("utf-8", "backslashreplace"), 0)
    except BaseException:
        pass
    finally:
        posix.close(request)
