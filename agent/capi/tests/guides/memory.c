/* What surrounds the code of docs/guide/memory.md in the kernels that it is about. */
#include <unikprof.h>

static unsigned char live[64 << 10];
static struct unikprof_config config = {
//= 1
};

void *own_xmalloc(size_t size, size_t align);
void *own_realloc(void *old, size_t size);
void own_xfree(const void *pointer);

//= 2

struct uk_alloc;
typedef void *(*uk_alloc_malloc_func_t)(struct uk_alloc *allocator, size_t size);
typedef void (*uk_alloc_free_func_t)(struct uk_alloc *allocator, void *pointer);
struct uk_alloc {
    uk_alloc_malloc_func_t malloc;
    uk_alloc_free_func_t free;
};
struct uk_alloc *uk_alloc_get_default(void);

//= 3

enum { MEMP_MAX = 3 };
struct stats_mem {
    uint16_t used;
};
struct memp_desc {
    const char *desc;
    struct stats_mem *stats;
    uint16_t size, num;
};
extern const struct memp_desc *const memp_pools[MEMP_MAX];

//= 4
