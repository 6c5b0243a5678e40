/* The parts of Xen's ABI for x86-64 guests that this kernel needs, written from the layouts in Xen's public
 * headers, each named at its structure. Fields that Xen or another domain writes are volatile: each is read
 * once, checked, and then used. */
#ifndef XEN_H
#define XEN_H

#include <stddef.h>
#include <stdint.h>

#define PAGE_SIZE 4096
#define DOMID_SELF 0x7ff0

/* --- xen.h --- */

#define HYPERCALL_MEMORY_OP 12
#define HYPERCALL_SET_TIMER_OP 15
#define HYPERCALL_GRANT_TABLE_OP 20
#define HYPERCALL_VCPU_OP 24
#define HYPERCALL_SCHED_OP 29
#define HYPERCALL_EVENT_CHANNEL_OP 32
#define HYPERCALL_HVM_OP 34

#define VIRQ_TIMER 0

/* Its version is odd while Xen writes it. */
struct xen_time {
    volatile uint32_t version;
    uint32_t pad;
    volatile uint64_t tsc_timestamp;
    volatile uint64_t system_time_ns;
    volatile uint32_t tsc_to_system_mul;
    volatile int8_t tsc_shift;
    volatile uint8_t flags;
    uint8_t pad_2[2];
};
_Static_assert(sizeof(struct xen_time) == 32, "struct vcpu_time_info");

struct xen_vcpu {
    volatile uint8_t upcall_pending;
    volatile uint8_t upcall_mask; /* for PV guests; a PVH guest uses its interrupt flag */
    uint8_t pad[6];
    volatile uint64_t pending_words; /* a bit for each word of event_pending with pending events */
    uint64_t pad_2[2];
    struct xen_time time;
};
_Static_assert(sizeof(struct xen_vcpu) == 64, "struct vcpu_info");

struct xen_shared_info {
    struct xen_vcpu vcpus[32];
    volatile uint64_t event_pending[64];
    volatile uint64_t event_mask[64];
    volatile uint32_t wall_clock_version;
    volatile uint32_t wall_clock_seconds; /* at the moment when system time was 0 */
    volatile uint32_t wall_clock_ns;
    volatile uint32_t wall_clock_seconds_high;
    uint8_t rest[PAGE_SIZE - 3088]; /* nothing else may be in the page, which Xen replaces */
};
_Static_assert(sizeof(struct xen_shared_info) == PAGE_SIZE, "one page");
_Static_assert(offsetof(struct xen_shared_info, event_pending) == 2048, "struct shared_info");
_Static_assert(offsetof(struct xen_shared_info, wall_clock_version) == 3072, "struct shared_info");

/* --- vcpu.h --- */

#define VCPUOP_REGISTER_RUNSTATE 5

enum { RUNSTATE_RUNNING, RUNSTATE_RUNNABLE, RUNSTATE_BLOCKED, RUNSTATE_OFFLINE, RUNSTATES };

struct xen_runstate {
    volatile uint32_t state;
    uint32_t pad;
    volatile uint64_t entered_ns; /* system time at which the state began */
    volatile uint64_t time_ns[RUNSTATES]; /* until entered_ns */
};
_Static_assert(sizeof(struct xen_runstate) == 48, "struct vcpu_runstate_info");

/* --- sched.h --- */

#define SCHEDOP_BLOCK 1
#define SCHEDOP_SHUTDOWN 2
#define SCHEDOP_POLL 3
#define SHUTDOWN_SUSPEND 2
#define SHUTDOWN_CRASH 3

struct xen_shutdown {
    uint32_t reason;
};

struct xen_poll {
    const uint32_t *ports;
    uint32_t port_count;
    uint32_t pad;
    uint64_t timeout_ns; /* system time, 0 for none */
};

/* --- event_channel.h --- */

#define EVTCHNOP_BIND_VIRQ 1
#define EVTCHNOP_SEND 4
#define EVTCHNOP_ALLOC_UNBOUND 6
#define EVTCHNOP_UNMASK 9

struct xen_bind_virq {
    uint32_t virq;
    uint32_t vcpu;
    uint32_t port; /* answered */
};

struct xen_alloc_unbound {
    uint16_t domain;
    uint16_t remote_domain;
    uint32_t port; /* answered */
};

struct xen_port {
    uint32_t port;
};

/* --- memory.h --- */

#define XENMEM_ADD_TO_PHYSMAP 7
#define XENMAPSPACE_SHARED_INFO 0
#define XENMAPSPACE_GRANT_TABLE 1

struct xen_add_to_physmap {
    uint16_t domain;
    uint16_t size;
    uint32_t space;
    uint64_t index;
    uint64_t frame;
};

/* --- hvm/hvm_op.h, hvm/params.h --- */

#define HVMOP_SET_PARAM 0
#define HVMOP_GET_PARAM 1
#define HVMOP_SET_EVTCHN_UPCALL_VECTOR 23

