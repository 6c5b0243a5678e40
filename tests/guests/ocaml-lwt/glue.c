/* The agent in a program whose loop is Lwt's. */
#define _GNU_SOURCE
#include <caml/mlvalues.h>
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <unikprof.h>

#include "profiler.h"

value guest_start(value unit)
{
    pthread_attr_t attributes;
    void *stack;
    size_t size;
    if (pthread_getattr_np(pthread_self(), &attributes) != 0
        || pthread_attr_getstack(&attributes, &stack, &size) != 0) {
        abort();
    }
    profiler_start((uint64_t)stack + size);
    return unit;
}

value guest_now_ns(value unit)
{
    (void)unit;
    return Val_long((intnat)profiler_now_ns());
}

/* `unikprof_deadline` tells the profiler's timer the same time. */
value guest_set_sampler(value deadline_ns)
{
    profiler_arm();
    (void)deadline_ns;
    return Val_unit;
}
