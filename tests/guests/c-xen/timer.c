#include "timer.h"

#include "clock.h"
#include "console.h"
#include "events.h"
#include "hypercall.h"
#include "profiler.h"
#include "threads.h"

static uint64_t own_ns = NO_DEADLINE;
static uint64_t sampler_ns = NO_DEADLINE;
static uint64_t armed_ns = NO_DEADLINE;

static uint64_t earlier_ns(void)
{
    return own_ns < sampler_ns ? own_ns : sampler_ns;
}

static void set(uint64_t deadline_ns)
{
    /* 0 stops the timer. */
    uint64_t system_time_ns = deadline_ns == NO_DEADLINE ? 0 : deadline_ns;
    check(hypercall(HYPERCALL_SET_TIMER_OP, system_time_ns, 0, 0), "set_timer_op");
    armed_ns = deadline_ns;
}

/* Sets the timer to the earlier deadline, with events masked, unless it already fires at that time or before:
 * an occasional superfluous upcall costs less than a hypercall each time. */
static void arm(void)
{
    if (earlier_ns() < armed_ns) {
        set(earlier_ns());
    }
}

static void on_timer(const struct interrupt_frame *frame)
{
    armed_ns = NO_DEADLINE;
    if (own_ns <= clock_now_ns()) {
        own_ns = NO_DEADLINE;
        threads_are_due();
    }
    /* Called for both deadlines: if it is too early for a sample, the agent returns the same deadline. */
    sampler_ns = profiler_on_tick(frame);
    arm();
}

void timer_start(void)
{
    events_handle(events_bind_virq(VIRQ_TIMER), on_timer);
    own_ns = armed_ns = NO_DEADLINE;
}

static void change(uint64_t *deadline, uint64_t to_ns)
{
    bool were_unmasked = events_mask();
    *deadline = to_ns;
    arm();
    events_restore(were_unmasked);
}

void timer_set_own(uint64_t deadline_ns)
{
    change(&own_ns, deadline_ns);
}

void timer_set_sampler(uint64_t deadline_ns)
{
    change(&sampler_ns, deadline_ns);
}

void timer_set_for_block(uint64_t deadline_ns)
{
    own_ns = deadline_ns;
    sampler_ns = NO_DEADLINE;
    /* Before a block, a timer with an earlier deadline would wake the guest for nothing. */
    if (earlier_ns() != armed_ns) {
        set(earlier_ns());
    }
}
