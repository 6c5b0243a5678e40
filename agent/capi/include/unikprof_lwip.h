/*
 * Serves unikprof's clients over lwIP's raw TCP, for guests that have lwIP (1.3 to 2.2, with its callbacks
 * and timeouts: LWIP_CALLBACK_API, LWIP_TIMERS; 1.3 has timeouts with its thread alone).
 *
 * Include it in one source file. After unikprof_init, on the thread that runs lwIP's core:
 *
 *   tcpip_callback(unikprof_lwip_start, &server);      with lwIP's thread (NO_SYS = 0)
 *   unikprof_lwip_start(&server);                      without
 *
 * From then on everything runs on that thread. While the guest's own code keeps that thread busy, no client
 * is served; samples are still taken.
 */

#ifndef UNIKPROF_LWIP_H
#define UNIKPROF_LWIP_H

#include <lwip/init.h>
#include <lwip/opt.h>
#include <lwip/pbuf.h>
#include <lwip/sys.h>
#include <lwip/tcp.h>
#if LWIP_VERSION_MAJOR >= 2
#include <lwip/timeouts.h>
#elif LWIP_VERSION_MINOR >= 4
#include <lwip/timers.h>
#endif
#include <unikprof.h>

/* The server's settings. It must not move. */
struct unikprof_lwip {
    /* The TCP port. */
    uint16_t port;
    /* The clock of struct unikprof_ops, with its context. */
    uint64_t (*now_ns)(void *context);
    void *context;
    /* Programs the timer for the sampler's deadline, or the guest's own if that is earlier;
       UNIKPROF_NO_DEADLINE: the sampler has none. Called after each poll, since a recording may have begun.
       NULL for a guest with kick. */
    void (*set_timer)(uint64_t deadline_ns);
};

/* The maximum length of a write to lwIP, in bytes. */
#define UNIKPROF_LWIP_PIECE 512

/* The maximum length of an lwIP timeout that is used here, in ns. */
#define UNIKPROF_LWIP_LONGEST_WAIT_NS UINT64_C(60000000000)

struct unikprof_lwip_client {
    /* NULL if this entry is free. */
    struct tcp_pcb *pcb;
    int32_t connection;
    /* Received and not yet passed in; limited by the TCP window. */
    struct pbuf *input;
    /* Nonzero after the peer has closed its side. */
    int ended;
};

static struct unikprof_lwip_client unikprof_lwip_clients[UNIKPROF_SESSIONS];

static const struct unikprof_lwip *unikprof_lwip_server;

static void unikprof_lwip_turn(void *unused);

/* lwIP's callbacks only note what has happened, because a connection must not be closed inside its own
   callback. A timeout of 0 then does the work. */
static void unikprof_lwip_turn_in(uint32_t wait_ms)
{
    sys_untimeout(unikprof_lwip_turn, NULL);
    sys_timeout(wait_ms, unikprof_lwip_turn, NULL);
}

static void unikprof_lwip_forget(struct unikprof_lwip_client *client)
{
    unikprof_connection_close(client->connection);
    if (client->input != NULL) {
        pbuf_free(client->input);
    }
    client->pcb = NULL;
    client->input = NULL;
}

/* Closes a connection: in order after the written bytes, or by a reset if bytes were lost. */
static void unikprof_lwip_end(struct unikprof_lwip_client *client, int in_order)
{
    struct tcp_pcb *pcb = client->pcb;
    /* Drops input that was not passed in; lwIP counts it as received. */
    unikprof_lwip_forget(client);
    tcp_arg(pcb, NULL);
    tcp_recv(pcb, NULL);
    tcp_sent(pcb, NULL);
    tcp_err(pcb, NULL);
    if (!in_order || tcp_close(pcb) != ERR_OK) {
        tcp_abort(pcb);
    }
}

static err_t unikprof_lwip_received(void *argument, struct tcp_pcb *pcb, struct pbuf *bytes, err_t error)
{
    struct unikprof_lwip_client *client = argument;
    (void)pcb;
    (void)error;
    if (bytes == NULL) {
        client->ended = 1;
    } else if (client->input == NULL) {
        client->input = bytes;
    } else {
        pbuf_cat(client->input, bytes);
    }
    unikprof_lwip_turn_in(0);
    return ERR_OK;
}

static err_t unikprof_lwip_sent(void *argument, struct tcp_pcb *pcb, u16_t length)
{
    (void)argument;
    (void)pcb;
    (void)length;
    unikprof_lwip_turn_in(0);
    return ERR_OK;
}

/* lwIP has already freed the connection. */
static void unikprof_lwip_gone(void *argument, err_t error)
{
    (void)error;
    unikprof_lwip_forget(argument);
}

