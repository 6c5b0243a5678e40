/* In a domain that was restored from a save, memory and registers are as before, and all that Xen knew of the guest is
 * gone: pages of Xen's own, event channels, grants, the timer. */
#include "suspend.h"

#include <stddef.h>
#include <string.h>

#include "clock.h"
#include "console.h"
#include "events.h"
#include "grants.h"
#include "hypercall.h"
#include "netfront.h"
#include "threads.h"
#include "timer.h"
#include "xenstore.h"

#define LOOK_NS 500000000

/* Of the drop-in, if it is linked in. */
extern void unikprof_dropin_resume(void) __attribute__((weak));

static void suspend(void)
{
    struct xen_shutdown reason = { SHUTDOWN_SUSPEND };
    bool were_unmasked = events_mask();
    /* 0 in the new domain; 1 if the save failed and this is the old one. */
    if (hypercall_sched(SCHEDOP_SHUTDOWN, &reason) == 0) {
        hypercall_start();
        events_start();
        clock_start();
        xenstore_start();
        grants_start();
        /* Its port is the one that the profiler's device had. */
        netfront_start();
        timer_start();
        threads_clock_changed();
        if (unikprof_dropin_resume != NULL) {
            unikprof_dropin_resume();
        }
    }
    events_restore(were_unmasked);
    say("c-xen: resumed\n");
}

void suspender(void)
{
    char asked[16];
    for (;;) {
        thread_wait(NULL, clock_now_ns() + LOOK_NS);
        xenstore_read("control", "shutdown", asked, sizeof asked);
        if (strcmp(asked, "suspend") == 0) {
            xenstore_write("control", "shutdown", "");
            suspend();
        }
    }
}
