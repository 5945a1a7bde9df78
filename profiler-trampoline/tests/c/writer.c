/* The C face under many threads: each writes its entries, the test reads the file afterwards. */
#include "pyprof_trampoline.h"

#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITERS = 8, ENTRIES = 2000 };

static void *write_entries(void *argument)
{
	uintptr_t writer = (uintptr_t)argument;
	char name[8000];
	for (uintptr_t n = 0; n < ENTRIES; n++) {
		/* Now and then longer than a page. */
		size_t filling = n % 100 == 0 ? 5000 : (writer * 7 + n * 13) % 180;
		int length = snprintf(name, sizeof name, "w%d_%d_", (int)writer, (int)n);
		memset(name + length, 'x', filling);
		strcpy(name + length + filling, "_end");
		if (pyprof_perf_map_write_entry((void *)(writer << 32 | n), 16, name) != PYPROF_PERF_MAP_OK)
			return argument;
	}
	return NULL;
}

int main(void)
{
	char path[64];
	snprintf(path, sizeof path, "/tmp/perf-%d.map", (int)getpid());

	unlink(path); /* of an earlier process with this pid */

	/* An obstacle is an error with a reason. */
	if (mkdir(path, 0700) != 0)
		return 1;
	errno = 0;
	if (pyprof_perf_map_init() != PYPROF_PERF_MAP_ERROR || errno != EISDIR)
		return 2;
	rmdir(path);

	pthread_t threads[WRITERS];
	for (uintptr_t writer = 0; writer < WRITERS; writer++)
		if (pthread_create(&threads[writer], NULL, write_entries, (void *)writer) != 0)
			return 3;
	for (int writer = 0; writer < WRITERS; writer++) {
		void *failed;
		if (pthread_join(threads[writer], &failed) != 0 || failed)
			return 4;
	}
	pyprof_perf_map_fini();
	pyprof_perf_map_fini();
	/* A size that does not fit in 32 bits, and a name that must not end the line. */
	if (pyprof_perf_map_write_entry((void *)0, (size_t)1 << 33, "two\nlines") != PYPROF_PERF_MAP_OK)
		return 5;
	printf("%d\n", (int)getpid());
	return 0;
}
