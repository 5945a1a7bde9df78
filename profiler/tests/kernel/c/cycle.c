/* A stack without an end: a function that returns into a signal's restorer, whose saved registers say that the restorer
 * itself was interrupted, there and on this very stack. It never returns; it only spins. */

#include <stdint.h>
#include <stdio.h>

/* Call frame information as the C library's restorer has it: rsp and rip are at 160 and 168 of what is on the stack. */
__asm__(".text\n.globl restorer\n.type restorer, @function\n"
	".cfi_startproc\n.cfi_signal_frame\n"
	".cfi_escape 0x0f,4,0x77,0xa0,0x01,0x06\n.cfi_escape 0x10,0x10,3,0x77,0xa8,0x01\n"
	" nop\nrestorer:\n mov $15, %rax\n syscall\n.cfi_endproc\n");
void restorer(void);

static uint64_t stack[4096];

/* Leaves its own frame out of the picture: the stack pointer is where a call from the restorer had put it. */
__attribute__((noreturn, naked)) static void spin_on(uint64_t *top)
{
	__asm__("mov %rdi, %rsp\n"
		".cfi_def_cfa rsp, 8\n"
		"1: jmp 1b\n");
}

int main(void)
{
	/* Behind the return address lies a ucontext: rsp at 160, rip at 168 (see the kernel's struct sigcontext). */
	uint64_t *top = &stack[2048], *context = top + 1;
	*top = (uint64_t)restorer;
	context[120 / 8] = (uint64_t)context;
	context[160 / 8] = (uint64_t)context;
	context[168 / 8] = (uint64_t)restorer;
	puts("ready");
	fflush(stdout);
	spin_on(top);
}
