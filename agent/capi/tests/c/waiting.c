/* A guest that sleeps whenever it may, while its client's part of the CPU share is used up again and again: no answer may
 * be forgotten, and no wake-up be in vain. The answers are printed; the test's own program counts them. */
#include "guest.h"

/* So many requests come at once, and as many one by one, each when nothing else is to be done. */
#define CHECKS 100
/* Longer than any wait for the share; a session that is silent for 60 s ends. */
#define LONG_NS UINT64_C(30000000000)

/* What lies in the guest's TCP, and how much of it the agent has taken. */
static unsigned char received[1 << 14];
static size_t received_length, taken_length;
/* Bytes of answers since the last request. */
static int64_t answer_length;

/* Work takes time: 10 us from one look at the clock to the next. */
static uint64_t passing_now_ns(void *context)
{
    time_ns += 10000;
    return guest_now_ns(context);
}

/* Moves bytes in both directions until none move. Answers how many did. */
static int64_t move(int32_t connection)
{
    int64_t taken, given, moved = 0;
    do {
        unsigned char bytes[512];
        taken = unikprof_connection_input(connection, received + taken_length,
                                          received_length - taken_length);
        given = unikprof_connection_output(connection, bytes, sizeof bytes);
        CHECK(taken >= 0 && given >= 0);
        taken_length += (size_t)taken;
        for (int64_t index = 0; index < given; index++) {
            printf("%02x", bytes[index]);
        }
        answer_length += given;
        moved += taken + given;
    } while (taken > 0 || given > 0);
    return moved;
}

static void receive(const unsigned char *bytes, unsigned length)
{
    CHECK(received_length + length <= sizeof received);
    memcpy(received + received_length, bytes, length);
    received_length += length;
    answer_length = 0;
}

int main(void)
{
    struct unikprof_registers registers = guest_interrupted();
    uint64_t deadline_ns, slept_ns = 0;
    int32_t connection;
    int checks = 0;

    ops.now_ns = passing_now_ns;
    config.cpu_share_permille = 1;
    CHECK_CODE(start(), UNIKPROF_OK);
    connection = unikprof_connection_open();
    receive(client_start, client_start_length);
    for (; checks < CHECKS; checks++) {
        receive(client_check, client_check_length);
    }
    printf("answers; ");
    for (;;) {
        /* What the agent does not take stays in the TCP, and the guest does not wait for it: only the deadline wakes. */
        CHECK(move(connection) > 0);
        deadline_ns = unikprof_poll(time_ns);
        if (deadline_ns <= time_ns + LONG_NS) {
            slept_ns += deadline_ns - time_ns;
            time_ns = deadline_ns;
            unikprof_on_tick(&registers);
            continue;
        }
        CHECK(answer_length > 0);
        if (checks++ == 2 * CHECKS) {
            break;
        }
        receive(client_check, client_check_length);
    }
    puts("");
    CHECK(taken_length == received_length);
    CHECK(slept_ns > 0);
    return passed();
}
