/* What surrounds the code of docs/guide/mini-os.md in Mini-OS and lwIP. */
#define CONFIG_UNIKPROF
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/time.h>
#include <xen/vcpu.h>

#define MILLISECS(ms) ((uint64_t)(ms) * 1000000)
#define STACK_SIZE (1 << 16)
#define XBT_NIL 0
#define VCPUOP_register_runstate_memory_area 5
struct vcpu_register_runstate_memory_area {
    union {
        void *v;
    } addr;
};
struct pt_regs {
    unsigned long rip, rsp, rbp;
};
extern char _text, _etext, _erodata, _edata;
uint64_t monotonic_clock(void);
void printk(const char *format, ...);
int HYPERVISOR_set_timer_op(uint64_t at);
int HYPERVISOR_vcpu_op(int operation, int vcpu, void *argument);
char *xenbus_printf(int xbt, const char *node, const char *path, const char *format, ...);
char *xenbus_read(int xbt, const char *path, char **value);
void tcpip_callback(void (*callback)(void *), void *argument);

//= 1

void block_domain(void)
{
//= 2
//= 3
}

void timer_handler(struct pt_regs *regs)
{
//= 4
}

struct netfront_dev {
    const char *nodename;
};
void write_features(int xbt, struct netfront_dev *dev)
{
//= 5
}

//= 6
//= 7

void start_networking(void)
{
//= 8
}

//= 9

void use_keys(struct unikprof_config config, struct unikprof_ops ops)
{
//= 10
    unikprof_init(&config, &ops, samples, sizeof samples);
}
