#include <caml/mlvalues.h>
#include <stdint.h>

/* The guest's own. */
extern void unikprof_set_sampler(uint64_t deadline_ns);

value unikprof_ml_set_sampler(value deadline_ns)
{
    unikprof_set_sampler(Long_val(deadline_ns) == Max_long ? UINT64_MAX : (uint64_t)Long_val(deadline_ns));
    return Val_unit;
}
