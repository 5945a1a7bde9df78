"""What tests find and rely on."""

import sys
import sysconfig
import unittest


def change_config(**changes):
    """Changes answers of `sysconfig.get_config_var`: each change is a function of what the interpreter's build says."""
    asked = sysconfig.get_config_var

    def get_config_var(name):
        value = asked(name)
        return changes[name](value) if name in changes else value

    sysconfig.get_config_var = get_config_var


def have_trampolines():
    """Interpreters before 3.12 have none, and tests look into that first."""
    change_config(PY_HAVE_PERF_TRAMPOLINE=lambda _: 1)


def be_like_3_12():
    """Gives an older interpreter what tests of 3.12 and later use of its library for tests."""
    from test import support

    have_trampolines()
    if not hasattr(support, "has_subprocess_support"):
        support.has_subprocess_support = True
    if sys.version_info < (3, 10):
        sys.modules["test.support.os_helper"] = support
    # It knows fewer sanitizers than it is asked about, and was built with none.
    support.check_sanitizer = lambda **kinds: False
    if not hasattr(unittest.TestCase, "assertNotStartsWith"):
        unittest.TestCase.assertNotStartsWith = lambda test, text, start: test.assertFalse(text.startswith(start))
