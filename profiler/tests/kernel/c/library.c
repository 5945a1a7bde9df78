/* Spends its time in the C library. */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEPT __attribute__((noinline, noclone))

static char one[1 << 16], other[1 << 16];
static int numbers[4096];

static int compare(const void *a, const void *b)
{
	return *(const int *)a - *(const int *)b;
}

KEPT void copies(void)
{
	for (int n = 0; n < 100; n++)
		memcpy(one, other, sizeof(one));
}

KEPT void blocks(void)
{
	void *all[200];

	for (int n = 0; n < 200; n++)
		all[n] = malloc(64 + n * 8);
	for (int n = 0; n < 200; n++)
		free(all[n]);
}

KEPT void sorts(void)
{
	for (int n = 0; n < 4096; n++)
		numbers[n] = rand();
	qsort(numbers, 4096, sizeof(int), compare);
}

int main(void)
{
	puts("ready");
	fflush(stdout);
	for (;;) {
		copies();
		blocks();
		sorts();
	}
}
