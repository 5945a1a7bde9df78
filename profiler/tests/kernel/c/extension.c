/* Compiled functions that work on Python objects, as Cython and mypyc make them. */

typedef struct object PyObject;

extern PyObject *PyDict_New(void);
extern PyObject *PyLong_FromLong(long value);
extern int PyDict_SetItem(PyObject *dict, PyObject *key, PyObject *value);
extern void Py_DecRef(PyObject *object);

/* Nearly all of its time is the interpreter's. Without its symbol, its name is where it begins. */
static __attribute__((noinline)) long fill(PyObject *dict, long rounds)
{
    long i;
    for (i = 0; i < rounds; i++) {
        PyObject *key = PyLong_FromLong(1000 + i % 5000);
        PyDict_SetItem(dict, key, key);
        Py_DecRef(key);
    }
    return i;
}

long hot(long rounds)
{
    PyObject *dict = PyDict_New();
    long done = fill(dict, rounds);
    Py_DecRef(dict);
    return done;
}

/* Calls back into Python, and does something of its own afterwards. */
long with_callback(long (*callback)(void))
{
    long sum = 0;
    for (int i = 0; i < 10; i++)
        sum += callback() + 1;
    return sum;
}
