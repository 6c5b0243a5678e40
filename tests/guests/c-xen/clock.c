#include "clock.h"

#include "console.h"
#include "events.h"
#include "hypercall.h"

static struct xen_runstate runstate __attribute__((aligned(64)));

#define COMPILER_BARRIER() __asm__ volatile("" : : : "memory")

void clock_start(void)
{
    struct xen_runstate *area = &runstate;
    /* Xen takes the address of the address. */
    check(hypercall_vcpu(VCPUOP_REGISTER_RUNSTATE, &area), "VCPUOP_register_runstate_memory_area");
}

static uint64_t read_tsc(void)
{
    uint32_t low, high;
    __asm__ volatile("lfence; rdtsc" : "=a"(low), "=d"(high) : : "memory");
    return (uint64_t)high << 32 | low;
}

uint64_t clock_now_ns(void)
{
    const struct xen_time *time = &shared_info.vcpus[0].time;
    uint32_t version;
    uint64_t now;
    do {
        uint64_t delta;
        version = time->version;
        COMPILER_BARRIER();
        delta = read_tsc() - time->tsc_timestamp;
        delta = time->tsc_shift >= 0 ? delta << time->tsc_shift : delta >> -time->tsc_shift;
        now = time->system_time_ns
              + (uint64_t)((unsigned __int128)delta * time->tsc_to_system_mul >> 32);
        COMPILER_BARRIER();
    } while ((version & 1) != 0 || version != time->version);
    return now;
}

uint64_t clock_wall_ns(void)
{
    uint32_t version;
    uint64_t origin;
    do {
        version = shared_info.wall_clock_version;
        COMPILER_BARRIER();
        origin = ((uint64_t)shared_info.wall_clock_seconds_high << 32 | shared_info.wall_clock_seconds)
                     * 1000000000
                 + shared_info.wall_clock_ns;
        COMPILER_BARRIER();
    } while ((version & 1) != 0 || version != shared_info.wall_clock_version);
    return origin + clock_now_ns();
}

uint64_t clock_runstate_ns(unsigned state)
{
    uint64_t entered, time, now;
    /* Xen writes it when the vCPU is scheduled; if that happens during the read, `entered` changes. */
    do {
        entered = runstate.entered_ns;
        COMPILER_BARRIER();
        time = runstate.time_ns[state];
        now = clock_now_ns();
        COMPILER_BARRIER();
    } while (entered != runstate.entered_ns);
    /* The calling vCPU is running. */
    return state == RUNSTATE_RUNNING && now > entered ? time + (now - entered) : time;
}
