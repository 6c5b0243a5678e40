/*
 * unikprof: a profiler inside a unikernel, for guests that are not written in Rust.
 *
 * Generated from the Rust source in agent/capi. README.md there says how to build the library, and shows a
 * complete guest. In short:
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
 * struct unikprof_config holds the version of this header, and unikprof_init rejects any other version than
 * the library's. Fields that the guest does not set must be 0. All memory is the guest's: the library allocates
 * nothing, starts no thread, and calls no functions except those of struct unikprof_ops, memcpy, memmove, memset
 * and memcmp. Times are in ns, on one clock: now_ns.
 *
 * Calls return UNIKPROF_OK (0) or another number from 0 up, or an error code below 0, which
 * unikprof_error_text explains. Calls that return a deadline return a usable one even on error;
 * unikprof_take_error then returns the code.
 *
 * For x86-64 and aarch64.
 */
