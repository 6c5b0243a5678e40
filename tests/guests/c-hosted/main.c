/* A guest in C: it works, serves the agent's clients from its loop, and is sampled by its own timer.
 *
 * It prints `listening on ADDRESS`, and ends when its standard input does, so that no guest outlives the
 * test that started it. */
#define _GNU_SOURCE
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <unikprof.h>

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

int main(void)
{
    uint64_t state = 1;
    /* Above the frame record of `main` there is only the C library. */
    uint64_t frame = (uint64_t)__builtin_frame_address(0);
    int port;

    profiler_start(frame + 16);
    port = server_start();
    printf("listening on 127.0.0.1:%d\n", port);
    fflush(stdout);
    while (!has_input_ended()) {
        state = day(state);
        server_turn();
    }
    printf("state %llx after %llu parts\n", (unsigned long long)state, (unsigned long long)parts_done);
    return unikprof_stop() == UNIKPROF_OK ? 0 : 1;
}
