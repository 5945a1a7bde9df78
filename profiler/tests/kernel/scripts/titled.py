"""Burns CPU under a title of its own, written over its arguments as setproctitle does it: title, function's name."""

import sys


def set_title(title):
    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        memory.seek(begin)
        memory.write(title.encode()[: end - begin - 1].ljust(end - begin, b"\0"))


def spin():
    while True:
        for number in range(10_000):
            number * number


if __name__ == "__main__":
    if sys.argv[1]:
        set_title(sys.argv[1])
    name = sys.argv[2]
    inner = {}
    exec(compile(f"def {name}(spin):\n    spin()\n", f"/{name}.py", "exec"), inner)
    print("ready", flush=True)
    inner[name](spin)
