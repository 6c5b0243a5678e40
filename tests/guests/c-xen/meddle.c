#include "meddle.h"

#include <stddef.h>
#include <stdint.h>

#include "clock.h"
#include "command_line.h"
#include "console.h"
#include "events.h"
#include "interrupts.h"
#include "threads.h"

#define OWN_VECTOR 0x3f
/* The local APIC's registers, by words; its timer counts units of 10 ns. */
#define APIC ((volatile uint32_t *)0xfee00000)
#define APIC_EOI (0xb0 / 4)
#define APIC_SPURIOUS (0xf0 / 4)
/* Eight registers with a bit for each vector whose interrupt is pending, at every fourth word. */
#define APIC_REQUESTED (0x200 / 4)
#define APIC_TIMER (0x320 / 4)
#define APIC_COUNT (0x380 / 4)
#define APIC_DIVIDE (0x3e0 / 4)
#define APIC_ENABLED 0x100
#define TIMER_PERIODIC 0x20000
#define DIVIDE_BY_1 0xb
#define PERIOD 2000000

#define LARGE_PAGE 0x200000
/* Memory of the guest that nothing uses: the heap is given out from below. */
#define UNMAPPED (24ull * LARGE_PAGE)
/* The large page of the local APIC, in which Xen's tools have theirs. */
#define TOOLS 0xfee00000ull
#define PRESENT_WRITABLE_LARGE 0x83

/* Of the drop-in, if it is linked in. */
extern void unikprof_dropin_resume(void) __attribute__((weak));
extern int32_t unikprof_mark(int32_t name, uint64_t value) __attribute__((weak));

static volatile uint64_t ticks;

__attribute__((interrupt, target("general-regs-only"))) static void on_own_timer(void *frame)
{
    (void)frame;
    ticks++;
    APIC[APIC_EOI] = 0;
}

static void use_timer(void)
{
    interrupts_set_gate(OWN_VECTOR, (const void *)on_own_timer);
    APIC[APIC_SPURIOUS] = APIC_ENABLED | OWN_VECTOR;
    APIC[APIC_DIVIDE] = DIVIDE_BY_1;
    APIC[APIC_TIMER] = TIMER_PERIODIC | OWN_VECTOR;
    APIC[APIC_COUNT] = PERIOD;
}

/* With events masked: so that the profiler's next interrupt comes when the timer is not its own any more. */
static void wait_for_pending_interrupt(void)
{
    uint64_t end = clock_now_ns() + 10000000000;
    while (clock_now_ns() < end) {
        for (unsigned word = 0; word < 8; word++) {
            if (APIC[APIC_REQUESTED + 4 * word] != 0) {
                return;
            }
        }
    }
    panic("no interrupt of the profiler's is pending");
}

/* boot.S: the first 4 GiB. */
extern uint64_t page_level_2[];

/* In CR2, as a handler of page faults finds the address of one. */
#define FAULT_ADDRESS 0xdeadull

static uint64_t read_cr2(void)
{
    uint64_t address;
    __asm__ volatile("mov %%cr2, %0" : "=r"(address));
    return address;
}

/* For a second, which is several turns: as code without frame pointers may. */
__attribute__((noinline)) static void work_with_wild_frame_pointer(void)
{
    uint64_t end = clock_now_ns() + 1000000000;
    __asm__ volatile("mov %0, %%cr2" : : "r"(FAULT_ADDRESS));
    while (clock_now_ns() < end) {
        uint64_t steps = 100000;
        __asm__ volatile("push %%rbp\n\t"
                         "mov %1, %%rbp\n"
                         "1: dec %0\n\t"
                         "jnz 1b\n\t"
                         "pop %%rbp"
                         : "+c"(steps)
                         : "a"(UNMAPPED));
    }
    if (read_cr2() != FAULT_ADDRESS) {
        panic("CR2 is not what it was");
    }
}

static void map(uint64_t page, uint64_t flags)
{
    page_level_2[page / LARGE_PAGE] = flags == 0 ? 0 : page | flags;
    __asm__ volatile("invlpg %0" : : "m"(*(char *)page) : "memory");
}

void meddle_map_tools(bool is_mapped)
{
    map(TOOLS, is_mapped ? PRESENT_WRITABLE_LARGE : 0);
}

void meddle_early(void)
{
    use_timer();
}

void meddler(void)
{
    uint64_t blocked_ns = clock_runstate_ns(RUNSTATE_BLOCKED);
    if (!command_line_is("meddle", "early")) {
        thread_wait(NULL, clock_now_ns() + 5000000000);
    }
    bool were_unmasked = events_mask();
    if (command_line_is("meddle", "timer")) {
        wait_for_pending_interrupt();
        use_timer();
    } else if (command_line_is("meddle", "table")) {
        interrupts_start_in_another();
    } else if (command_line_is("meddle", "gate")) {
        interrupts_start();
    } else if (command_line_is("meddle", "memory")) {
        map(UNMAPPED, 0);
    } else if (command_line_is("meddle", "exceptions")) {
        interrupts_handle_exceptions();
        map(UNMAPPED, 0);
    } else if (command_line_is("meddle", "runstate")) {
        if (clock_runstate_ns(RUNSTATE_BLOCKED) == blocked_ns) {
            panic("Xen does not update the kernel's run states");
        }
        clock_start();
    }
    events_restore(were_unmasked);
    say("c-xen: has meddled\n");
    while (command_line_is("meddle", "memory") || command_line_is("meddle", "exceptions")) {
        work_with_wild_frame_pointer();
        say("c-xen: has worked without frame pointers\n");
        thread_wait(NULL, clock_now_ns() + 100000000);
    }
    for (unsigned second = 1;; second++) {
        uint64_t before = ticks;
        thread_wait(NULL, clock_now_ns() + 5000000000);
        say("c-xen: own ticks ");
        say_hex(ticks - before);
        say("\n");
        if (second == 2 && unikprof_mark != NULL && command_line_is("meddle", "gate")) {
            unikprof_mark(0, second);
        }
        if (second == 2 && unikprof_dropin_resume != NULL && command_line_is("meddle", "table")) {
            were_unmasked = events_mask();
            unikprof_dropin_resume();
            events_restore(were_unmasked);
        }
    }
}
