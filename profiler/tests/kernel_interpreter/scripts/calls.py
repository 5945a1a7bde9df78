"""Nothing but calls and returns."""

import claims


def L11_S6_7_e():
    return 1


def L15_d():
    return L11_S6_7_e() + L11_S6_7_e()


def L19_c():
    return L15_d() + L15_d()


def L23_b():
    return L19_c() + L19_c()


def L29_a():
    return L23_b() + L23_b()


def L33_main():
    claims.start(__doc__)
    while True:
        L29_a()


if __name__ == "__main__":
    L33_main()
