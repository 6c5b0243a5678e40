/* A guest whose clock is set back. Nothing may wait until it has caught up. */
#include "guest.h"

#define MS UINT64_C(1000000)
#define SECOND (1000 * MS)
#define HOUR (3600 * SECOND)

static uint64_t ran_ns;
static uint32_t current, vcpus;

static uint32_t current_vcpu(void *context)
{
    CHECK(context == stack);
    return current;
}

static uint64_t running_ns(void *context, uint32_t vcpu)
{
    CHECK(context == stack && vcpu < vcpus);
    return ran_ns;
}

static void kick(void *context, uint32_t vcpu)
{
    CHECK(context == stack && vcpu < vcpus);
}

static void pass(uint64_t ns)
{
    time_ns += ns;
    ran_ns += ns;
}

/* The time until the next tick or poll, on the guest's clock. */
static uint64_t until_tick(void)
{
    uint64_t deadline_ns = unikprof_deadline();
    CHECK(deadline_ns != UNIKPROF_NO_DEADLINE);
    return deadline_ns < time_ns ? 0 : deadline_ns - time_ns;
}

static uint64_t until_poll(void)
{
    uint64_t deadline_ns = unikprof_poll(time_ns);
    CHECK(deadline_ns >= time_ns && deadline_ns != UNIKPROF_NO_DEADLINE);
    return deadline_ns - time_ns;
}

static void run(void)
{
    struct unikprof_registers registers = guest_interrupted();
    int32_t silent, client;

    config.vcpus = vcpus;
    current = 0;
    time_ns = 5 * HOUR;
    CHECK_CODE(start(), UNIKPROF_OK);
    client = unikprof_connection_open();
    CHECK(guest_converse(client, client_start, client_start_length) > 16);
    pass(until_tick());
    unikprof_on_tick(&registers);

    /* A client that says nothing is given up after its time, however often the clock is set back. */
    silent = unikprof_connection_open();
    for (int second = 0; second < 70; second++) {
        CHECK(until_poll() <= 61 * SECOND);
        pass(SECOND);
        if (second % 20 == 0) {
            time_ns -= HOUR;
        }
        for (current = 0; current < vcpus; current++) {
            CHECK(until_tick() <= 2 * MS);
            CHECK(unikprof_on_tick(&registers) <= time_ns + 2 * MS);
        }
        current = 0;
    }
    unikprof_poll(time_ns);
    CHECK_CODE(unikprof_connection_output(silent, memory, 0), UNIKPROF_E_OVER);

    /* A small step is waited out: the clock stands still. */
    time_ns -= 200 * MS;
    CHECK(until_tick() >= 200 * MS && until_tick() <= 202 * MS);
    pass(200 * MS);
    CHECK(until_tick() <= 2 * MS);
}

int main(void)
{
    ops.vcpu = current_vcpu;
    ops.running_ns = running_ns;
    ops.kick = kick;
    for (vcpus = 1; vcpus <= 2; vcpus++) {
        apart(run);
    }
    return passed();
}
