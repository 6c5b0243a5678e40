#include "netfront.h"

#include <string.h>

#include "clock.h"
#include "console.h"
#include "events.h"
#include "grants.h"
#include "threads.h"
#include "xenstore.h"

#define FRONTEND "device/vif/0"
#define BUFFERS 32 /* a divisor of the number of slots, so that a slot always has the same buffer */
#define PATIENCE_NS 10000000000
#define LOOK_AGAIN_NS 2000000

volatile bool netfront_event;

static struct xen_tx_ring tx __attribute__((aligned(PAGE_SIZE)));
static struct xen_rx_ring rx __attribute__((aligned(PAGE_SIZE)));
static uint8_t tx_pages[BUFFERS][PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));
static uint8_t rx_pages[BUFFERS][PAGE_SIZE] __attribute__((aligned(PAGE_SIZE)));
static uint32_t tx_grants[BUFFERS], rx_grants[BUFFERS];

static bool tx_busy[BUFFERS];
static uint32_t tx_responses, rx_responses; /* consumed */
static uint32_t port;
static uint8_t hardware_address[6];
/* The backend has violated the ring's protocol: nothing more is read from it. */
static bool is_broken;

static void give_up(const char *why)
{
    say("c-xen: the network device is given up: ");
    say(why);
    say("\n");
    is_broken = true;
}

static void on_event(const struct interrupt_frame *frame)
{
    (void)frame;
    netfront_event = true;
    threads_are_due();
}

/* --- Connecting --- */

/* Waits for the backend's state. Polling needs no watches, and happens only at boot. */
static void expect_backend(const char *backend, uint32_t state)
{
    uint64_t until_ns = clock_now_ns() + PATIENCE_NS;
    while (xenstore_read_number(backend, "state") != state) {
        if (clock_now_ns() > until_ns) {
            panic("the network's backend does not connect");
        }
        events_wait_for(port, clock_now_ns() + LOOK_AGAIN_NS);
    }
}

static int digit(char text)
{
    return text >= '0' && text <= '9'   ? text - '0'
           : text >= 'a' && text <= 'f' ? text - 'a' + 10
           : text >= 'A' && text <= 'F' ? text - 'A' + 10
                                        : -1;
}

static void read_hardware_address(void)
{
    char text[18];
    xenstore_read(FRONTEND, "mac", text, sizeof text);
    for (unsigned index = 0; index < 6; index++) {
        int high = digit(text[3 * index]), low = high < 0 ? -1 : digit(text[3 * index + 1]);
        if (low < 0) {
            panic("the network device has no hardware address");
        }
        hardware_address[index] = (uint8_t)(high << 4 | low);
    }
}

/* Grants a receive buffer to the backend. The buffer's number is that of its slot. */
static void post(uint32_t slot)
{
    uint16_t id = slot % BUFFERS;
    rx.slots[slot % NET_RING_SLOTS].request.id = id;
    rx.slots[slot % NET_RING_SLOTS].request.grant = rx_grants[id];
}

/* Publishes requests up to `producer`, and notifies the backend if it has requested that. */
static void publish(struct xen_ring *ring, uint32_t producer)
{
    uint32_t before = ring->request_producer;
    __atomic_store_n(&ring->request_producer, producer, __ATOMIC_SEQ_CST);
    if (producer - ring->request_event < producer - before) {
        events_send(port);
    }
}

