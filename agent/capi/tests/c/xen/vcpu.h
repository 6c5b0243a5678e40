/* Of Xen's public header of this name, what unikprof_xen.h uses; enough for a guest on no Xen. */
#ifndef XEN_VCPU_H
#define XEN_VCPU_H

#include <stdint.h>

#define RUNSTATE_running 0
#define RUNSTATE_runnable 1
#define RUNSTATE_blocked 2
#define RUNSTATE_offline 3

struct vcpu_runstate_info {
    int state;
    uint64_t state_entry_time;
    uint64_t time[4];
};

#endif
