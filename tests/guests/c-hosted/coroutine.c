/* The coroutine's work runs to its end in each turn, so that no registers have to be kept for it. Its first frame saves
 * the frame pointer of `coroutine_resume`, which is on the resumer's stack. */
#include "coroutine.h"

static unsigned char stack[64 << 10] __attribute__((aligned(16)));

uint64_t coroutine_switch(uint64_t (*work)(uint64_t state), uint64_t state, void *stack_end);

__asm__(".text\n"
        ".type coroutine_switch, @function\n"
        "coroutine_switch:\n"
        "    push %rbp\n"
        "    mov %rsp, %rbp\n"
        "    mov %rdi, %rax\n"
        "    mov %rsi, %rdi\n"
        "    mov %rdx, %rsp\n"
        "    call *%rax\n"
        "    mov %rbp, %rsp\n"
        "    pop %rbp\n"
        "    ret\n"
        ".size coroutine_switch, . - coroutine_switch\n");

uint64_t coroutine_resume(uint64_t (*work)(uint64_t state), uint64_t state)
{
    return coroutine_switch(work, state, stack + sizeof stack) | 1;
}

int coroutine_has(uint64_t address, struct unikprof_range *bounds)
{
    bounds->start = (uint64_t)stack;
    bounds->end = (uint64_t)(stack + sizeof stack);
    return address >= bounds->start && address < bounds->end;
}
