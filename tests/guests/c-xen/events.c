#include "events.h"

#include <stddef.h>
#include <string.h>

#include "command_line.h"
#include "console.h"
#include "hypercall.h"
#include "threads.h"

#define PORTS 64
#define INTERRUPTS_ON 0x200

struct xen_shared_info shared_info __attribute__((aligned(PAGE_SIZE)));

static event_handler handlers[PORTS];
/* `events=lazy`: upcalls come by the local APIC, and their handler only ends them: the threads look for events when
 * they are about to wait. MirageOS does so. */
static bool is_lazy;

#define MSR_APIC_BASE 0x1b
#define APIC_BASE_X2 0x400
#define MSR_APIC_EOI 0x80b
#define MSR_APIC_SPURIOUS 0x80f
#define APIC_ENABLED 0x100

static void write_msr(uint32_t number, uint64_t value)
{
    __asm__ volatile("wrmsr" : : "c"(number), "a"((uint32_t)value), "d"((uint32_t)(value >> 32)) : "memory");
}

static void upcall_by_apic(void)
{
    struct xen_upcall_vector argument = { .vcpu = 0, .vector = UPCALL_VECTOR };
    uint32_t low, high;
    __asm__ volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(MSR_APIC_BASE));
    write_msr(MSR_APIC_BASE, (uint64_t)high << 32 | low | APIC_BASE_X2);
    write_msr(MSR_APIC_SPURIOUS, APIC_ENABLED | 0xff);
    check(hypercall(HYPERCALL_HVM_OP, HVMOP_SET_EVTCHN_UPCALL_VECTOR, (uint64_t)&argument, 0),
          "HVMOP_set_evtchn_upcall_vector");
}

void events_start(void)
{
    map_xen_page(XENMAPSPACE_SHARED_INFO, &shared_info);
    memset(handlers, 0, sizeof handlers);
    for (unsigned word = 0; word < 64; word++) {
        shared_info.event_mask[word] = UINT64_MAX;
    }
    is_lazy = command_line_is("events", "lazy");
    if (is_lazy) {
        upcall_by_apic();
    } else {
        hvm_set_parameter(HVM_PARAM_CALLBACK_IRQ, HVM_CALLBACK_VECTOR | UPCALL_VECTOR);
    }
}

void events_handle(uint32_t port, event_handler handler)
{
    struct xen_port argument = { port };
    if (port >= PORTS) {
        panic("a port beyond the table of handlers");
    }
    handlers[port] = handler;
    check(hypercall_event(EVTCHNOP_UNMASK, &argument), "EVTCHNOP_unmask");
}

uint32_t events_bind_virq(uint32_t virq)
{
    struct xen_bind_virq argument = { .virq = virq, .vcpu = 0 };
    check(hypercall_event(EVTCHNOP_BIND_VIRQ, &argument), "EVTCHNOP_bind_virq");
    return argument.port;
}

uint32_t events_alloc_unbound(uint16_t remote_domain)
{
    struct xen_alloc_unbound argument = { .domain = DOMID_SELF, .remote_domain = remote_domain };
    check(hypercall_event(EVTCHNOP_ALLOC_UNBOUND, &argument), "EVTCHNOP_alloc_unbound");
    return argument.port;
}

void events_send(uint32_t port)
{
    struct xen_port argument = { port };
    check(hypercall_event(EVTCHNOP_SEND, &argument), "EVTCHNOP_send");
}

void events_wait_for(uint32_t port, uint64_t until_ns)
{
    struct xen_poll argument = { .ports = &port, .port_count = 1, .timeout_ns = until_ns };
    check(hypercall_sched(SCHEDOP_POLL, &argument), "SCHEDOP_poll");
    __atomic_and_fetch(&shared_info.event_pending[port / 64], ~(1ull << port % 64), __ATOMIC_SEQ_CST);
}

/* Calls the handlers of all pending events. Each bit is cleared before its handler runs, so that an event that
 * arrives meanwhile is not lost. */
static void handle_all(const struct interrupt_frame *frame)
{
    struct xen_vcpu *vcpu = &shared_info.vcpus[0];
    uint64_t words;
    vcpu->upcall_pending = 0;
    words = __atomic_exchange_n(&vcpu->pending_words, 0, __ATOMIC_SEQ_CST);
    for (; words != 0; words &= words - 1) {
        unsigned word = (unsigned)__builtin_ctzll(words);
        uint64_t pending = shared_info.event_pending[word] & ~shared_info.event_mask[word];
        for (; pending != 0; pending &= pending - 1) {
            unsigned port = word * 64 + (unsigned)__builtin_ctzll(pending);
            __atomic_and_fetch(&shared_info.event_pending[word], ~(pending & -pending), __ATOMIC_SEQ_CST);
            if (port < PORTS && handlers[port] != NULL) {
                handlers[port](frame);
            }
        }
    }
}

/* An entry of the hypercall page: 5 bytes that load the number, 3 that call Xen, a return. */
#define SCHED_ENTRY (hypercall_page + 32 * HYPERCALL_SCHED_OP)
#define SCHED_CALLED 8

extern const uint8_t block_begin[], block_end[];

__attribute__((noinline)) void events_block(void)
{
    uint64_t operation = SCHEDOP_BLOCK;
    __asm__ volatile("block_begin: sti; nop; call *%[entry]; block_end: cli"
                     : "+D"(operation)
                     : [entry] "b"(SCHED_ENTRY), "S"(0)
                     : "rax", "rcx", "rdx", "r8", "r9", "r10", "r11", "memory");
}

/* Where to go on after an upcall in `events_block` before Xen was called: the call would miss the event. */
static uint64_t after_upcall(const struct interrupt_frame *frame)
{
    if (frame->rip >= (uint64_t)block_begin && frame->rip < (uint64_t)block_end) {
        return (uint64_t)block_end;
    }
    if (frame->rip - (uint64_t)SCHED_ENTRY < SCHED_CALLED && frame->rdi == SCHEDOP_BLOCK) {
        return (uint64_t)SCHED_ENTRY + SCHED_CALLED;
    }
    return frame->rip;
}

/* Called by interrupt_entry.S, with interrupts off. */
void on_upcall(struct interrupt_frame *frame)
{
    const uint8_t hlt = 0xf4;
    if (is_lazy) {
        write_msr(MSR_APIC_EOI, 0);
        threads_are_due();
    } else {
        handle_all(frame);
    }
    frame->rip = after_upcall(frame);
    /* In QEMU's emulation an upcall sometimes comes between `sti` and `hlt`, and the `hlt` would then miss the
     * event: execution continues after it. */
    if (*(const uint8_t *)frame->rip == hlt) {
        frame->rip++;
    }
}

void events_look(void)
{
    if (is_lazy) {
        handle_all(NULL);
    }
}

bool events_mask(void)
{
    uint64_t flags;
    __asm__ volatile("pushfq; pop %0; cli" : "=r"(flags) : : "memory");
    return (flags & INTERRUPTS_ON) != 0;
}

void events_unmask(void)
{
    /* A forced upcall: cheaper than one by the processor, and the usual way of PV guests. The timer's handler
     * then has no registers and passes NULL to the agent. Only once: events that arrive meanwhile interrupt, so
     * that deadlines closer than a handler's duration cannot keep the guest here. */
    if (shared_info.vcpus[0].upcall_pending != 0) {
        handle_all(NULL);
    }
    __asm__ volatile("sti" : : : "memory");
}

void events_restore(bool were_unmasked)
{
    if (were_unmasked) {
        events_unmask();
    }
}
