/* What surrounds the code of docs/embedding/mirageos.md in Solo5, mirage-xen and OCaml's runtime. */
#include <stdbool.h>
#include <unikprof_xen.h>

struct stack_info;
typedef struct {
    struct stack_info *current_stack;
} caml_domain_state;
extern caml_domain_state *Caml_state_opt;
uint64_t *Stack_base(const struct stack_info *stack), *Stack_high(const struct stack_info *stack);
static uint64_t system_stack_start, system_stack_end;
bool is_interrupt_stack(uint64_t sp);
bool evtchn_demux_pending(void);
int hypercall_set_timer_op(uint64_t at);
void cpu_wfi(void);

//= 1
{
    (void)irq;
    solo5__irq_frame = frame;
    solo5__irq_rbp = rbp;
}

//= 2
//= 3

void block_domain(uint64_t deadline)
{
//= 4
}

//= 5
//= 6
