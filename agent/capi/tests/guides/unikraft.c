/* What surrounds the code of docs/guide/unikraft.md in Unikraft and its application. */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define STACK_SIZE (1 << 16)
#define VCPUOP_register_runstate_memory_area 5
typedef uint64_t __nsec;
struct vcpu_register_runstate_memory_area {
    union {
        void *v;
    } addr;
};
struct regs {
    unsigned long rip, rsp, rbp;
};
struct uk_thread {
    struct {
        void *stack;
    } _mem;
};
struct uk_netdev;
struct uk_hwaddr {
    uint8_t addr_bytes[6];
};
struct uk_netbuf {
    void *data;
    uint16_t len;
};
extern struct uk_netdev *dev;
struct uk_thread *uk_thread_current(void);
const struct uk_hwaddr *uk_netdev_hwaddr_get(struct uk_netdev *dev);
__nsec ukplat_monotonic_clock(void);
void uk_pr_err(const char *format, ...);
int HYPERVISOR_set_timer_op(uint64_t at);
int HYPERVISOR_vcpu_op(int operation, int vcpu, void *argument);

//= 1

void time_block_until(void)
{
//= 2
//= 3
}

void timer_handler(struct regs *regs, __nsec until)
{
//= 4
//= 5
}

//= 6
//= 7

void loop(const struct uk_netbuf *packet)
{
    static uint8_t frame[UNIKPROF_MAX_FRAME];
    int64_t length;

//= 8
}
