"""Functions called after the first argument, made and called in the same order whatever that is: two processes with
addresses that are not random put them at the same places."""

import sys


def make(names):
    functions = {}
    for number, name in enumerate(names):
        call = f"{names[number + 1]}()" if number + 1 < len(names) else "spin()"
        exec(compile(f"def {name}():\n    {call}\n", f"/{name}.py", "exec"), functions)
    return functions


if __name__ == "__main__":
    names = [f"{sys.argv[1]}_{number}" for number in range(20)]
    functions = make(names)
    exec(compile(
        "def spin():\n    while True:\n        for number in range(10_000):\n            number * number\n",
        f"/{sys.argv[1]}.py", "exec"), functions)
    # Once, so that all of them are named before anybody looks.
    spin, functions["spin"] = functions["spin"], lambda: None
    functions[names[0]]()
    functions["spin"] = spin
    print("ready", flush=True)
    functions[names[0]]()
