#include "interrupts.h"

#include "console.h"
#include "profiler.h"

#define EXCEPTIONS 32
#define CODE_SELECTOR 0x08

struct gate {
    uint16_t offset_low;
    uint16_t selector;
    uint16_t type; /* no separate stack: 0 in the low byte */
    uint16_t offset_middle;
    uint32_t offset_high;
    uint32_t reserved;
};
_Static_assert(sizeof(struct gate) == 16, "an interrupt gate in 64-bit mode");

/* interrupt_entry.S: 16 bytes each. */
extern const uint8_t exception_entries[];
extern const uint8_t upcall_entry[], breakpoint_entry[];

static struct gate tables[2][UPCALL_VECTOR + 1];
static struct gate *table = tables[0];

void interrupts_set_gate(unsigned vector, const void *entry)
{
    uint64_t address = (uint64_t)entry;
    table[vector] = (struct gate) {
        .offset_low = (uint16_t)address,
        .selector = CODE_SELECTOR,
        .type = 0x8e00, /* present, an interrupt gate: it disables interrupts */
        .offset_middle = (uint16_t)(address >> 16),
        .offset_high = (uint32_t)(address >> 32),
    };
}

void interrupts_handle_exceptions(void)
{
    for (unsigned number = 0; number < EXCEPTIONS; number++) {
        interrupts_set_gate(number, exception_entries + 16 * number);
    }
}

void interrupts_start(void)
{
    struct __attribute__((packed)) {
        uint16_t limit;
        uint64_t base;
    } pointer = { sizeof tables[0] - 1, (uint64_t)table };
    interrupts_handle_exceptions();
    interrupts_set_gate(UPCALL_VECTOR, upcall_entry);
    __asm__ volatile("lidt %0" : : "m"(pointer));
}

void interrupts_start_in_another(void)
{
    table = tables[1];
    interrupts_start();
}

void interrupts_handle_breakpoints(void)
{
    interrupts_set_gate(3, breakpoint_entry);
}

/* Called by interrupt_entry.S. */
void on_breakpoint(struct unikprof_trap_frame *frame)
{
    if (!profiler_on_breakpoint(frame)) {
        profiler_crash();
        panic("a breakpoint");
    }
}

/* Called by interrupt_entry.S. */
__attribute__((noreturn)) void on_exception(const struct interrupt_frame *frame)
{
    uint64_t address;
    __asm__ volatile("mov %%cr2, %0" : "=r"(address));
    say("c-xen: exception ");
    say_hex(frame->number);
    say(", error ");
    say_hex(frame->error);
    say(", at ");
    say_hex(profiler_original_pc(frame->rip));
    say(", rsp ");
    say_hex(frame->rsp);
    say(", rbp ");
    say_hex(frame->rbp);
    say(", cr2 ");
    say_hex(address);
    say("\n");
    profiler_crash();
    panic("an exception");
}
