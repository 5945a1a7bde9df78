/* As program.c, on another thread than the first. */

#include <pthread.h>
#include <stdio.h>

#define KEPT __attribute__((noinline, noclone))

volatile long sink;

KEPT void inner(void)
{
	for (long n = 0; n < 100000; n++)
		sink += n;
}

KEPT void middle(void)
{
	inner();
	sink++;
}

KEPT void outer(void)
{
	middle();
	sink++;
}

KEPT void *run(void *unused)
{
	for (;;)
		outer();
	return unused;
}

int main(void)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL) != 0)
		return 1;
	puts("ready");
	fflush(stdout);
	pthread_join(thread, NULL);
	return 0;
}
