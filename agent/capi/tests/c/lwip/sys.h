#ifndef LWIP_SYS_H
#define LWIP_SYS_H

#include <lwip/opt.h>

typedef void (*sys_timeout_handler)(void *argument);

void sys_timeout(u32_t wait_ms, sys_timeout_handler handler, void *argument);
void sys_untimeout(sys_timeout_handler handler, void *argument);

#endif
