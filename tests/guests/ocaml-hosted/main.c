/* A guest in OCaml, without frame pointers: C calls its `turn` in a loop, and serves the agent's clients in between.
 *
 * It prints `listening on ADDRESS`, and ends when its standard input ends. */
#define _GNU_SOURCE
#include <caml/callback.h>
#include <caml/mlvalues.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <unikprof.h>

#include "../c-hosted/profiler.h"
#include "../c-hosted/server.h"

#define NOINLINE __attribute__((noinline, noclone))

NOINLINE static uint64_t work_in_c(uint64_t state)
{
    for (unsigned left = 20000; left > 0; left--) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
    }
    return state;
}

value guest_in_c(value state)
{
    return Val_long((long)(work_in_c((uint64_t)Long_val(state)) >> 2));
}

value guest_call_back(value function, value state)
{
    return Val_long(Long_val(caml_callback(function, state)) ^ 1);
}

static int has_input_ended(void)
{
    struct pollfd input = { .fd = 0, .events = 0 };
    return poll(&input, 1, 0) > 0 && (input.revents & POLLHUP) != 0;
}

int main(int count, char **arguments)
{
    /* Only the C library is above the frame of `main`. */
    uint64_t frame = (uint64_t)__builtin_frame_address(0);
    value state = Val_long(1);
    const value *turn;

    (void)count;
    profiler_start(frame + 16);
    caml_startup(arguments);
    turn = caml_named_value("turn");
    printf("listening on 127.0.0.1:%d\n", server_start());
    fflush(stdout);
    while (!has_input_ended()) {
        state = caml_callback(*turn, state);
        server_turn();
    }
    return 0;
}
