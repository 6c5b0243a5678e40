#include "xenstore.h"

#include <string.h>

#include "clock.h"
#include "console.h"
#include "events.h"
#include "hypercall.h"

#define PATH_ROOM 256
/* The maximum time for the host's answer. */
#define PATIENCE_NS 10000000000

static struct xen_store_ring *ring;
static uint32_t port;

void xenstore_start(void)
{
    ring = (struct xen_store_ring *)(hvm_parameter(HVM_PARAM_STORE_PFN) * PAGE_SIZE);
    port = (uint32_t)hvm_parameter(HVM_PARAM_STORE_EVTCHN);
    if (ring == NULL || port == 0) {
        panic("there is no xenstore");
    }
}

static void wait(uint64_t since_ns)
{
    if (clock_now_ns() - since_ns > PATIENCE_NS) {
        panic("xenstore does not answer");
    }
    events_wait_for(port, clock_now_ns() + PATIENCE_NS);
}

static void send(const void *bytes, size_t length)
{
    const uint8_t *from = bytes;
    uint64_t since_ns = clock_now_ns();
    while (length > 0) {
        uint32_t producer = ring->request_producer;
        if (producer - ring->request_consumer >= XS_RING) {
            wait(since_ns);
            continue;
        }
        ring->request[producer % XS_RING] = *from++;
        length--;
        __atomic_store_n(&ring->request_producer, producer + 1, __ATOMIC_SEQ_CST);
    }
}

/* Reads bytes from the ring; those that do not fit `room` are dropped. */
static void receive(void *bytes, size_t length, size_t room)
{
    uint8_t *to = bytes;
    uint64_t since_ns = clock_now_ns();
    for (size_t taken = 0; taken < length;) {
        uint32_t consumer = ring->reply_consumer;
        if (__atomic_load_n(&ring->reply_producer, __ATOMIC_SEQ_CST) == consumer) {
            events_send(port);
            wait(since_ns);
            continue;
        }
        if (taken < room) {
            to[taken] = ring->reply[consumer % XS_RING];
        }
        taken++;
        __atomic_store_n(&ring->reply_consumer, consumer + 1, __ATOMIC_SEQ_CST);
    }
}

static size_t append(char *path, size_t length, const char *text)
{
    while (*text != 0 && length < PATH_ROOM - 1) {
        path[length++] = *text++;
    }
    return length;
}

/* Sends a request; returns the length of the answer's text, of which at most `room` bytes are stored; -1 on
 * error. */
static long ask(uint32_t kind, const char *folder, const char *name, const char *value, size_t value_length,
                char *answer, size_t room)
{
    static uint32_t last_request;
    struct xen_store_head head = { .kind = kind, .request = ++last_request };
    char path[PATH_ROOM];
    size_t length = 0;
    if (folder != NULL) {
        length = append(path, append(path, 0, folder), "/");
    }
    length = append(path, length, name);
    path[length++] = 0;
    head.length = (uint32_t)(length + value_length);
    send(&head, sizeof head);
    send(path, length);
    send(value, value_length);
    events_send(port);
    for (;;) {
        receive(&head, sizeof head, sizeof head);
        if (head.length > XS_PAYLOAD_MAX) {
            panic("xenstore's answer is too long");
        }
        receive(answer, head.length, room);
        /* A watch event is not an answer; this kernel has no watches. */
        if (head.kind != XS_WATCH_EVENT && head.request == last_request) {
            return head.kind == kind ? (long)head.length : -1;
        }
    }
}

bool xenstore_read(const char *folder, const char *name, char *text, size_t room)
{
    long length = ask(XS_READ, folder, name, NULL, 0, text, room - 1);
    bool fits = length >= 0 && (size_t)length < room;
    text[fits ? length : 0] = 0;
    return fits;
}

uint32_t xenstore_read_number(const char *folder, const char *name)
{
    char text[16];
    uint32_t number = 0;
    xenstore_read(folder, name, text, sizeof text);
    for (const char *digit = text; *digit >= '0' && *digit <= '9'; digit++) {
        number = number * 10 + (uint32_t)(*digit - '0');
    }
    return number;
}

void xenstore_write(const char *folder, const char *name, const char *text)
{
    char ignored[16];
    if (ask(XS_WRITE, folder, name, text, strlen(text), ignored, sizeof ignored) < 0) {
        panic("xenstore refuses a value");
    }
}

void xenstore_write_number(const char *folder, const char *name, uint32_t number)
{
    char text[16];
    size_t begin = sizeof text - 1;
    text[begin] = 0;
    do {
        text[--begin] = (char)('0' + number % 10);
        number /= 10;
    } while (number > 0);
    xenstore_write(folder, name, text + begin);
}
