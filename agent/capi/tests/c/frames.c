/* A guest without a TCP stack: it hands frames over. */
#include "guest.h"

static const unsigned char who_has[60] = {
    0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6, /* Ethernet, ARP */
    0, 1, 8, 0, 6, 4, 0, 1, /* a request */
    2, 0, 0, 0, 0, 9, 10, 0, 0, 9, /* from 10.0.0.9 */
    0, 0, 0, 0, 0, 0, 10, 0, 0, 5, /* for 10.0.0.5 */
};

static void without_a_network(void)
{
    unsigned char buffer[UNIKPROF_MAX_FRAME];
    CHECK_CODE(start(), UNIKPROF_OK);
    CHECK_CODE(unikprof_frame_rx(who_has, sizeof who_has), UNIKPROF_E_NO_NETWORK);
    CHECK_CODE(unikprof_frame_tx(buffer, sizeof buffer), UNIKPROF_E_NO_NETWORK);
}

int main(void)
{
    struct unikprof_registers registers = guest_interrupted();
    struct unikprof_network network = {
        .hardware_address = { 2, 0, 0, 0, 0, 5 },
        .port = 7777,
        .address = { 10, 0, 0, 5 },
        .gateway = { 10, 0, 0, 1 },
        .prefix_length = 24,
    };
    const struct unikprof_network good = network;
    unsigned char buffer[UNIKPROF_MAX_FRAME];
    size_t without = unikprof_memory_bytes(&config);
    int64_t length;
    unsigned taken = 0;

    apart(without_a_network);

    config.network = &network;
    CHECK(unikprof_memory_bytes(&config) > without);
    CHECK_CODE(unikprof_init(&config, &ops, memory, without), UNIKPROF_E_MEMORY);
#define REFUSED(change, code)                                                  \
    do {                                                                       \
        change;                                                                \
        CHECK_CODE(start(), code); \
        network = good;                                                        \
    } while (0)
    REFUSED(network.port = 0, UNIKPROF_E_NETWORK);
    REFUSED(network.prefix_length = 33, UNIKPROF_E_NETWORK);
    REFUSED(network.hardware_address[0] = 1, UNIKPROF_E_NETWORK);
    REFUSED(network.address[0] = 224, UNIKPROF_E_NETWORK);
    REFUSED(network.gateway[0] = 224, UNIKPROF_E_NETWORK);
    CHECK_CODE(unikprof_init(&config, &ops, memory, unikprof_memory_bytes(&config)), UNIKPROF_OK);
    CHECK(unikprof_poll(time_ns) >= time_ns);

    CHECK_CODE(unikprof_frame_rx(NULL, 60), UNIKPROF_E_NULL);
    CHECK_CODE(unikprof_frame_rx(who_has, 0), UNIKPROF_E_FRAME);
    CHECK_CODE(unikprof_frame_rx(memory, UNIKPROF_MAX_FRAME + 1), UNIKPROF_E_FRAME);
    CHECK_CODE(unikprof_frame_tx(buffer, sizeof buffer - 1), UNIKPROF_E_FRAME);
    CHECK_CODE(unikprof_frame_tx(buffer, sizeof buffer), 0);

    CHECK_CODE(unikprof_frame_rx(who_has, sizeof who_has), UNIKPROF_OK);
    unikprof_poll(time_ns);
    length = unikprof_frame_tx(buffer, sizeof buffer);
    CHECK(length >= 42);
    CHECK(buffer[21] == 2 && memcmp(buffer, who_has + 6, 6) == 0);
    CHECK(memcmp(buffer + 22, good.hardware_address, 6) == 0);
    CHECK(memcmp(buffer + 28, good.address, 4) == 0);
    CHECK_CODE(unikprof_frame_tx(buffer, sizeof buffer), 0);

    /* Frames beyond the queue's length get an error; if no frames are taken out, the queued ones are kept. */
    while (unikprof_frame_rx(who_has, sizeof who_has) == UNIKPROF_OK) {
        taken++;
    }
    CHECK(taken == 16);
    CHECK_CODE(unikprof_frame_rx(who_has, sizeof who_has), UNIKPROF_E_FULL);
    for (int turn = 0; turn < 100; turn++) {
        time_ns += 1000000;
        unikprof_poll(time_ns);
        unikprof_frame_rx(who_has, sizeof who_has);
    }
    for (taken = 0; unikprof_frame_tx(buffer, sizeof buffer) > 0; taken++) {
    }
    CHECK(taken == 16);
    CHECK(unikprof_on_tick(&registers) == UNIKPROF_NO_DEADLINE);
    return passed();
}
