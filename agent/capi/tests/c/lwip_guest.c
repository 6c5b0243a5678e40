/* A guest whose clients come over lwIP: unikprof_lwip.h, on a fake lwIP that records its calls. */
#include <unikprof_lwip.h>

#include "guest.h"

#define PIECE 7

static uint64_t timer_ns;
static int timers_set;

/* --- lwIP's side --- */

static struct tcp_pcb listener, pcbs[UNIKPROF_SESSIONS + 1];
static sys_timeout_handler timeout;
static u32_t timeout_ms;
static int pbufs_there;
/* Nonzero in a callback of lwIP, while it works on the connection. */
static int is_inside;

void lwip_failed(const char *message)
{
    fprintf(stderr, "%s\n", message);
    exit(1);
}

void sys_timeout(u32_t wait_ms, sys_timeout_handler handler, void *argument)
{
    CHECK(timeout == NULL && argument == NULL);
    timeout = handler;
    timeout_ms = wait_ms;
}

void sys_untimeout(sys_timeout_handler handler, void *argument)
{
    CHECK(argument == NULL && (timeout == NULL || timeout == handler));
    timeout = NULL;
}

void pbuf_cat(struct pbuf *head, struct pbuf *tail)
{
    for (; head->next != NULL; head = head->next) {
        head->tot_len += tail->tot_len;
    }
    head->tot_len += tail->tot_len;
    head->next = tail;
}

u8_t pbuf_free(struct pbuf *first)
{
    while (first != NULL && --first->ref == 0) {
        struct pbuf *next = first->next;
        free(first);
        pbufs_there--;
        first = next;
    }
    return 0;
}

u8_t pbuf_header(struct pbuf *buffer, s16_t more)
{
    CHECK(more < 0 && -more < buffer->len);
    buffer->payload = (char *)buffer->payload - more;
    buffer->len = (u16_t)(buffer->len + more);
    buffer->tot_len = (u16_t)(buffer->tot_len + more);
    return 0;
}

void pbuf_ref(struct pbuf *buffer)
{
    buffer->ref++;
}

struct tcp_pcb *tcp_new(void)
{
    return &listener;
}

err_t tcp_bind(struct tcp_pcb *pcb, void *address, u16_t port)
{
    CHECK(address == NULL);
    pcb->bound = port;
    return ERR_OK;
}

struct tcp_pcb *tcp_listen(struct tcp_pcb *pcb)
{
    pcb->is_listening = 1;
    return pcb;
}

void tcp_accept(struct tcp_pcb *pcb, err_t (*accept)(void *, struct tcp_pcb *, err_t))
{
    pcb->accept = accept;
}

void tcp_arg(struct tcp_pcb *pcb, void *argument)
{
    pcb->argument = argument;
}

void tcp_recv(struct tcp_pcb *pcb, err_t (*recv)(void *, struct tcp_pcb *, struct pbuf *, err_t))
{
    pcb->recv = recv;
}

void tcp_sent(struct tcp_pcb *pcb, err_t (*sent)(void *, struct tcp_pcb *, u16_t))
{
    pcb->sent = sent;
}

void tcp_err(struct tcp_pcb *pcb, void (*err)(void *, err_t))
{
    pcb->err = err;
}

static int is_open(const struct tcp_pcb *pcb)
{
    return !pcb->is_closed && !pcb->is_aborted;
}

void tcp_recved(struct tcp_pcb *pcb, u16_t length)
{
    CHECK(is_open(pcb));
    pcb->taken += length;
}

err_t tcp_write(struct tcp_pcb *pcb, const void *bytes, u16_t length, u8_t flags)
{
    CHECK(is_open(pcb) && bytes != NULL && length > 0 && flags == TCP_WRITE_FLAG_COPY);
    if (pcb->next_write != ERR_OK) {
        return pcb->next_write;
    }
    CHECK(length <= pcb->snd_buf && pcb->snd_queuelen < TCP_SND_QUEUELEN);
    pcb->snd_buf = (u16_t)(pcb->snd_buf - length);
    pcb->snd_queuelen++;
    pcb->written += length;
    return ERR_OK;
}

err_t tcp_output(struct tcp_pcb *pcb)
{
    CHECK(is_open(pcb));
    pcb->put_out = pcb->written;
    return ERR_OK;
}

err_t tcp_close(struct tcp_pcb *pcb)
{
    CHECK(is_open(pcb) && !is_inside);
    if (pcb->next_close == ERR_OK) {
        pcb->is_closed = 1;
    }
    return pcb->next_close;
}

void tcp_abort(struct tcp_pcb *pcb)
{
    CHECK(is_open(pcb) && !is_inside);
    pcb->is_aborted = 1;
    if (pcb->err != NULL) {
        pcb->err(pcb->argument, ERR_MEM);
    }
}

/* --- The network and time --- */

static void acknowledge(struct tcp_pcb *pcb)
{
    u16_t length = (u16_t)(3000 - pcb->snd_buf);
    pcb->snd_buf = 3000;
    pcb->snd_queuelen = 0;
    if (length > 0 && pcb->sent != NULL) {
        is_inside = 1;
        CHECK(pcb->sent(pcb->argument, pcb, length) == ERR_OK);
        is_inside = 0;
    }
}

static struct tcp_pcb *connect_one(struct tcp_pcb *pcb)
{
    memset(pcb, 0, sizeof *pcb);
    pcb->snd_buf = 3000;
    CHECK(listener.accept(listener.argument, pcb, ERR_OK) == ERR_OK);
    return pcb;
}

static struct pbuf *buffer_of(const unsigned char *bytes, u16_t length)
{
    struct pbuf *buffer = malloc(sizeof *buffer + length);
    CHECK(buffer != NULL);
    memset(buffer, 0, sizeof *buffer);
    buffer->payload = buffer + 1;
    buffer->len = buffer->tot_len = length;
    buffer->ref = 1;
    memcpy(buffer->payload, bytes, length);
    pbufs_there++;
    return buffer;
}