void netfront_start(void)
{
    char backend[128];
    uint16_t domain = (uint16_t)xenstore_read_number(FRONTEND, "backend-id");
    if (!xenstore_read(FRONTEND, "backend", backend, sizeof backend)) {
        panic("there is no network device");
    }
    read_hardware_address();
    memset(&tx, 0, sizeof tx);
    memset(&rx, 0, sizeof rx);
    memset(tx_busy, 0, sizeof tx_busy);
    tx_responses = rx_responses = 0;
    port = events_alloc_unbound(domain);
    xenstore_write_number(FRONTEND, "state", XENBUS_INITIALISING);
    expect_backend(backend, XENBUS_INIT_WAIT);

    for (uint32_t buffer = 0; buffer < BUFFERS; buffer++) {
        tx_grants[buffer] = grant(domain, tx_pages[buffer], true);
        rx_grants[buffer] = grant(domain, rx_pages[buffer], false);
        post(buffer);
    }
    tx.head.request_event = tx.head.response_event = 1;
    rx.head.request_event = rx.head.response_event = 1;
    rx.head.request_producer = BUFFERS;

    xenstore_write_number(FRONTEND, "tx-ring-ref", grant(domain, &tx, false));
    xenstore_write_number(FRONTEND, "rx-ring-ref", grant(domain, &rx, false));
    xenstore_write_number(FRONTEND, "event-channel", port);
    xenstore_write_number(FRONTEND, "request-rx-copy", 1);
    xenstore_write_number(FRONTEND, "feature-rx-notify", 1);
    /* Only whole frames with computed checksums: the agent's TCP verifies them. */
    xenstore_write_number(FRONTEND, "feature-sg", 0);
    xenstore_write_number(FRONTEND, "feature-no-csum-offload", 1);
    xenstore_write_number(FRONTEND, "state", XENBUS_CONNECTED);
    expect_backend(backend, XENBUS_CONNECTED);
    events_handle(port, on_event);
    events_send(port);
}

const uint8_t *netfront_hardware_address(void)
{
    return hardware_address;
}

/* --- Frames --- */

/* Whether there is a response after the `consumed` ones. If not, requests an event for the next one. */
static bool has_response(struct xen_ring *ring, uint32_t consumed)
{
    uint32_t waiting = __atomic_load_n(&ring->response_producer, __ATOMIC_SEQ_CST) - consumed;
    if (waiting == 0) {
        __atomic_store_n(&ring->response_event, consumed + 1, __ATOMIC_SEQ_CST);
        waiting = __atomic_load_n(&ring->response_producer, __ATOMIC_SEQ_CST) - consumed;
    }
    if (waiting > ring->request_producer - consumed) {
        give_up("more responses than requests");
    }
    return waiting != 0 && !is_broken;
}

size_t netfront_receive(uint8_t frame[FRAME_SIZE])
{
    while (!is_broken && has_response(&rx.head, rx_responses)) {
        uint16_t expected = rx_responses % BUFFERS;
        volatile struct xen_rx_response *slot = &rx.slots[rx_responses % NET_RING_SLOTS].response;
        /* Read only once: the backend may change it. */
        uint16_t id = slot->id, offset = slot->offset, flags = slot->flags;
        int16_t status = slot->status;
        size_t length = status > 0 ? (size_t)status : 0;
        if (id != expected || offset + length > PAGE_SIZE) {
            give_up("a response to nothing, or past its page");
            return 0;
        }
        if ((flags & (NET_RX_MORE_DATA | NET_RX_EXTRA_INFO)) != 0) {
            give_up("a frame in pieces");
            return 0;
        }
        if (length <= FRAME_SIZE) {
            memcpy(frame, rx_pages[id] + offset, length);
        }
        rx_responses++;
        post(rx.head.request_producer);
        publish(&rx.head, rx.head.request_producer + 1);
        if (length > 0 && length <= FRAME_SIZE) {
            return length;
        }
    }
    return 0;
}

static uint16_t free_buffer(void)
{
    uint16_t id = 0;
    while (id < BUFFERS && tx_busy[id]) {
        id++;
    }
    return id;
}

bool netfront_has_room(void)
{
    while (!is_broken && has_response(&tx.head, tx_responses)) {
        uint16_t id = tx.slots[tx_responses % NET_RING_SLOTS].response.id;
        if (id >= BUFFERS || !tx_busy[id]) {
            give_up("a frame sent that was none");
            return false;
        }
        tx_busy[id] = false;
        tx_responses++;
    }
    return !is_broken && free_buffer() < BUFFERS;
}

void netfront_send(const uint8_t *frame, size_t length)
{
    uint32_t producer = tx.head.request_producer;
    volatile struct xen_tx_request *slot = &tx.slots[producer % NET_RING_SLOTS].request;
    uint16_t id = free_buffer();
    tx_busy[id] = true;
    memcpy(tx_pages[id], frame, length);
    slot->grant = tx_grants[id];
    slot->offset = 0;
    slot->flags = 0;
    slot->id = id;
    slot->size = (uint16_t)length;
    publish(&tx.head, producer + 1);
}
