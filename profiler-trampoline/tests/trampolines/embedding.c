/* A program that has an interpreter in it, ends it, and begins another one: what was found in the first must not be
   relied upon in the second. Arguments: the folder of the package. */
#include <Python.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

static const char PROGRAM[] =
    "import sys\n"
    "sys.path.insert(0, folder)\n"
    "import pyprof_trampoline as t\n"
    "assert not t.is_active()\n"
    "t.activate()\n"
    "assert t.is_active()\n"
    "def life_%d(): return 1\n"
    "assert life_%d() == 1\n"
    "names = open(t.perf_map_path()).read()\n"
    "assert names.count('life_%d:') == 1, names\n"
    "%s\n";

static int fork_and_wait(void) {
    int status;
    pid_t child = fork();
    if (child == 0)
        _exit(0);
    return waitpid(child, &status, 0) == child && status == 0;
}

int main(int argc, char **argv) {
    char text[2048], folder[1024];
    if (argc < 2)
        return 2;
    for (int life = 0; life < 4; life++) {
        Py_Initialize();
        snprintf(folder, sizeof folder, "folder = r'%s'", argv[1]);
        snprintf(text, sizeof text, PROGRAM, life, life, life, life % 2 ? "t.deactivate()" : "");
        if (PyRun_SimpleString(folder) != 0 || PyRun_SimpleString(text) != 0)
            return 1;
        if (!fork_and_wait())
            return 3;
        Py_FinalizeEx();
        /* There is no interpreter now. */
        if (!fork_and_wait())
            return 4;
    }
    puts("done");
    return 0;
}
