/* A guest in C: it works, serves the agent's clients from its loop, and is sampled by its own timer.
 *
 * It prints `listening on ADDRESS`, and ends when its standard input ends, so that no guest outlives the test
 * that started it. With the argument `flight` it begins a recording at the start; with
 * `coroutine` its work runs on a stack of its own. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unikprof.h>

#include "coroutine.h"
#include "profiler.h"
#include "server.h"
#include "work.h"

static uint64_t parts_done;

void part_done(void)
{
    parts_done++;
}

static int has_input_ended(void)
{
    struct pollfd input = { .fd = 0, .events = 0 };
    return poll(&input, 1, 0) > 0 && (input.revents & POLLHUP) != 0;
}

static uint64_t day_in_coroutine(uint64_t state)
{
    return coroutine_resume(day, state);
}

int main(int count, char **arguments)
{
    uint64_t state = 1, span;
    int32_t a_day, parts;
    /* Only the C library is above the frame record of `main`. */
    uint64_t frame = (uint64_t)__builtin_frame_address(0);
    uint64_t (*work)(uint64_t state) = day;
    int port;

    profiler_start(frame + 16);
    if (count > 1 && strcmp(arguments[1], "flight") == 0) {
        profiler_record("flight");
    }
    if (count > 1 && strcmp(arguments[1], "coroutine") == 0) {
        work = day_in_coroutine;
    }
    a_day = unikprof_event_name("day");
    parts = unikprof_event_name("parts done");
    port = server_start();
    printf("listening on 127.0.0.1:%d\n", port);
    fflush(stdout);
    while (!has_input_ended()) {
        span = unikprof_span_begin(a_day);
        state = work(state);
        unikprof_span_end(a_day, span);
        unikprof_counter(parts, (int64_t)parts_done);
        server_turn();
    }
    printf("state %llx after %llu parts\n", (unsigned long long)state, (unsigned long long)parts_done);
    return 0;
}
