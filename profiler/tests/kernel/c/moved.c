/* Moves the code of a mapped file to other memory at the same addresses, as programs do that want huge pages for it:
 * MOVED_FILE is a part of the file's name, MOVED_HOW one of
 *   copied   all of it, to anonymous memory that is filled in place
 *   remapped all of it, to anonymous memory that is filled elsewhere
 *   middle   only what begins and ends at a multiple of 128 KiB
 *   halves   all of it, to memory of two kinds
 *   memfd    all of it, to a file without a name
 * When MOVED_LATE is set, that is done when SIGUSR1 comes. */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static char *begin, *end;
static const char *how;

static int is(const char *what) { return strcmp(how, what) == 0; }

static void move(int signal) {
    (void)signal;
    size_t bytes = end - begin;
    char *copy = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memcpy(copy, begin, bytes);
    if (is("memfd")) {
        int file = memfd_create("code", 0);
        if (write(file, copy, bytes) != (ssize_t)bytes)
            abort();
        mmap(begin, bytes, PROT_READ | PROT_EXEC, MAP_SHARED | MAP_FIXED, file, 0);
        close(file);
    } else if (is("remapped")) {
        mprotect(copy, bytes, PROT_READ | PROT_EXEC);
        mremap(copy, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, begin);
        return;
    } else {
        int all = PROT_READ | PROT_WRITE | PROT_EXEC;
        if (mmap(begin, bytes, all, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != begin)
            abort();
        madvise(begin, is("halves") ? bytes / 2 & ~4095ul : bytes, MADV_HUGEPAGE);
        memcpy(begin, copy, bytes);
        mprotect(begin, bytes, PROT_READ | PROT_EXEC);
    }
    munmap(copy, bytes);
}

__attribute__((constructor)) static void start(void) {
    const char *file = getenv("MOVED_FILE");
    how = getenv("MOVED_HOW");
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[4096];
    while (file && how && maps && fgets(line, sizeof line, maps)) {
        unsigned long from, to;
        char rights[8];
        if (!begin && strstr(line, file) && sscanf(line, "%lx-%lx %7s", &from, &to, rights) == 3 && rights[2] == 'x') {
            begin = (char *)from;
            end = (char *)to;
        }
    }
    if (maps)
        fclose(maps);
    if (!begin)
        return;
    if (is("middle")) {
        const unsigned long part = 128 << 10;
        begin = (char *)(((unsigned long)begin + part - 1) & ~(part - 1));
        end = (char *)((unsigned long)end & ~(part - 1));
    }
    if (getenv("MOVED_LATE"))
        signal(SIGUSR1, move);
    else
        move(0);
}
