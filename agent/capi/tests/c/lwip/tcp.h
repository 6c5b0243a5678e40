#ifndef LWIP_TCP_H
#define LWIP_TCP_H

#include <lwip/opt.h>
#include <lwip/pbuf.h>

#define IP_ADDR_ANY NULL
#define TCP_WRITE_FLAG_COPY 1
#define tcp_sndbuf(pcb) ((pcb)->snd_buf)
#define tcp_nagle_disable(pcb) ((pcb)->no_delay = 1)

struct tcp_pcb {
    u16_t snd_buf, snd_queuelen;
    int no_delay;
    void *argument;
    err_t (*accept)(void *argument, struct tcp_pcb *pcb, err_t error);
    err_t (*recv)(void *argument, struct tcp_pcb *pcb, struct pbuf *bytes, err_t error);
    err_t (*sent)(void *argument, struct tcp_pcb *pcb, u16_t length);
    void (*err)(void *argument, err_t error);
    /* What has happened to it. */
    int bound, is_listening, is_closed, is_aborted;
    err_t next_write, next_close;
    size_t taken, written, put_out;
};

struct tcp_pcb *tcp_new(void);
err_t tcp_bind(struct tcp_pcb *pcb, void *address, u16_t port);
struct tcp_pcb *tcp_listen(struct tcp_pcb *pcb);
void tcp_accept(struct tcp_pcb *pcb, err_t (*accept)(void *, struct tcp_pcb *, err_t));
void tcp_arg(struct tcp_pcb *pcb, void *argument);
void tcp_recv(struct tcp_pcb *pcb, err_t (*recv)(void *, struct tcp_pcb *, struct pbuf *, err_t));
void tcp_sent(struct tcp_pcb *pcb, err_t (*sent)(void *, struct tcp_pcb *, u16_t));
void tcp_err(struct tcp_pcb *pcb, void (*err)(void *, err_t));
void tcp_recved(struct tcp_pcb *pcb, u16_t length);
err_t tcp_write(struct tcp_pcb *pcb, const void *bytes, u16_t length, u8_t flags);
err_t tcp_output(struct tcp_pcb *pcb);
err_t tcp_close(struct tcp_pcb *pcb);
void tcp_abort(struct tcp_pcb *pcb);

#endif
