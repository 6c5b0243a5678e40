/*
 * The functions of struct unikprof_ops for a typical C kernel on Xen: one vCPU, Xen's system time as
 * the clock, and thread stacks that are aligned to their size.
 *
 *   static struct unikprof_xen guest = { .clock_ns = monotonic_clock, .stack_bytes = STACK_SIZE, ... };
 *   struct unikprof_ops ops = unikprof_xen_ops(&guest);
 *   ops.random = my_random;                              replace what differs
 *
 * Register guest.runstate with VCPUOP_register_runstate_memory_area before unikprof_init.
 *
 * The functions for upcalls are compiled without vector registers, whatever the flags of the file: kernels
 * save none at their event entry, and some leave the stack misaligned there. The guest must compile clock_ns
 * in the same way.
 */

#ifndef UNIKPROF_XEN_H
#define UNIKPROF_XEN_H

#include <unikprof.h>
#include <xen/vcpu.h>

/* For functions that run in an upcall. */
#define UNIKPROF_UPCALL __attribute__((target("general-regs-only")))

/* The guest. It must not move. */
struct unikprof_xen {
    /* Xen's system time in ns, as computed from vcpu_time_info; on aarch64, where Xen does not fill that in,
       a clock of the guest's own with the same origin as the runstate's times. Called in upcalls. */
    uint64_t (*clock_ns)(void);
    /* The size of a stack in bytes, a power of two. Stacks are aligned to it and completely mapped.
       0 if that is not so: then set ops.stack_bounds. */
    uint64_t stack_bytes;
    /* The image's code, which the agent may read. */
    const char *code_start, *code_end;
    /* The vCPU's time in each state, written by Xen. */
    volatile struct vcpu_runstate_info runstate;
};

/* Converts a deadline for Xen's timer, where 0 means none. UNIKPROF_NO_DEADLINE itself would fire every
   100 ms. */
UNIKPROF_UPCALL static inline uint64_t unikprof_xen_deadline(uint64_t deadline_ns)
{
    return deadline_ns == UNIKPROF_NO_DEADLINE ? 0 : deadline_ns;
}

/* Calls unikprof_on_tick with the registers of the interrupted code, on aarch64 also with the link register,
   x30. */
#ifdef __aarch64__
UNIKPROF_UPCALL static inline uint64_t unikprof_xen_tick(uint64_t pc, uint64_t sp, uint64_t fp, uint64_t lr)
{
    struct unikprof_registers registers = {
        .pc = pc, .sp = sp, .fp = fp, .lr = lr,
    };
    return unikprof_on_tick(&registers);
}
#else
UNIKPROF_UPCALL static inline uint64_t unikprof_xen_tick(uint64_t pc, uint64_t sp, uint64_t fp)
{
    struct unikprof_registers registers = {
        .pc = pc, .sp = sp, .fp = fp,
    };
    return unikprof_on_tick(&registers);
}
#endif

UNIKPROF_UPCALL static inline uint64_t unikprof_xen_now_ns(void *guest)
{
    return ((struct unikprof_xen *)guest)->clock_ns();
}

UNIKPROF_UPCALL static inline uint32_t unikprof_xen_vcpu(void *guest)
{
    (void)guest;
    return 0;
}

UNIKPROF_UPCALL static inline int32_t unikprof_xen_runstate(void *context, uint32_t vcpu,
                                                             struct unikprof_runstate *times)
{
    struct unikprof_xen *guest = context;
    const volatile struct vcpu_runstate_info *state = &guest->runstate;
    uint64_t entered, now;

    (void)vcpu;
    /* Xen writes it only when it schedules the vCPU again, which may be between two of these reads. */
    do {
        entered = state->state_entry_time;
        __asm__ volatile("" ::: "memory");
        times->running_ns = state->time[RUNSTATE_running];
        times->runnable_ns = state->time[RUNSTATE_runnable];
        times->blocked_ns = state->time[RUNSTATE_blocked];
        times->offline_ns = state->time[RUNSTATE_offline];
        now = guest->clock_ns();
        __asm__ volatile("" ::: "memory");
    } while (entered != state->state_entry_time);
    /* This vCPU is running now. */
    times->running_ns += now > entered ? now - entered : 0;
    return 1;
}

UNIKPROF_UPCALL static inline uint64_t unikprof_xen_running_ns(void *context, uint32_t vcpu)
{
    struct unikprof_runstate times;
    unikprof_xen_runstate(context, vcpu, &times);
    return times.running_ns;
}

UNIKPROF_UPCALL static inline uint64_t unikprof_xen_blocked_ns(void *context, uint32_t vcpu)
{
    struct unikprof_runstate times;
    unikprof_xen_runstate(context, vcpu, &times);
    return times.blocked_ns;
}

UNIKPROF_UPCALL static inline int32_t unikprof_xen_stack_bounds(void *context, uint64_t sp,
                                                                 struct unikprof_range *bounds)
{
    const struct unikprof_xen *guest = context;
    bounds->start = sp & ~(guest->stack_bytes - 1);
    bounds->end = bounds->start + guest->stack_bytes;
    return guest->stack_bytes != 0;
}

UNIKPROF_UPCALL static inline int32_t unikprof_xen_code_bounds(void *context, uint64_t pc,
                                                                struct unikprof_range *bounds)
{
    const struct unikprof_xen *guest = context;
    bounds->start = (uint64_t)guest->code_start;
    bounds->end = (uint64_t)guest->code_end;
    return pc >= bounds->start && pc < bounds->end;
}

/* Returns the functions for the agent. */
static inline struct unikprof_ops unikprof_xen_ops(struct unikprof_xen *guest)
{
    struct unikprof_ops ops = {
        .context = guest,
        .now_ns = unikprof_xen_now_ns,
        .vcpu = unikprof_xen_vcpu,
        .running_ns = unikprof_xen_running_ns,
        .stack_bounds = unikprof_xen_stack_bounds,
        .blocked_ns = unikprof_xen_blocked_ns,
        .runstate = unikprof_xen_runstate,
        .code_bounds = unikprof_xen_code_bounds,
    };
    return ops;
}

/* Returns the mapping of the guest's code. file_offset is the offset in the ELF file of the segment that
   contains code_start (readelf -lW). notes to notes_end are the ELF notes, which contain the one of
   --build-id; both NULL for none. */
static inline struct unikprof_mapping unikprof_xen_mapping(const struct unikprof_xen *guest,
                                                           uint64_t file_offset,
                                                           const char *notes, const char *notes_end)
{
    struct unikprof_mapping mapping = {
        .start = (uint64_t)guest->code_start,
        .end = (uint64_t)guest->code_end,
        .file_offset = file_offset,
    };
    /* A note has three words (length of the name, length of the description, type), followed by the name and
       the description, each padded to whole words. A build-id has type 3 and the name GNU. */
    while ((uint64_t)notes_end - (uint64_t)notes >= 16 && notes < notes_end) {
        const uint32_t *words = (const uint32_t *)(const void *)notes;
        uint64_t name = ((uint64_t)words[0] + 3) & ~(uint64_t)3;
        uint64_t length = words[1], rest = (uint64_t)(notes_end - notes) - 12;
        if (name > rest || length > rest - name) {
            break;
        }
        if (name == 4 && words[2] == 3 && words[3] == 0x554e47 && length <= 64) {
            mapping.build_id = (const uint8_t *)notes + 16;
            mapping.build_id_length = length;
            break;
        }
        notes += 12 + name + ((length + 3) & ~(uint64_t)3);
    }
    return mapping;
}

#endif /* UNIKPROF_XEN_H */
