/* Grants other domains access to pages. */
#ifndef GRANTS_H
#define GRANTS_H

#include <stdbool.h>
#include <stdint.h>

/* Maps one page of the grant table. */
void grants_start(void);

/* Grants access to a page permanently; returns the grant reference. */
uint32_t grant(uint16_t domain, const void *page, bool read_only);

#endif
