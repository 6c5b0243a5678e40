/* The kernel's heap: blocks of powers of two from one pool. Not for upcalls. */
#ifndef HEAP_H
#define HEAP_H

#include <stddef.h>

/* Each returns NULL if the pool is used up or the size is larger than any block. */
void *malloc(size_t size);
void *realloc(void *old, size_t size);

void free(void *memory);

#endif
