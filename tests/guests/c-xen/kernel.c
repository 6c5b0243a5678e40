/* A small unikernel in C with the profiler in it. It boots as PVH, works, and serves the profiler's clients.
 *
 * The code for embedding is in profiler.c, timer.c (on_tick) and threads.c (on_block, on_wake); the rest is
 * that of any kernel. docs/guide/c.md describes how to compile and link it. */
#include <stddef.h>

#include "clock.h"
#include "command_line.h"
#include "console.h"
#include "events.h"
#include "grants.h"
#include "hypercall.h"
#include "interrupts.h"
#include "meddle.h"
#include "netfront.h"
#include "profiler.h"
#include "suspend.h"
#include "threads.h"
#include "timer.h"
#include "work.h"
#include "xenstore.h"

/* Ends the guest with an exception, twenty seconds after its start: `fault=page` or `fault=protection`. */
static void fail(void)
{
    thread_wait(NULL, clock_now_ns() + 20000000000);
    /* The first pages are not mapped; the other address is not canonical. */
    volatile uint8_t *wrong = (uint8_t *)(command_line_is("fault", "page") ? 8 : (uint64_t)1 << 63);
    *wrong = 0;
    panic("no fault");
}

/* Called by boot.S, with interrupts off. */
__attribute__((noreturn)) void kernel_main(const struct xen_start_info *info)
{
    interrupts_start();
    hypercall_start();
    command_line_start(info);
    events_start();
    threads_start();
    clock_start();
    if (command_line_is("meddle", "early")) {
        meddle_early();
    }
    bool hides_tools = command_line_is("meddle", "tools");
    if (hides_tools) {
        meddle_map_tools(false);
    }
    xenstore_start();
    if (hides_tools) {
        meddle_map_tools(true);
    }
    grants_start();
    netfront_start();
    profiler_start();
    timer_start();
    if (command_line_is("work", "sleep")) {
        thread_create(sleeper);
    } else if (command_line_is("work", "stuck")) {
        thread_create(stuck);
    } else {
        thread_create(miller);
        thread_create(baker);
    }
    if (command_line_is("allocations", "yes")) {
        thread_create(stock);
    }
    if (command_line_is("fault", "page") || command_line_is("fault", "protection")) {
        thread_create(fail);
    }
    if (command_line_has("meddle")) {
        thread_create(meddler);
    }
    if (command_line_is("tools", "follow")) {
        thread_create(suspender);
    }
    events_unmask();
    say("c-xen: at work\n");
    profiler_serve();
}
