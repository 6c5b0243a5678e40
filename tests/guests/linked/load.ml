(* A known tree of calls under garbage collection, with exceptions of both kinds and tail calls. Each function counts its own
   calls; `done` is printed with the sums. *)
exception Found of int

let fibonacci_calls = ref 0
let raises_calls = ref 0
let raises_without_trace_calls = ref 0
let catches_calls = ref 0
let builds_calls = ref 0
let tail_calls = ref 0
let leaf_calls = ref 0

let[@inline never] rec fibonacci number =
  incr fibonacci_calls;
  if number < 2 then number else fibonacci (number - 1) + fibonacci (number - 2)

let[@inline never] rec raises depth =
  incr raises_calls;
  if depth = 0 then raise (Found 3) else 1 + raises (depth - 1)

let[@inline never] rec raises_without_trace depth =
  incr raises_without_trace_calls;
  if depth = 0 then raise_notrace (Found 4) else 1 + raises_without_trace (depth - 1)

let[@inline never] catches raising depth =
  incr catches_calls;
  try raising depth with Found number -> number

(* Allocates in each frame, so that collections find the frames. *)
let[@inline never] rec builds depth =
  incr builds_calls;
  if depth = 0 then [] else (depth, string_of_int depth) :: builds (depth - 1)

let[@inline never] leaf a b =
  incr leaf_calls;
  a * b

let[@inline never] tail number =
  incr tail_calls;
  leaf (number + 1) 3

let () =
  let sum = ref 0 in
  for round = 1 to 300 do
    sum := !sum + fibonacci 5 + catches raises (round mod 9) + catches raises_without_trace (round mod 7);
    sum := List.fold_left (fun sum (number, text) -> sum + number + String.length text) !sum (builds (round mod 40));
    sum := !sum + tail round;
    if round mod 20 = 0 then Gc.minor ();
    if round mod 100 = 0 then Gc.compact ()
  done;
  Printf.printf
    "done fibonacci %d raises %d raises_without_trace %d catches %d builds %d tail %d leaf %d sum %d minor %d\n%!"
    !fibonacci_calls !raises_calls !raises_without_trace_calls !catches_calls !builds_calls !tail_calls !leaf_calls !sum
    (Gc.quick_stat ()).Gc.minor_collections
