/* Functions that are hard to unwind: no frame pointers, stack pointers that move. Every run_* has its work done by
 * spin(), which is exported and therefore called through the procedure linkage table. */

#define _GNU_SOURCE
#include <alloca.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

#define KEPT __attribute__((noinline, noclone))

volatile long sink;
static jmp_buf back;

KEPT void spin(long rounds)
{
	for (long n = 0; n < rounds; n++)
		sink += n;
}

KEPT void tiny(void)
{
	sink++;
}

KEPT void use(volatile char *memory)
{
	memory[0] = (char)sink;
}

/* Most of the time goes into calls, so some samples lie in the linkage table itself. */
KEPT void run_plt(long rounds)
{
	for (long n = 0; n < rounds; n++)
		tiny();
	sink++;
}

KEPT void run_alloca(long rounds)
{
	char *room = alloca(64 + rounds % 4096);
	use(room);
	spin(rounds);
	sink += room[0];
}

KEPT void run_large_frame(long rounds)
{
	char room[100000];
	use(room);
	spin(rounds);
	sink += room[0];
}

KEPT void run_aligned(long rounds)
{
	char lanes[256] __attribute__((aligned(64)));
	use(lanes);
	spin(rounds);
	sink += lanes[0];
}

/* As with -mstackrealign; with alloca, the compiler keeps the caller's frame in a register of its own (DRAP). */
KEPT __attribute__((force_align_arg_pointer)) void run_realigned(long rounds)
{
	char lanes[256] __attribute__((aligned(64)));
	char *room = alloca(64 + rounds % 4096);
	use(lanes);
	use(room);
	spin(rounds);
	sink += lanes[0] + room[0];
}

static KEPT __attribute__((noreturn)) void spin_and_leave(long rounds)
{
	spin(rounds);
	longjmp(back, 1);
}

/* Ends with a call: its return address is the beginning of whatever comes next. */
static KEPT __attribute__((noreturn)) void never_returns(long rounds)
{
	sink++;
	spin_and_leave(rounds);
}

KEPT void run_noreturn(long rounds)
{
	if (setjmp(back) == 0)
		never_returns(rounds);
	sink++;
}

static long handler_rounds;

static KEPT void handler(int number)
{
	spin(handler_rounds);
	sink += number;
}

KEPT void run_sigaltstack(long rounds)
{
	static char memory[65536];
	stack_t own = { .ss_sp = memory, .ss_size = sizeof memory };
	struct sigaction action = { .sa_handler = handler, .sa_flags = SA_ONSTACK };

	handler_rounds = rounds;
	sigaltstack(&own, NULL);
	sigaction(SIGUSR1, &action, NULL);
	raise(SIGUSR1);
	sink++;
}
