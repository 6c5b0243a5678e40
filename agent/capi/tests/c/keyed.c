/* A guest with keys. The agent's own tests cover the encryption. */
#include "guest.h"

static uint64_t drawn;
static int has_random = 1;
static int lines_logged;

static int32_t guest_random(void *context, uint64_t *bits)
{
    CHECK(context == stack);
    *bits = ++drawn * 0x9e3779b97f4a7c15u;
    return has_random;
}

static void guest_log(void *context, const char *line)
{
    CHECK(context == stack);
    CHECK(strstr(line, "unikprof: ") == line && strlen(line) < 300);
    CHECK(strstr(line, "0123") == NULL);
    lines_logged++;
}

static const char view[] =
    "# role: view\nunikprof-key-1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef\n";
static const char control[] =
    "unikprof-key-1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcde0";
static const char damaged[] =
    "unikprof-key-1:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdeg";

int main(void)
{
    struct unikprof_key keys[2] = {
        { .role = UNIKPROF_ROLE_VIEW, .text = view },
        { .role = UNIKPROF_ROLE_CONTROL, .text = control },
    };
    const struct unikprof_key good = keys[1];
    struct unikprof_registers registers = guest_interrupted();
    unsigned char answer[256];
    int32_t connection;

    ops.random = guest_random;
    ops.log = guest_log;
    config.access = UNIKPROF_ACCESS_KEYS;
    config.keys = keys;
    config.key_count = 2;
#define REFUSED(change, code)                                                  \
    do {                                                                       \
        change;                                                                \
        CHECK_CODE(start(), code); \
        keys[1] = good;                                                        \
        config.keys = keys;                                                    \
        config.key_count = 2;                                                  \
        config.access = UNIKPROF_ACCESS_KEYS;                                  \
    } while (0)
    REFUSED(keys[1].text = damaged, UNIKPROF_E_KEYS);
    REFUSED(keys[1].text = view, UNIKPROF_E_KEYS);
    REFUSED(keys[1].text = "", UNIKPROF_E_KEYS);
    REFUSED(keys[1].text = NULL, UNIKPROF_E_NULL);
    REFUSED(keys[1].role = 0, UNIKPROF_E_KEYS);
    REFUSED(keys[1].role = UNIKPROF_ROLE_TRACE + 1, UNIKPROF_E_KEYS);
    REFUSED(config.key_count = 0, UNIKPROF_E_KEYS);
    REFUSED(config.key_count = UNIKPROF_MAX_KEYS + 1, UNIKPROF_E_KEYS);
    REFUSED(config.keys = NULL, UNIKPROF_E_NULL);
    REFUSED(config.access = UNIKPROF_ACCESS_OPEN, UNIKPROF_E_ACCESS);

    /* Keys are useless without random numbers: no client is served, and the log says why. */
    CHECK(lines_logged == 0);
    has_random = 0;
    CHECK_CODE(start(), UNIKPROF_E_RANDOM);
    CHECK(lines_logged == 1);
    /* The memory contains no key after that. */
    for (size_t at = 0; at + 32 <= sizeof memory; at++) {
        static const unsigned char key[8] = { 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef };
        CHECK(memcmp(memory + at, key, sizeof key) != 0);
    }
    has_random = 1;
    ops.random = NULL;
    CHECK_CODE(start(), UNIKPROF_E_RANDOM);
    ops.random = guest_random;

    CHECK_CODE(unikprof_init(&config, &ops, memory, unikprof_memory_bytes(&config)), UNIKPROF_OK);
    CHECK(unikprof_on_tick(&registers) == UNIKPROF_NO_DEADLINE);
    connection = unikprof_connection_open();
    CHECK(connection >= 0);
    /* A client without a key gets an error, and nothing else. */
    CHECK_CODE(unikprof_connection_output(connection, answer, sizeof answer), 16);
    CHECK(memcmp(answer, "unikprof", 8) == 0 && answer[12] == 1);
    CHECK_CODE(unikprof_connection_input(connection, client_start, client_start_length),
               client_start_length);
    CHECK(unikprof_connection_output(connection, answer, sizeof answer) > 0);
    CHECK_CODE(unikprof_connection_output(connection, answer, sizeof answer), UNIKPROF_E_OVER);
    CHECK_CODE(unikprof_connection_close(connection), UNIKPROF_OK);

    /* Silent clients are replaced by new ones, and their sessions end. */
    for (int client = 0; client < (int)UNIKPROF_SESSIONS; client++) {
        connection = unikprof_connection_open();
        CHECK(connection >= 0);
    }
    CHECK_CODE(unikprof_connection_open(), UNIKPROF_E_SESSIONS);
    CHECK(unikprof_busy_answer(answer, sizeof answer) > 16 && answer[12] == 1);
    time_ns += 600000000;
    CHECK(unikprof_connection_open() >= 0);

    return passed();
}
