(* Without the profiler, its calls do nothing and the program runs on. *)
let () =
  Unikprof.mark ~value:1 "mark";
  Unikprof.counter "counter" 2;
  Unikprof.span_end (Unikprof.span_begin "span");
  assert (Unikprof.with_span "span" (fun () -> 3) = 3);
  let span = Unikprof.async_span_begin "span" in
  Unikprof.span_trace span ~trace_id:(String.make 16 't') ~span_id:(String.make 8 's');
  assert (Unikprof.within span (fun () -> 3) = 3);
  assert (Unikprof.connect () = None);
  assert (Unikprof.refusal () = "");
  assert (Unikprof.poll 4 = Unikprof.never);
  assert (Unikprof.deadline () = Unikprof.never);
  Unikprof.sample_allocations ~interval:64 ();
  assert (List.length (List.init 100_000 Fun.id) = 100_000);
  Gc.full_major ();
  assert (match Unikprof.sample_allocations ~interval:63 () with () -> false | exception Invalid_argument _ -> true);
  print_endline "ran"
