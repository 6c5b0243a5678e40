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
#define APIC_TIMER (0x320 / 4)
#define APIC_COUNT (0x380 / 4)
#define APIC_DIVIDE (0x3e0 / 4)
#define APIC_ENABLED 0x100
#define TIMER_PERIODIC 0x20000
#define DIVIDE_BY_1 0xb
#define PERIOD 2000000

/* Of the drop-in, if it is linked in. */
extern void unikprof_dropin_resume(void) __attribute__((weak));

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

void meddle_early(void)
{
    use_timer();
}

void meddler(void)
{
    if (!command_line_is("meddle", "early")) {
        thread_wait(NULL, clock_now_ns() + 5000000000);
    }
    bool were_unmasked = events_mask();
    if (command_line_is("meddle", "timer")) {
        use_timer();
    } else if (command_line_is("meddle", "table")) {
        interrupts_start_in_another();
    } else if (command_line_is("meddle", "gate")) {
        interrupts_start();
    }
    events_restore(were_unmasked);
    say("c-xen: has meddled\n");
    for (unsigned second = 1;; second++) {
        uint64_t before = ticks;
        thread_wait(NULL, clock_now_ns() + 5000000000);
        say("c-xen: own ticks ");
        say_hex(ticks - before);
        say("\n");
        if (second == 2 && unikprof_dropin_resume != NULL
            && (command_line_is("meddle", "table") || command_line_is("meddle", "gate"))) {
            were_unmasked = events_mask();
            unikprof_dropin_resume();
            events_restore(were_unmasked);
        }
    }
}
