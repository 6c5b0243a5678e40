/* What surrounds the code of docs/guide/mirageos.md in Solo5 and mirage-xen. */
#include <stdbool.h>
#include <unikprof_xen.h>

extern char _end[];
static uint64_t memory_end;
bool is_interrupt_stack(uint64_t sp);
bool evtchn_demux_pending(void);
int hypercall_set_timer_op(uint64_t at);
void cpu_wfi(void);

//= 1
//= 2
{
    (void)irq;
    solo5__irq_frame = frame;
    solo5__irq_rbp = rbp;
}

//= 3
//= 4

void block_domain(uint64_t deadline)
{
//= 5
}

//= 6
