/* A tick in a leaf function of aarch64: its caller is in the link register, and in no frame record. */
#include "guest.h"

extern const unsigned char client_fetch[];
extern const unsigned client_fetch_length;

/* nop; ret; nop. */
static const uint32_t code[] = { 0xd503201f, 0xd65f03c0, 0xd503201f };

static int32_t code_bounds(void *context, uint64_t pc, struct unikprof_range *bounds)
{
    CHECK(context == stack && pc == (uint64_t)&code[1]);
    bounds->start = (uint64_t)code;
    bounds->end = (uint64_t)(code + 3);
    return 1;
}

int main(void)
{
    char answer[4096];
    struct unikprof_registers registers = guest_interrupted();
    struct unikprof_mapping mappings[2];
    int32_t client;
    int64_t given;

    mappings[0] = mappings[1] = mapping;
    mappings[1].start = (uint64_t)code;
    mappings[1].end = (uint64_t)(code + 3);
    config.mappings = mappings;
    config.mapping_count = 2;
    ops.code_bounds = code_bounds;
    CHECK_CODE(start(), UNIKPROF_OK);
    client = unikprof_connection_open();
    guest_converse(client, client_start, client_start_length);
    registers.pc = (uint64_t)&code[1];
    registers.lr = CODE + 0x80;
    time_ns = unikprof_deadline();
    CHECK(unikprof_on_tick(&registers) >= time_ns);
    guest_converse(client, client_stop, client_stop_length);
    CHECK(unikprof_connection_input(client, client_fetch, client_fetch_length) > 0);
    unikprof_poll(time_ns);
    printf("fetched; ");
    while ((given = unikprof_connection_output(client, answer, sizeof answer)) > 0) {
        for (int64_t index = 0; index < given; index++) {
            printf("%02x", (unsigned)answer[index] & 0xff);
        }
        unikprof_poll(time_ns);
    }
    puts("");
    return passed();
}
