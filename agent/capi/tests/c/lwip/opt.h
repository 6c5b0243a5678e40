/* The part of lwIP's interface that unikprof_lwip.h uses, implemented by lwip_guest.c. */
#ifndef LWIP_OPT_H
#define LWIP_OPT_H

#include <stddef.h>
#include <stdint.h>

typedef uint8_t u8_t;
typedef uint16_t u16_t;
typedef int16_t s16_t;
typedef uint32_t u32_t;
typedef int8_t err_t;

#define ERR_OK 0
#define ERR_MEM (-1)
#define ERR_VAL (-6)
#define TCP_SND_QUEUELEN 8

#define LWIP_ASSERT(message, assertion) \
    do {                                \
        if (!(assertion)) {             \
            lwip_failed(message);       \
        }                               \
    } while (0)

void lwip_failed(const char *message);

#endif