/* The bytes come in buffers of a few bytes, in chains of up to three. */
static void receive(struct tcp_pcb *pcb, const unsigned char *bytes, unsigned length)
{
    while (length > 0) {
        struct pbuf *chain = NULL;
        for (int link = 0; link < 3 && length > 0; link++) {
            u16_t piece = length < PIECE ? (u16_t)length : PIECE;
            struct pbuf *buffer = buffer_of(bytes, piece);
            if (chain == NULL) {
                chain = buffer;
            } else {
                pbuf_cat(chain, buffer);
            }
            bytes += piece;
            length -= piece;
        }
        is_inside = 1;
        CHECK(pcb->recv(pcb->argument, pcb, chain, ERR_OK) == ERR_OK);
        is_inside = 0;
    }
}

static void hang_up(struct tcp_pcb *pcb)
{
    is_inside = 1;
    CHECK(pcb->recv(pcb->argument, pcb, NULL, ERR_OK) == ERR_OK);
    is_inside = 0;
}

/* Advances time until no timeout is due. */
static void turn(void)
{
    for (int turns = 0; timeout != NULL && timeout_ms == 0; turns++) {
        sys_timeout_handler handler = timeout;
        CHECK(turns < 100);
        timeout = NULL;
        handler(NULL);
    }
}

static void set_timer(uint64_t deadline_ns)
{
    timer_ns = deadline_ns;
    timers_set++;
}

/* --- The checks --- */

static void a_recording_begins(void)
{
    struct tcp_pcb *pcb = connect_one(&pcbs[0]);
    int set = timers_set;

    CHECK(pcb->no_delay);
    receive(pcb, client_start, client_start_length);
    CHECK(pcb->taken == 0);
    turn();
    CHECK(pcb->taken == client_start_length && pbufs_there == 0);
    CHECK(pcb->written > 0 && pcb->put_out == pcb->written);
    /* The sampler has a deadline before any upcall. */
    CHECK(timers_set > set && timer_ns != UNIKPROF_NO_DEADLINE);
    /* The agent also has a deadline, to end a silent client's session. */
    CHECK(timeout != NULL && timeout_ms > 0 && timeout_ms <= 60001);

    receive(pcb, client_stop, client_stop_length);
    turn();
    acknowledge(pcb);
    turn();
    hang_up(pcb);
    CHECK(!pcb->is_closed);
    turn();
    CHECK(pcb->is_closed && pbufs_there == 0);
}

/* Bytes that were taken out of the agent without room to send them would be lost. */
static void an_answer_waits_for_room(void)
{
    struct tcp_pcb *pcb = connect_one(&pcbs[0]);

    pcb->snd_buf = 10;
    receive(pcb, client_start, client_start_length);
    turn();
    CHECK(pcb->written == 0 && is_open(pcb));
    acknowledge(pcb);
    turn();
    CHECK(pcb->written > 0);

    pcb->snd_queuelen = TCP_SND_QUEUELEN;
    pcb->written = 0;
    receive(pcb, client_stop, client_stop_length);
    turn();
    CHECK(pcb->written == 0);
    acknowledge(pcb);
    turn();
    CHECK(pcb->written > 0);
    hang_up(pcb);
    turn();
    CHECK(pcb->is_closed);
}

/* If lwIP has no memory, bytes are lost, and the connection must end. */
static void a_write_that_fails_ends_the_connection(void)
{
    struct tcp_pcb *pcb = connect_one(&pcbs[0]);

    pcb->next_write = ERR_MEM;
    receive(pcb, client_start, client_start_length);
    turn();
    CHECK(pcb->is_aborted && pbufs_there == 0);

    pcb = connect_one(&pcbs[0]);
    pcb->next_close = ERR_MEM;
    hang_up(pcb);
    turn();
    CHECK(pcb->is_aborted);
}

static void a_connection_that_is_lost_frees_its_place(void)
{
    for (int times = 0; times < 3 * UNIKPROF_SESSIONS; times++) {
        struct tcp_pcb *pcb = connect_one(&pcbs[0]);
        receive(pcb, client_start, 5);
        is_inside = 1;
        pcb->err(pcb->argument, ERR_MEM);
        is_inside = 0;
        pcb->is_aborted = 1;
        turn();
        CHECK(pbufs_there == 0 && pcb->written == 0);
    }
}

static void one_client_too_many_is_refused(void)
{
    for (int index = 0; index < UNIKPROF_SESSIONS; index++) {
        connect_one(&pcbs[index]);
        turn();
        CHECK(is_open(&pcbs[index]));
    }
    connect_one(&pcbs[UNIKPROF_SESSIONS]);
    CHECK(pcbs[UNIKPROF_SESSIONS].written > 0 && pcbs[UNIKPROF_SESSIONS].is_closed);
    for (int index = 0; index < UNIKPROF_SESSIONS; index++) {
        hang_up(&pcbs[index]);
    }
    turn();
    CHECK(pcbs[0].is_closed && pcbs[UNIKPROF_SESSIONS - 1].is_closed);
}

int main(void)
{
    static struct unikprof_lwip server = { 7777, guest_now_ns, stack, set_timer };

    guest_interrupted();
    CHECK_CODE(start(), UNIKPROF_OK);
    unikprof_lwip_start(&server);
    CHECK(listener.bound == 7777 && listener.is_listening);
    a_recording_begins();
    an_answer_waits_for_room();
    a_write_that_fails_ends_the_connection();
    a_connection_that_is_lost_frees_its_place();
    one_client_too_many_is_refused();
    return passed();
}
