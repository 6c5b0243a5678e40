/*
 * unikprof: the profiler inside a unikernel, for guests that are not written in Rust.
 *
 * Made from the Rust source in agent/capi; README.md there says how the library is built, and shows a
 * guest whole. In short:
 *
 *   at the start      unikprof_init(&config, &ops, memory, length)
 *   timer's upcall    deadline = unikprof_on_tick(&registers); program the earlier of it and your own
 *   before blocking   unikprof_on_block(NULL); program your own deadline alone
 *   after blocking    deadline = unikprof_on_wake()
 *   in the loop       move bytes with unikprof_connection_*, then unikprof_poll(now_ns)
 *   after a restore   unikprof_resume()
 *   anywhere          unikprof_mark, unikprof_span_begin and _end, unikprof_counter: the guest's own events
 *   in a panic        unikprof_crash_dump(sink, context)
 *
 * struct unikprof_config holds the version of this header, and unikprof_init refuses any other than the
 * library's own. Fields that are not set must be 0. Memory is the guest's: the library allocates nothing,
 * starts no thread, and calls no function but those of struct unikprof_ops, memcpy, memmove, memset and
 * memcmp. Times are in ns, of the one clock now_ns.
 *
 * Calls answer UNIKPROF_OK (0), a number from 0 up, or a code below 0; unikprof_error_text says what it
 * means. Calls that answer a deadline answer one that can be used whatever was wrong, and
 * unikprof_take_error tells the code.
 *
 * For x86-64.
 */
