/*
 * For samply on a machine without a hardware counter, as most virtual ones are: it asks for CPU cycles only. Preloaded
 * into samply, and into nothing else, this asks for the kernel's CPU clock in their place. The kernel checks the
 * changed request like any other.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <linux/perf_event.h>
#include <stdarg.h>
#include <sys/syscall.h>

long syscall(long number, ...)
{
	long (*next)(long, ...) = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	long argument[6];
	va_list list;

	va_start(list, number);
	for (int n = 0; n < 6; n++)
		argument[n] = va_arg(list, long);
	va_end(list);
	if (number == SYS_perf_event_open && argument[0] != 0) {
		struct perf_event_attr *event = (struct perf_event_attr *)argument[0];
		if (event->type == PERF_TYPE_HARDWARE) {
			event->type = PERF_TYPE_SOFTWARE;
			event->config = PERF_COUNT_SW_CPU_CLOCK;
		}
	}
	return next(number, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
}