static err_t unikprof_lwip_accepted(void *argument, struct tcp_pcb *pcb, err_t error)
{
    char answer[128];
    int64_t length;
    int32_t connection;
    size_t index;

    (void)argument;
    if (pcb == NULL || error != ERR_OK) {
        return ERR_VAL;
    }
    connection = unikprof_connection_open();
    for (index = 0; connection >= 0 && index < UNIKPROF_SESSIONS; index++) {
        struct unikprof_lwip_client *client = &unikprof_lwip_clients[index];
        if (client->pcb == NULL) {
            client->pcb = pcb;
            client->connection = connection;
            client->ended = 0;
            tcp_arg(pcb, client);
            tcp_recv(pcb, unikprof_lwip_received);
            tcp_sent(pcb, unikprof_lwip_sent);
            tcp_err(pcb, unikprof_lwip_gone);
#ifdef tcp_nagle_disable
            tcp_nagle_disable(pcb);
#endif
            unikprof_lwip_turn_in(0);
            return ERR_OK;
        }
    }
    length = unikprof_busy_answer(answer, sizeof answer);
    if (length > 0) {
        tcp_write(pcb, answer, (u16_t)length, TCP_WRITE_FLAG_COPY);
    }
    /* If this returns an error, lwIP aborts the connection. */
    return tcp_close(pcb) == ERR_OK ? ERR_OK : ERR_MEM;
}

/* Both functions return whether bytes were moved; the second closes a connection whose conversation is over. */

static int unikprof_lwip_take(struct unikprof_lwip_client *client)
{
    struct pbuf *first = client->input;
    int64_t taken;

    if (first == NULL) {
        return 0;
    }
    taken = unikprof_connection_input(client->connection, first->payload, first->len);
    if (taken < 0) {
        /* The next unikprof_connection_output returns the reason. */
        return 0;
    }
    if (taken == first->len) {
        client->input = first->next;
        if (first->next != NULL) {
            pbuf_ref(first->next);
        }
        pbuf_free(first);
    } else if (taken > 0) {
        pbuf_header(first, (s16_t)-taken);
    }
    tcp_recved(client->pcb, (u16_t)taken);
    return taken > 0 || client->input != first;
}

static int unikprof_lwip_give(struct unikprof_lwip_client *client)
{
    char bytes[UNIKPROF_LWIP_PIECE];
    int64_t length;

    /* Check for room first, since all returned bytes must be sent. A piece may take two buffers. */
    if (tcp_sndbuf(client->pcb) < sizeof bytes || client->pcb->snd_queuelen + 2 > TCP_SND_QUEUELEN) {
        return 0;
    }
    length = unikprof_connection_output(client->connection, bytes, sizeof bytes);
    if (length < 0) {
        unikprof_lwip_end(client, 1);
        return 0;
    }
    if (length > 0 && tcp_write(client->pcb, bytes, (u16_t)length, TCP_WRITE_FLAG_COPY) != ERR_OK) {
        unikprof_lwip_end(client, 0);
        return 0;
    }
    return length > 0;
}

/* Closes the connection if the peer has closed its side and all its input was passed in; else sends what
   was written. */
static void unikprof_lwip_flush(struct unikprof_lwip_client *client)
{
    if (client->pcb != NULL && client->ended && client->input == NULL) {
        unikprof_lwip_end(client, 1);
    }
    if (client->pcb != NULL) {
        tcp_output(client->pcb);
    }
}

static void unikprof_lwip_turn(void *unused)
{
    const struct unikprof_lwip *server = unikprof_lwip_server;
    struct unikprof_lwip_client *client, *clients_end = unikprof_lwip_clients + UNIKPROF_SESSIONS;
    uint64_t now = server->now_ns(server->context), next;
    int moved;

    (void)unused;
    do {
        moved = 0;
        for (client = unikprof_lwip_clients; client < clients_end; client++) {
            moved |= client->pcb != NULL && unikprof_lwip_take(client);
        }
        next = unikprof_poll(now);
        for (client = unikprof_lwip_clients; client < clients_end; client++) {
            moved |= client->pcb != NULL && unikprof_lwip_give(client);
        }
    } while (moved);
    for (client = unikprof_lwip_clients; client < clients_end; client++) {
        unikprof_lwip_flush(client);
    }
    if (server->set_timer != NULL) {
        server->set_timer(unikprof_deadline());
    }
    if (next != UNIKPROF_NO_DEADLINE) {
        uint64_t wait = next > now ? next - now : 0;
        if (wait > UNIKPROF_LWIP_LONGEST_WAIT_NS) {
            wait = UNIKPROF_LWIP_LONGEST_WAIT_NS;
        }
        unikprof_lwip_turn_in((uint32_t)(wait / 1000000) + 1);
    }
}

/* Starts to listen. argument is a struct unikprof_lwip, passed as a void pointer for tcpip_callback. If the
   port cannot be used, LWIP_ASSERT fails. */
static void unikprof_lwip_start(void *argument)
{
    struct tcp_pcb *pcb = tcp_new();
    err_t bound;

    unikprof_lwip_server = argument;
    bound = pcb == NULL ? ERR_MEM : tcp_bind(pcb, IP_ADDR_ANY, unikprof_lwip_server->port);
    if (bound == ERR_OK) {
        pcb = tcp_listen(pcb);
    }
    LWIP_ASSERT("unikprof: the port cannot be listened on", bound == ERR_OK && pcb != NULL);
    tcp_accept(pcb, unikprof_lwip_accepted);
}

#endif /* UNIKPROF_LWIP_H */
