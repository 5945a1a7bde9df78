/* A program that is no Python, and runs at the addresses that are written in its file. */

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

int main(void)
{
	puts("ready");
	fflush(stdout);
	for (;;)
		outer();
}
