/*
 * The same as jit.rs, in C: a just-in-time compiler as small as one can be, and how its code gets names.
 *
 *     cd profiler-trampoline
 *     cargo build --profile trampoline
 *     cc -O2 -fno-omit-frame-pointer -Iinclude examples/jit.c -L../target/trampoline -lpyprof_trampoline -o jit
 *     LD_LIBRARY_PATH=../target/trampoline ./jit --seconds 10
 *
 * jit::outer calls jit::inner three times and jit::leaf2 once; both spin equally long in each call.
 */
#define _DEFAULT_SOURCE
#include "pyprof_trampoline.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef __x86_64__
#error "this example makes code for x86-64 only"
#endif

enum { SIZE = 4096, ROUNDS = 200000 };

static unsigned char *code; /* where the functions are */
static size_t length;       /* how much of it is used */

struct function {
	unsigned char *start;
	size_t size;
};

static void emit(const void *bytes, size_t count)
{
	memcpy(code + length, bytes, count);
	length += count;
}

static void emit_u32(uint32_t number)
{
	emit(&number, sizeof number);
}

static struct function begin(void)
{
	struct function function;
	while (length % 16 != 0)
		emit("\xcc", 1); /* int3 */
	function.start = code + length;
	function.size = 0;
	emit("\x55", 1);         /* push rbp */
	emit("\x48\x89\xe5", 3); /* mov rbp, rsp: walks by frame pointers find the caller */
	return function;
}

static void spin(uint32_t rounds)
{
	emit("\xb9", 1); /* mov ecx, rounds */
	emit_u32(rounds);
	emit("\xff\xc9", 2); /* dec ecx */
	emit("\x75\xfc", 2); /* jnz to the dec */
}

static void call(const struct function *callee)
{
	emit("\xe8", 1); /* call, relative to what follows */
	emit_u32((uint32_t)(callee->start - (code + length + 4)));
}

/* Ends a function and names it: before it runs for the first time, since a sample may come at any moment after. */
static void end(struct function *function, const char *name)
{
	emit("\x5d\xc3", 2); /* pop rbp; ret */
	function->size = (size_t)(code + length - function->start);
	if (pyprof_perf_map_write_entry(function->start, function->size, name) != PYPROF_PERF_MAP_OK) {
		perror("the perf map");
		exit(1);
	}
}

static double now(void)
{
	struct timespec time;
	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

int main(int count, char **arguments)
{
	double seconds = 10, stop;
	struct function inner, leaf2, outer;
	void (*run)(void);

	if (count == 3 && strcmp(arguments[1], "--seconds") == 0) {
		seconds = atof(arguments[2]);
	} else if (count != 1) {
		fprintf(stderr, "usage: jit [--seconds NUMBER]\n");
		return 2;
	}
	code = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (code == MAP_FAILED) {
		perror("memory for code");
		return 1;
	}
	inner = begin();
	spin(ROUNDS);
	end(&inner, "jit::inner");
	leaf2 = begin();
	spin(ROUNDS);
	end(&leaf2, "jit::leaf2");
	outer = begin();
	call(&inner);
	call(&inner);
	call(&inner);
	call(&leaf2);
	end(&outer, "jit::outer");
	/* Never writable and executable at the same time. */
	if (mprotect(code, SIZE, PROT_READ | PROT_EXEC) != 0) {
		perror("memory for code");
		return 1;
	}

	memcpy(&run, &outer.start, sizeof run);
	puts("ready");
	fflush(stdout);
	for (stop = now() + seconds; now() < stop;)
		run();
	/* The map stays: whoever has recorded reads it afterwards. */
	pyprof_perf_map_fini();
	return 0;
}
