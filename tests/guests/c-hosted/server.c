#define _GNU_SOURCE
#include "server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unikprof.h>
#include <unistd.h>

#include "profiler.h"

/* A client, with the bytes that were not passed on yet in either direction. */
struct client {
    int socket; /* -1 = free */
    int32_t connection;
    size_t input_start, input_end;
    size_t output_start, output_end;
    char input[512];
    char output[16384];
};

static int listener;
static int32_t client_came;
static struct client clients[UNIKPROF_SESSIONS];

int server_start(void)
{
    struct sockaddr_in address;
    socklen_t length = sizeof address;
    memset(&address, 0, sizeof address);
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    client_came = unikprof_event_name("client");
    listener = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0);
    if (listener < 0 || bind(listener, (struct sockaddr *)&address, sizeof address) != 0
        || listen(listener, 8) != 0
        || getsockname(listener, (struct sockaddr *)&address, &length) != 0) {
        perror("cannot listen");
        exit(1);
    }
    for (size_t index = 0; index < UNIKPROF_SESSIONS; index++) {
        clients[index].socket = -1;
    }
    return ntohs(address.sin_port);
}

static void end(struct client *client)
{
    unikprof_connection_close(client->connection);
    close(client->socket);
    client->socket = -1;
}

static void refuse(int socket)
{
    char answer[128];
    int64_t length = unikprof_busy_answer(answer, sizeof answer);
    if (length > 0) {
        (void)!write(socket, answer, (size_t)length);
    }
    close(socket);
}

static void accept_all(void)
{
    int socket;
    while ((socket = accept4(listener, NULL, NULL, SOCK_NONBLOCK)) >= 0) {
        int32_t connection = unikprof_connection_open();
        int one = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        if (connection < 0) {
            refuse(socket);
            continue;
        }
        for (size_t index = 0; index < UNIKPROF_SESSIONS; index++) {
            struct client *client = &clients[index];
            if (client->socket < 0) {
                memset(client, 0, sizeof *client);
                client->socket = socket;
                client->connection = connection;
                unikprof_mark(client_came, (uint64_t)connection);
                break;
            }
        }
    }
}

/* Both return whether bytes were moved, and close a client that has disconnected or is done. */

static int read_from(struct client *client)
{
    int64_t taken;
    if (client->input_start == client->input_end) {
        ssize_t length = read(client->socket, client->input, sizeof client->input);
        if (length == 0 || (length < 0 && errno != EAGAIN)) {
            end(client);
            return 0;
        }
        client->input_start = 0;
        client->input_end = length > 0 ? (size_t)length : 0;
    }
    taken = unikprof_connection_input(client->connection, client->input + client->input_start,
                                      client->input_end - client->input_start);
    client->input_start += taken > 0 ? (size_t)taken : 0;
    return taken > 0;
}

static int write_to(struct client *client)
{
    ssize_t written;
    if (client->output_start == client->output_end) {
        int64_t length = unikprof_connection_output(client->connection, client->output,
                                                    sizeof client->output);
        if (length < 0) {
            end(client);
            return 0;
        }
        client->output_start = 0;
        client->output_end = (size_t)length;
    }
    if (client->output_start == client->output_end) {
        return 0;
    }
    written = send(client->socket, client->output + client->output_start,
                   client->output_end - client->output_start, MSG_NOSIGNAL);
    if (written < 0 && errno != EAGAIN) {
        end(client);
        return 0;
    }
    client->output_start += written > 0 ? (size_t)written : 0;
    return written > 0;
}

void server_turn(void)
{
    accept_all();
    for (size_t index = 0; index < UNIKPROF_SESSIONS; index++) {
        struct client *client = &clients[index];
        int moved = 1;
        while (client->socket >= 0 && moved) {
            moved = read_from(client);
            if (client->socket >= 0) {
                moved |= write_to(client);
            }
        }
    }
    /* After the bytes. The result is the time at which a sleeping guest must wake; this one never sleeps. */
    unikprof_poll(profiler_now_ns());
    /* A request may have begun a recording. */
    profiler_arm();
}
