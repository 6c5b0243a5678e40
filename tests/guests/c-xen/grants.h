/* Pages that another domain may use. */
#ifndef GRANTS_H
#define GRANTS_H

#include <stdbool.h>
#include <stdint.h>

/* Maps the grant table: one page of it. */
void grants_start(void);

/* Lends a page for ever; answers the number by which the other domain knows it. */
uint32_t grant(uint16_t domain, const void *page, bool read_only);

#endif
