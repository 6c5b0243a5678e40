(* Work with known callers: `main.c` calls `turn`, which calls each kind of it. *)
external in_c : int -> int = "guest_in_c"
external call_back : (int -> int) -> int -> int = "guest_call_back"

exception Found of int

let[@inline never] rec spin left state =
  if left = 0 then state
  else spin (left - 1) (state lxor (state lsl 13) lxor (state lsr 7))

(* C called from OCaml. *)
let[@inline never] calls_c state = in_c state + 1

(* OCaml called from C, which OCaml called. *)
let[@inline never] called_back state = spin 20_000 state + 1
let[@inline never] calls_c_that_calls_back state = call_back called_back state + 1

(* Garbage is collected while a live list grows. *)
let[@inline never] rec grow left list = if left = 0 then list else grow (left - 1) (left :: list)
let[@inline never] collects state = List.length (grow 100_000 []) + state

(* Exceptions are raised through some frames. *)
let[@inline never] rec descends left =
  if left = 0 then raise (Found 3) else spin 20 (descends (left - 1)) + 1
let[@inline never] raises state =
  let sum = ref state in
  for _ = 1 to 200 do
    (match descends 20 with
     | number -> sum := number
     | exception Found number -> sum := spin 100 (!sum + number))
  done;
  !sum

let[@inline never] turn state =
  let state = spin 20_000 state + 1 in
  let state = calls_c state + 1 in
  let state = calls_c_that_calls_back state + 1 in
  let state = collects state + 1 in
  raises state + 1

let () = Callback.register "turn" turn
