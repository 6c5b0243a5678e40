#include "heap.h"

#include <stdint.h>
#include <string.h>

#include "profiler.h"

#define POOL (24 << 20)
/* Binary logarithms of the smallest and the largest block. */
#define SMALLEST 5
#define LARGEST 20

/* Before the memory of each block. */
struct header {
    unsigned order;
    struct header *next; /* while the block is free */
};

_Static_assert(sizeof(struct header) == 16, "memory is aligned as the compiler wants it");

static uint8_t pool[POOL] __attribute__((aligned(16)));
static size_t used;
static struct header *freed[LARGEST + 1];

/* Of the block that has room for so many bytes; more than LARGEST if there is none. */
static unsigned order_for(size_t size)
{
    unsigned order = SMALLEST;
    while (order <= LARGEST && ((size_t)1 << order) - sizeof(struct header) < size) {
        order++;
    }
    return order;
}

static void *take(size_t size)
{
    unsigned order = order_for(size);
    struct header *block;
    if (order > LARGEST) {
        return NULL;
    }
    block = freed[order];
    if (block != NULL) {
        freed[order] = block->next;
    } else if (POOL - used >= (size_t)1 << order) {
        block = (struct header *)(pool + used);
        used += (size_t)1 << order;
    } else {
        return NULL;
    }
    block->order = order;
    return block + 1;
}

static void give_back(void *memory)
{
    struct header *block = (struct header *)memory - 1;
    block->next = freed[block->order];
    freed[block->order] = block;
}

void *malloc(size_t size)
{
    void *memory = take(size);
    profiler_on_alloc(memory, size);
    return memory;
}

void free(void *memory)
{
    profiler_on_free(memory);
    if (memory != NULL) {
        give_back(memory);
    }
}

void *realloc(void *old, size_t size)
{
    void *memory;
    size_t room;
    if (old == NULL) {
        return malloc(size);
    }
    memory = take(size);
    if (memory != NULL) {
        room = ((size_t)1 << ((struct header *)old - 1)->order) - sizeof(struct header);
        memcpy(memory, old, size < room ? size : room);
        profiler_on_realloc(old, memory, size);
        give_back(old);
    }
    return memory;
}
