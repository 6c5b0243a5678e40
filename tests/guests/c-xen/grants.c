#include "grants.h"

#include "console.h"
#include "hypercall.h"

static struct xen_grant table[GRANTS_PER_PAGE] __attribute__((aligned(PAGE_SIZE)));
static uint32_t next = GRANTS_RESERVED;

void grants_start(void)
{
    struct xen_set_version argument = { 1 };
    next = GRANTS_RESERVED;
    check(hypercall(HYPERCALL_GRANT_TABLE_OP, GNTTABOP_SET_VERSION, (uint64_t)&argument, 1),
          "GNTTABOP_set_version");
    map_xen_page(XENMAPSPACE_GRANT_TABLE, table);
}

uint32_t grant(uint16_t domain, const void *page, bool read_only)
{
    struct xen_grant *entry = &table[next];
    if (next == GRANTS_PER_PAGE) {
        panic("too many grants");
    }
    entry->domain = domain;
    entry->frame = (uint32_t)((uint64_t)page / PAGE_SIZE);
    /* Written last: the flags make it valid. */
    __atomic_store_n(&entry->flags, GRANT_PERMIT_ACCESS | (read_only ? GRANT_READ_ONLY : 0), __ATOMIC_SEQ_CST);
    return next++;
}
