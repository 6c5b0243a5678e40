/* A guest that blocks without registers: the wait belongs to the line of the call, not to what follows it. */
#include "guest.h"

#define WAITED_NS 5000000

extern const unsigned char client_waits[];
extern const unsigned client_waits_length;
extern const unsigned char client_fetch[];
extern const unsigned client_fetch_length;
extern char __executable_start[], etext[], behind_block[];

static uint64_t blocked_ns;

static uint64_t running_ns(void *context, uint32_t vcpu)
{
    CHECK(context == stack && vcpu == 0);
    return time_ns - blocked_ns;
}

__attribute__((noinline)) static void block(void)
{
    unikprof_on_block(NULL);
    __asm__ volatile(".globl behind_block\nbehind_block:" : : : "memory");
    time_ns += WAITED_NS;
    blocked_ns += WAITED_NS;
    unikprof_on_wake();
}

int main(void)
{
    uint64_t base = (uint64_t)__executable_start;
    char answer[4096];
    int32_t client;
    int64_t given;

    (void)guest_interrupted();
    mapping.start = base;
    mapping.end = (uint64_t)etext;
    reported_bounds.start = (uint64_t)&client - 4096;
    reported_bounds.end = (uint64_t)__builtin_frame_address(0) + 16;
    ops.running_ns = running_ns;
    CHECK_CODE(start(), UNIKPROF_OK);
    client = unikprof_connection_open();
    CHECK(guest_converse(client, client_waits, client_waits_length) > 16);
    block();
    CHECK(guest_converse(client, client_stop, client_stop_length) > 0);
    CHECK_CODE(unikprof_connection_input(client, client_fetch, client_fetch_length), (int64_t)client_fetch_length);
    printf("behind; %llu\nfetched; ", (unsigned long long)((uint64_t)behind_block - base));
    while ((given = unikprof_connection_output(client, answer, sizeof answer)) > 0) {
        for (int64_t index = 0; index < given; index++) {
            printf("%02x", (unsigned char)answer[index]);
        }
    }
    puts("");
    return passed();
}
