/* A guest that was compiled with an older header, linked with the library of today. Its structures end
 * where a page does that may not be read. */
#define _GNU_SOURCE
#include "guest.h"

#include <sys/mman.h>

static unsigned char memory[1 << 20];

/* A copy of `bytes` whose end is that of readable memory. */
static void *at_the_end(const void *bytes, size_t length)
{
    unsigned char *pages = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(pages != MAP_FAILED && mprotect(pages + 4096, 4096, PROT_NONE) == 0);
    return memcpy(pages + 4096 - length, bytes, length);
}

int main(void)
{
    struct unikprof_mapping mapping = guest_mapping();
    struct unikprof_config config = guest_config(at_the_end(&mapping, sizeof mapping));
    struct unikprof_ops ops = guest_ops();
    struct unikprof_registers registers = guest_interrupted();
    struct unikprof_registers *edge = at_the_end(&registers, sizeof registers);
    int32_t client;

    CHECK(UNIKPROF_ABI_VERSION < unikprof_abi_version());
    switch (UNIKPROF_ABI_VERSION) {
    case 1:
        CHECK(config.size == 72 && ops.size == 96);
        break;
    default:
        CHECK(UNIKPROF_ABI_VERSION == 3 && config.size == 96 && ops.size == 120);
    }
    CHECK_CODE(unikprof_init(at_the_end(&config, sizeof config), at_the_end(&ops, sizeof ops), memory,
                             sizeof memory),
               UNIKPROF_OK);
    client = unikprof_connection_open();
    CHECK(guest_converse(client, client_start, client_start_length) > 16);
    for (int tick = 0; tick < 20; tick++) {
        uint64_t deadline_ns = unikprof_deadline();
        CHECK(deadline_ns > time_ns);
        time_ns = deadline_ns;
        CHECK(unikprof_on_tick(edge) > time_ns);
    }
    CHECK(bounds_asked == 20);
    CHECK(unikprof_resume() != UNIKPROF_NO_DEADLINE);
    CHECK_CODE(unikprof_stop(), UNIKPROF_OK);
    puts("all as it should be");
    return 0;
}
