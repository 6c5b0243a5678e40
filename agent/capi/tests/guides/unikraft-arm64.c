/* What surrounds the code of docs/guide/unikraft-arm64.md in Unikraft and its application. */
#include <stddef.h>
#include <stdint.h>
#include <xen/vcpu.h>

/* The header's functions for that processor; the code is only checked, by the host's compiler. */
#define __aarch64__ 1
#include <unikprof_xen.h>

#define UK_EVENT_HANDLED 1
#define UK_EVENT_NOT_HANDLED 0
#define UK_EVENT_HANDLER(event, handler) int (*handler_of_##event)(void *) = handler
#define SYSREG_READ64(name) ((uint64_t)(name))
#define SYSREG_WRITE64(name, value) (name = (value))
#define XBT_NIL 0
#define PTRISERR(pointer) ((intptr_t)(pointer) < 0)
static uint64_t cntv_cval_el0, cntvct_el0, cntfrq_el0;
struct __regs;
struct uk_intctlr_event_irq_data {
    struct __regs *regs;
    unsigned int irq;
};
struct uk_netdev;
struct uk_netbuf {
    void *data;
    uint16_t len;
};
struct uk_semaphore {
    long count;
};
extern char build_id_start[], build_id_end[];
uint64_t ukplat_monotonic_clock(void);
uint32_t ukplat_time_get_irq(void);
unsigned long ukplat_lcpu_save_irqf(void);
void ukplat_lcpu_restore_irqf(unsigned long flags);
void generic_timer_mask_irq(void);
void generic_timer_unmask_irq(void);
void uk_sched_thread_sleep(uint64_t ns);
char *xs_read(int transaction, const char *path, const char *node);
int uk_netdev_rxq_intr_disable(struct uk_netdev *dev, uint16_t queue);
int uk_netdev_rxq_intr_enable(struct uk_netdev *dev, uint16_t queue);
int uk_netdev_rx_one(struct uk_netdev *dev, uint16_t queue, struct uk_netbuf **packet);
int uk_netdev_status_successful(int status);
void uk_netbuf_free(struct uk_netbuf *packet);
uint64_t uk_semaphore_down_to(struct uk_semaphore *semaphore, uint64_t timeout_ns);
void send(const void *frame, int64_t length);

//= 1

void time_block_until(void)
{
//= 2
//= 3
}

//= 4
//= 7

void profiler_start(void)
{
    static char ring[1 << 20];
    struct unikprof_key key = { 0 };
    struct unikprof_config config = { 0 };
    struct unikprof_ops ops = unikprof_xen_ops(&guest);
    struct unikprof_mapping text;

//= 5
//= 6
}

void loop(struct uk_netdev *dev)
{
    static struct uk_semaphore arrived;
    static char frame[UNIKPROF_MAX_FRAME];
    struct uk_netbuf *packet;
    uint64_t again, now, rest;
    unsigned long flags;
    int64_t length;

//= 8
}
