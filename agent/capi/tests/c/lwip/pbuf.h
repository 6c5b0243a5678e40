#ifndef LWIP_PBUF_H
#define LWIP_PBUF_H

#include <lwip/opt.h>

struct pbuf {
    struct pbuf *next;
    void *payload;
    u16_t tot_len, len;
    u16_t ref;
};

void pbuf_cat(struct pbuf *head, struct pbuf *tail);
u8_t pbuf_free(struct pbuf *first);
u8_t pbuf_header(struct pbuf *buffer, s16_t more);
void pbuf_ref(struct pbuf *buffer);

#endif
