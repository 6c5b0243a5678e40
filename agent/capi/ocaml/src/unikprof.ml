type buffer = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t

external mark : string -> int -> unit = "unikprof_ml_mark" [@@noalloc]
external counter : string -> int -> unit = "unikprof_ml_counter" [@@noalloc]
external ml_span_begin : string -> int = "unikprof_ml_span_begin" [@@noalloc]
external ml_span_end : string -> int -> unit = "unikprof_ml_span_end" [@@noalloc]
external poll : int -> int = "unikprof_ml_poll" [@@noalloc]
external deadline : unit -> int = "unikprof_ml_deadline" [@@noalloc]
external ml_open : unit -> int = "unikprof_ml_open" [@@noalloc]
external ml_input : int -> buffer -> int -> int -> int = "unikprof_ml_input" [@@noalloc]
external ml_output : int -> buffer -> int = "unikprof_ml_output" [@@noalloc]
external ml_close : int -> int = "unikprof_ml_close" [@@noalloc]
external ml_busy_answer : buffer -> int = "unikprof_ml_busy_answer" [@@noalloc]

let mark ?(value = 0) name = mark name value

type span = { name : string; id : int }

let span_begin name = { name; id = ml_span_begin name }
let span_end { name; id } = ml_span_end name id

let with_span name f =
  let span = span_begin name in
  match f () with
  | result ->
      span_end span;
      result
  | exception error ->
      let backtrace = Printexc.get_raw_backtrace () in
      span_end span;
      Printexc.raise_with_backtrace error backtrace

type connection = int

let connect () =
  let connection = ml_open () in
  if connection < 0 then None else Some connection

let count code = if code < 0 then None else Some code

let input connection buffer offset length =
  if offset < 0 || length < 0 || offset > Bigarray.Array1.dim buffer - length then
    invalid_arg
      (Printf.sprintf "Unikprof.input: %d bytes at %d are not in a buffer of %d" length offset
         (Bigarray.Array1.dim buffer));
  count (ml_input connection buffer offset length)

let output connection buffer = count (ml_output connection buffer)
let disconnect connection = ignore (ml_close connection : int)

let refusal () =
  let buffer = Bigarray.(Array1.create char c_layout 128) in
  String.init (max 0 (ml_busy_answer buffer)) (Bigarray.Array1.get buffer)

let never = max_int
