"""What tests look at before they do anything."""

import sys
import sysconfig


def change_config(**changes):
    """Changes answers of `sysconfig.get_config_var`: each change is a function of what the interpreter's build says."""
    asked = sysconfig.get_config_var

    def get_config_var(name):
        value = asked(name)
        return changes[name](value) if name in changes else value

    sysconfig.get_config_var = get_config_var


def be_like_3_12():
    """Says that there are trampolines, and gives `test.support` what tests of 3.12 and later import from it."""
    from test import support

    change_config(PY_HAVE_PERF_TRAMPOLINE=lambda _: 1)
    if not hasattr(support, "has_subprocess_support"):
        support.has_subprocess_support = True
    if not hasattr(support, "check_sanitizer"):
        support.check_sanitizer = lambda **kinds: False
    if sys.version_info < (3, 10):
        sys.modules["test.support.os_helper"] = support
