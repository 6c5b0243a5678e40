/* What surrounds the code of agent/capi/README.md in a kernel. */
#include <unikprof.h>

extern char _text[], _etext[];
void printk(const char *format, ...);
uint64_t min(uint64_t one, uint64_t other);
void set_timer(uint64_t deadline_ns);
void block(uint64_t deadline_ns);
void move(int64_t taken, int64_t given);
void send(const void *frame, int64_t length);
uint64_t monotonic_ns(void *context);
uint32_t this_vcpu(void *context);
uint64_t running_ns(void *context, uint32_t vcpu);
int32_t stack_bounds(void *context, uint64_t sp, struct unikprof_range *bounds);

void all(const void *regs, struct unikprof_registers registers, uint64_t own_deadline_ns, uint64_t now_ns,
         int64_t connection, const uint8_t *bytes, size_t length)
{
    uint8_t buffer[4096];
    int64_t taken, given;
    uint64_t again_ns;

//= 1
}

void events(void)
{
//= 2
}

void frames(const uint8_t *frame, int64_t length, uint64_t now_ns)
{
    static uint8_t buffer[UNIKPROF_MAX_FRAME];

//= 3
}
