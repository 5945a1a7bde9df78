/* A function with the name of CPython's evaluation loop, and with code that compilers take for rare. */
int rare(int) __attribute__((cold));

int _PyEval_EvalFrameDefault(const int *code, int count) {
    int sum = 0;
    for (int i = 0; i < count; i++) {
        if (code[i] == 11) sum += rare(i);
        if (code[i] > sum) sum ^= rare(sum) + code[i];
        if (code[i] == 77) sum -= rare(code[i] + 1);
        if (code[i] < -sum) sum *= rare(code[i] * 3);
        if (code[i] == 99) sum |= rare(sum + i);
        if (code[i] == 55) sum &= rare(sum - i);
        sum += code[i];
    }
    return sum;
}

/* It has a cold part of its own. */
int another(int at) { return at < 0 ? rare(at) : at; }