struct xen_upcall_vector {
    uint32_t vcpu;
    uint8_t vector;
};
#define HVM_PARAM_CALLBACK_IRQ 0
#define HVM_PARAM_STORE_PFN 1
#define HVM_PARAM_STORE_EVTCHN 2
#define HVM_PARAM_CONSOLE_PFN 17
#define HVM_PARAM_CONSOLE_EVTCHN 18
/* The upper byte of HVM_PARAM_CALLBACK_IRQ: the lower one is a vector, which needs no end of interrupt. */
#define HVM_CALLBACK_VECTOR (2ull << 56)

struct xen_hvm_param {
    uint16_t domain;
    uint16_t pad;
    uint32_t index;
    uint64_t value;
};

/* --- io/console.h --- */

struct xen_console_ring {
    volatile char input[1024];
    volatile char output[2048];
    volatile uint32_t input_consumer;
    volatile uint32_t input_producer;
    volatile uint32_t output_consumer;
    volatile uint32_t output_producer;
};
_Static_assert(offsetof(struct xen_console_ring, output_producer) == 3084, "struct xencons_interface");

/* --- grant_table.h, version 1 --- */

#define GNTTABOP_SET_VERSION 8
#define GRANT_PERMIT_ACCESS 1
#define GRANT_READ_ONLY 4
#define GRANTS_RESERVED 8 /* the tools' */
#define GRANTS_PER_PAGE 512

struct xen_set_version {
    uint32_t version;
};

struct xen_grant {
    volatile uint16_t flags;
    volatile uint16_t domain;
    volatile uint32_t frame;
};
_Static_assert(sizeof(struct xen_grant) * GRANTS_PER_PAGE == PAGE_SIZE, "grant_entry_v1");

/* --- io/ring.h: the head of a split driver's ring; the entries follow it --- */

struct xen_ring {
    volatile uint32_t request_producer; /* ours */
    volatile uint32_t request_event; /* the backend's: notify when the producer passes it */
    volatile uint32_t response_producer; /* the backend's */
    volatile uint32_t response_event; /* ours */
    uint8_t pad[48];
};
_Static_assert(sizeof(struct xen_ring) == 64, "struct __name##_sring");

/* --- io/netif.h --- */

#define NET_RING_SLOTS 256

struct xen_tx_request {
    uint32_t grant;
    uint16_t offset;
    uint16_t flags;
    uint16_t id;
    uint16_t size;
};
_Static_assert(sizeof(struct xen_tx_request) == 12, "struct netif_tx_request");

struct xen_tx_response {
    uint16_t id;
    int16_t status;
};

struct xen_tx_ring {
    struct xen_ring head;
    union {
        volatile struct xen_tx_request request;
        volatile struct xen_tx_response response;
    } slots[NET_RING_SLOTS];
};
_Static_assert(sizeof(struct xen_tx_ring) <= PAGE_SIZE, "a ring is one page");

struct xen_rx_request {
    uint16_t id;
    uint16_t pad;
    uint32_t grant;
};

#define NET_RX_MORE_DATA 4
#define NET_RX_EXTRA_INFO 8

struct xen_rx_response {
    uint16_t id;
    uint16_t offset;
    uint16_t flags;
    int16_t status; /* bytes, or below 0: an error */
};
_Static_assert(sizeof(struct xen_rx_response) == 8, "struct netif_rx_response");

struct xen_rx_ring {
    struct xen_ring head;
    union {
        volatile struct xen_rx_request request;
        volatile struct xen_rx_response response;
    } slots[NET_RING_SLOTS];
};
_Static_assert(sizeof(struct xen_rx_ring) <= PAGE_SIZE, "a ring is one page");

/* --- io/xenbus.h --- */

#define XENBUS_INITIALISING 1
#define XENBUS_INIT_WAIT 2
#define XENBUS_CONNECTED 4

/* --- io/xs_wire.h --- */

#define XS_READ 2
#define XS_WRITE 11
#define XS_WATCH_EVENT 15
#define XS_ERROR 16
#define XS_RING 1024
#define XS_PAYLOAD_MAX 4096

struct xen_store_ring {
    volatile uint8_t request[XS_RING];
    volatile uint8_t reply[XS_RING];
    volatile uint32_t request_consumer;
    volatile uint32_t request_producer;
    volatile uint32_t reply_consumer;
    volatile uint32_t reply_producer;
};

struct xen_store_head {
    uint32_t kind;
    uint32_t request;
    uint32_t transaction;
    uint32_t length;
};

/* --- arch-x86/hvm/start_info.h --- */

#define START_INFO_MAGIC 0x336ec578

struct xen_start_info {
    uint32_t magic;
    uint32_t version;
    uint32_t flags;
    uint32_t module_count;
    uint64_t modules;
    uint64_t command_line;
};

#endif
