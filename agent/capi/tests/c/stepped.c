/* An upcall between any two instructions of unikprof_stop: the processor's trap flag interrupts each of them. A stop
 * that returns "busy" must have changed nothing: an upcall that it refused would leave its vCPU without a timer. */
#include "guest.h"

#include <signal.h>
#include <ucontext.h>

#define TRAP_FLAG 0x100

/* The step at which the upcall comes; 0: at every one. */
static unsigned long upcall_at;
static unsigned long steps, upcalls, refused;
static volatile int stops_stepping;

static void on_step(int signal, siginfo_t *information, void *context)
{
    ucontext_t *interrupted = context;
    (void)signal;
    (void)information;
    steps++;
    if (upcall_at == 0 || upcall_at == steps) {
        upcalls++;
        refused += unikprof_deadline() == UNIKPROF_NO_DEADLINE;
    }
    if (stops_stepping) {
        interrupted->uc_mcontext.gregs[REG_EFL] &= ~(greg_t)TRAP_FLAG;
    }
}

static int32_t stop_in_steps(void)
{
    int32_t code;
    steps = upcalls = refused = 0;
    stops_stepping = 0;
    __asm__ volatile("pushfq; orq $0x100, (%%rsp); popfq" : : : "memory", "cc");
    code = unikprof_stop();
    stops_stepping = 1;
    __asm__ volatile("nop" : : : "memory");
    return code;
}

static void record(void)
{
    int32_t client;
    CHECK_CODE(start(), UNIKPROF_OK);
    client = unikprof_connection_open();
    CHECK(guest_converse(client, client_start, client_start_length) > 16);
    CHECK(unikprof_deadline() != UNIKPROF_NO_DEADLINE);
}

/* Runs inside an upcall. */
static void stop_below_an_upcall(void)
{
    CHECK_CODE(stop_in_steps(), UNIKPROF_E_BUSY);
    CHECK(upcalls > 20 && refused == 0);
}

int main(void)
{
    struct unikprof_registers registers = guest_interrupted();
    struct sigaction action = { .sa_sigaction = on_step, .sa_flags = SA_SIGINFO };
    unsigned long busy = 0, before = 0, after = 0;

    CHECK(sigaction(SIGTRAP, &action, NULL) == 0);
    record();
    on_clock = stop_below_an_upcall;
    time_ns = unikprof_deadline();
    CHECK(unikprof_on_tick(&registers) >= time_ns);
    CHECK(on_clock == NULL && upcalls > 0);

    /* With one upcall at each step, until 3 upcalls came after its end. */
    for (upcall_at = 1; upcalls > 0 && after < 3; upcall_at++) {
        int32_t code = stop_in_steps();
        if (code == UNIKPROF_E_BUSY) {
            CHECK(refused == 0);
            busy++;
            CHECK(unikprof_deadline() != UNIKPROF_NO_DEADLINE);
        } else {
            CHECK_CODE(code, UNIKPROF_OK);
            before += upcalls > refused;
            after += refused;
            record();
        }
    }
    CHECK(busy > 0 && before > 0 && after > 0);
    CHECK_CODE(unikprof_stop(), UNIKPROF_OK);
    printf("upcalls before a stop took effect: %lu, while it was busy: %lu, after it: %lu\n", before, busy, after);
    puts("all as it should be");
    return 0;
}
