/* The calls of unikprof.h for OCaml. None of them uses the OCaml runtime: they neither allocate nor raise. On OCaml 5 they
 * run on the C stack, as all C code does.
 *
 * The symbols are weak, so that the same program also links without the profiler. The declarations are those of
 * unikprof.h, repeated here because opam builds this folder alone; if that header is included before this file, the
 * compiler compares them. */
#include <caml/bigarray.h>
#include <caml/mlvalues.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define WEAK __attribute__((weak))
WEAK extern int32_t unikprof_event_name(const char *text);
WEAK extern int32_t unikprof_mark(int32_t name, uint64_t value);
WEAK extern int32_t unikprof_counter(int32_t name, int64_t value);
WEAK extern uint64_t unikprof_span_begin(int32_t name);
WEAK extern uint64_t unikprof_async_span_begin(int32_t name);
WEAK extern int32_t unikprof_span_end(int32_t name, uint64_t span);
WEAK extern int32_t unikprof_span_trace(uint64_t span, const uint8_t *trace_id, const uint8_t *span_id);
WEAK extern uint64_t unikprof_span_enter(uint64_t span);
WEAK extern void unikprof_on_sampled_alloc(const void *key, size_t size, size_t interval);
WEAK extern void unikprof_on_free(const void *pointer);
WEAK extern uint64_t unikprof_poll(uint64_t now_ns);
WEAK extern uint64_t unikprof_deadline(void);
WEAK extern int32_t unikprof_connection_open(void);
WEAK extern int64_t unikprof_connection_input(int32_t connection, const void *bytes, size_t length);
WEAK extern int64_t unikprof_connection_output(int32_t connection, void *buffer, size_t length);
WEAK extern int32_t unikprof_connection_close(int32_t connection);
WEAK extern int64_t unikprof_busy_answer(void *buffer, size_t length);

/* UNIKPROF_E_NOT_STARTED */
#define NOT_STARTED (-3)
#ifdef UNIKPROF_H
_Static_assert(NOT_STARTED == UNIKPROF_E_NOT_STARTED, "differs from unikprof.h");
#endif

/* Times of a clock that started less than 146 years ago fit OCaml's integers; UNIKPROF_NO_DEADLINE does not. */
static value time_of(uint64_t ns)
{
    return Val_long(ns > (uint64_t)Max_long ? Max_long : (intnat)ns);
}

/* The id of an event name, or an error code. C reads a name that contains a 0 byte only up to there, so it counts as
 * empty, which the profiler refuses and reports. */
static int32_t id_of(value name)
{
    const char *text = String_val(name);
    if (unikprof_event_name == NULL) {
        return NOT_STARTED;
    }
    return unikprof_event_name(strlen(text) == caml_string_length(name) ? text : "");
}

/* --- Events --- */

value unikprof_ml_mark(value name, value number)
{
    int32_t id = id_of(name);
    if (id >= 0) {
        unikprof_mark(id, (uint64_t)Long_val(number));
    }
    return Val_unit;
}

value unikprof_ml_counter(value name, value number)
{
    int32_t id = id_of(name);
    if (id >= 0) {
        unikprof_counter(id, Long_val(number));
    }
    return Val_unit;
}

/* Returns the span's id, or 0 if nothing was recorded. Ids are positions in the flight recorder, times 256: they fit. */
value unikprof_ml_span_begin(value name)
{
    int32_t id = id_of(name);
    return Val_long(id >= 0 ? (intnat)unikprof_span_begin(id) : 0);
}

value unikprof_ml_async_span_begin(value name)
{
    int32_t id = id_of(name);
    return Val_long(id >= 0 ? (intnat)unikprof_async_span_begin(id) : 0);
}

value unikprof_ml_span_end(value name, value span)
{
    int32_t id = Long_val(span) != 0 ? id_of(name) : NOT_STARTED;
    if (id >= 0) {
        unikprof_span_end(id, (uint64_t)Long_val(span));
    }
    return Val_unit;
}

/* `unikprof.ml` checks the lengths. */
value unikprof_ml_span_trace(value span, value trace_id, value span_id)
{
    if (unikprof_span_trace != NULL) {
        unikprof_span_trace((uint64_t)Long_val(span), Bytes_val(trace_id), Bytes_val(span_id));
    }
    return Val_unit;
}

/* Returns what was entered before. */
value unikprof_ml_span_enter(value span)
{
    return Val_long(unikprof_span_enter != NULL ? (intnat)unikprof_span_enter((uint64_t)Long_val(span)) : 0);
}

/* --- Allocations --- */

/* An integer of OCaml is odd, so no block has it as its address. */
value unikprof_ml_on_sampled_alloc(value key, value size, value interval)
{
    if (unikprof_on_sampled_alloc != NULL) {
        unikprof_on_sampled_alloc((const void *)key, (size_t)Long_val(size), (size_t)Long_val(interval));
    }
    return Val_unit;
}

value unikprof_ml_on_free(value key)
{
    if (unikprof_on_free != NULL) {
        unikprof_on_free((const void *)key);
    }
    return Val_unit;
}

/* --- Clients --- */

value unikprof_ml_poll(value now_ns)
{
    return unikprof_poll != NULL ? time_of(unikprof_poll((uint64_t)Long_val(now_ns))) : Val_long(Max_long);
}

value unikprof_ml_deadline(value unit)
{
    (void)unit;
    return unikprof_deadline != NULL ? time_of(unikprof_deadline()) : Val_long(Max_long);
}

value unikprof_ml_open(value unit)
{
    (void)unit;
    return Val_long(unikprof_connection_open != NULL ? unikprof_connection_open() : NOT_STARTED);
}

/* `unikprof.ml` checks that the bytes lie in the buffer, and calls these with connections of `unikprof_ml_open` only. */

value unikprof_ml_input(value connection, value buffer, value offset, value length)
{
    const char *bytes = Caml_ba_data_val(buffer);
    return Val_long(unikprof_connection_input((int32_t)Long_val(connection), bytes + Long_val(offset),
                                              (size_t)Long_val(length)));
}

value unikprof_ml_output(value connection, value buffer)
{
    return Val_long(unikprof_connection_output((int32_t)Long_val(connection), Caml_ba_data_val(buffer),
                                               (size_t)Caml_ba_array_val(buffer)->dim[0]));
}

value unikprof_ml_close(value connection)
{
    return Val_long(unikprof_connection_close((int32_t)Long_val(connection)));
}

value unikprof_ml_busy_answer(value buffer)
{
    return Val_long(unikprof_busy_answer != NULL
                        ? unikprof_busy_answer(Caml_ba_data_val(buffer), (size_t)Caml_ba_array_val(buffer)->dim[0])
                        : NOT_STARTED);
}
