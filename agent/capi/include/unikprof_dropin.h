/* The profiler for PVH guests that know nothing of it: libunikprof-dropin.a. See docs/guide/dropin.md. */
#ifndef UNIKPROF_DROPIN_H
#define UNIKPROF_DROPIN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Starts the profiler. A second call does nothing.
 *
 * For guests that do not start it by `-Wl,--wrap`. Call it on the first vCPU after the guest has mapped its shared
 * information page, loaded its interrupt table and set the vector of its events, and before it uses xenstore or the
 * grant table. It prints a line on the console: what it did, or why the guest is not profiled. The guest continues
 * in both cases. */
void unikprof_dropin_start(void);

/* Connects the profiler's network device again. Without it a guest that was restored from a save is sampled further,
 * and not reachable.
 *
 * Call it on the first vCPU after a restore, when the guest has its shared information page and the vector of its
 * events as before, or when the device's backend has come anew; while nobody uses xenstore and the console. It waits
 * for the backend, and prints a line on the console. Keys, `access` and `cpu-share` that are in xenstore replace the
 * former ones. A guest that keeps the indices of these two rings in variables of its own calls it before it connects them
 * in the new domain. Events of the guest's own watches that come during the call are lost. On another vCPU it does
 * nothing, which the host's log says. */
void unikprof_dropin_resume(void);

/* Writes the crash dump on Xen's console: what was recorded last, for `unikprof-client recover`. Only the first call
 * does; in a guest that is not profiled none does.
 *
 * For guests that do not call it by `-Wl,--wrap`. Call it where the guest ends because of an error, on the first vCPU,
 * with interrupts on or off. It waits for the console's reader: at most 5 s without a read and 30 s in all,
 * and at the end up to 5 s more for the last lines. */
void unikprof_dropin_crash(void);

/* Has traces tell the guest's stacks apart by this function instead of blocks of 64 KiB; NULL: by these again. In an
 * archive that was built without --trace it does nothing.
 *
 * For the stack that contains sp, the function fills in an id below 2^63, which no other stack has meanwhile, and the
 * stack's end at present, and returns 1; or it returns 0 if that is no known stack, and the call is not counted. The id of
 * a fibre whose stack moves stays. The function is called in breakpoints with interrupts off, on any vCPU: it uses general
 * registers only (-mgeneral-regs-only), and neither waits nor locks. A breakpoint in it would be endless and destroy the
 * guest: before a trace the profiler calls it with an sp on the profiler's own stack, and refuses to trace what runs then.
 * For the guest's stacks it must not call functions that it does not call for such an sp; best it calls none. The client
 * finds the function in the image if it is passed by its name, and does not trace what it calls; another client might. What
 * it does not know, such as the profiler's own stack with the guest's handlers on it, is not counted. Call this before a
 * client traces. */
void unikprof_dropin_call_stacks(int32_t (*call_stack)(uint64_t sp, uint64_t *id, uint64_t *end));

/* The guest's own events, as in unikprof.h, which describes them and the codes that they return. Before the start, and
 * in a guest that is not profiled, they return UNIKPROF_E_NOT_STARTED (-3); those that return a span return 0. On the
 * first vCPU only. */
int32_t unikprof_event_name(const char *text);
int32_t unikprof_mark(int32_t name, uint64_t value);
int32_t unikprof_counter(int32_t name, int64_t value);
uint64_t unikprof_span_begin(int32_t name);
uint64_t unikprof_async_span_begin(int32_t name);
int32_t unikprof_span_end(int32_t name, uint64_t span);
int32_t unikprof_span_trace(uint64_t span, const uint8_t *trace_id, const uint8_t *span_id);
uint64_t unikprof_span_enter(uint64_t span);
void unikprof_span_leave(uint64_t before);

#ifdef __cplusplus
}
#endif
#endif
