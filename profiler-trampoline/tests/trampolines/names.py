"""Names: of functions of all kinds, with qualified names where the version has them, and of odd ones."""

import common


def plain():
    return 1


class Shop:
    def sell(self):
        def price():
            return 2

        return price()

    @property
    def stock(self):
        return 3

    @staticmethod
    def rule():
        return 4


def run_all():
    plain()
    plain()
    shop = Shop()
    shop.sell()
    shop.stock
    Shop.rule()
    list(number for number in range(3))
    [number for number in range(3)]

    class Inner:
        attribute = plain()


def odd(name, file):
    code = compile("def f(): pass\nf()", file, "exec")
    [inner] = filter(is_code, code.co_consts)
    changed = {"co_name": name}
    if common.HAS_QUALNAME:
        changed["co_qualname"] = name
    inner = inner.replace(**changed)
    code = code.replace(co_consts=tuple(map(lambda constant: inner if is_code(constant) else constant, code.co_consts)))
    exec(code, {})


def is_code(constant):
    return hasattr(constant, "co_name")


common.activate()
run_all()
odd("größe", "/srv/mit leer/ß:x.py")
odd("new\nline", "a\x1bb\tc\x7f.py")
odd("nul\0byte", "<string>")
odd("surrogate\udc80", "/srv/latin\udce9.py")
odd("", "")
odd("long" * 2000, "/srv/long.py")
common.deactivate()

here = __file__
names = [entry.name for entry in common.entries()]
qualified = {
    "plain": "plain",
    "sell": "Shop.sell",
    "price": "Shop.sell.<locals>.price",
    "stock": "Shop.stock",
    "rule": "Shop.rule",
    "<genexpr>": "run_all.<locals>.<genexpr>",
    "<listcomp>": "run_all.<locals>.<listcomp>",
    "Inner": "run_all.<locals>.Inner",
}
for name, full in qualified.items():
    wanted = "py::%s:%s" % (full if common.HAS_QUALNAME else name, here)
    assert names.count(wanted) == 1, (wanted, names)
for wanted in (
    "py::größe:/srv/mit leer/ß:x.py",
    "py::new\\nline:a\\x1bb\\tc\\x7f.py",
    "py::nul\\x00byte:<string>",
    "py::surrogate\\udc80:/srv/latin\\udce9.py",
    "py:::",
    "py::" + "long" * 2000 + ":/srv/long.py",
):
    assert names.count(wanted) == 1, (wanted, names)
sizes = {entry.size for entry in common.check_ranges()}
assert len(sizes) == 1, sizes
common.done()
