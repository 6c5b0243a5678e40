type buffer = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t

external mark : string -> int -> unit = "unikprof_ml_mark" [@@noalloc]
external counter : string -> int -> unit = "unikprof_ml_counter" [@@noalloc]
external ml_span_begin : string -> int = "unikprof_ml_span_begin" [@@noalloc]
external ml_async_span_begin : string -> int = "unikprof_ml_async_span_begin" [@@noalloc]
external ml_span_end : string -> int -> unit = "unikprof_ml_span_end" [@@noalloc]
external ml_span_trace : int -> string -> string -> unit = "unikprof_ml_span_trace" [@@noalloc]
external ml_span_enter : int -> int = "unikprof_ml_span_enter" [@@noalloc]
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
let async_span_begin name = { name; id = ml_async_span_begin name }
let span_end { name; id } = ml_span_end name id

let span_trace { id; _ } ~trace_id ~span_id =
  if String.length trace_id <> 16 || String.length span_id <> 8 then
    invalid_arg "Unikprof.span_trace: expected 16 bytes and 8 bytes";
  ml_span_trace id trace_id span_id

let finally finish f =
  match f () with
  | result ->
      finish ();
      result
  | exception error ->
      let backtrace = Printexc.get_raw_backtrace () in
      finish ();
      Printexc.raise_with_backtrace error backtrace

let with_span name f =
  let span = span_begin name in
  finally (fun () -> span_end span) f

let within { id; _ } f =
  let before = ml_span_enter id in
  finally (fun () -> ignore (ml_span_enter before)) f

external ml_on_sampled_alloc : int -> int -> int -> unit = "unikprof_ml_on_sampled_alloc" [@@noalloc]
external ml_on_free : int -> unit = "unikprof_ml_on_free" [@@noalloc]

let sample_allocations ?(interval = 32_768) () =
  if interval < 64 then invalid_arg (Printf.sprintf "Unikprof.sample_allocations: an interval of %d bytes" interval);
  let bytes_of words = words * (Sys.word_size / 8) in
  let sampling_rate = -.Float.expm1 (-.float_of_int (bytes_of 1) /. float_of_int interval) in
  let last = ref 0 in
  (* Blocks move: they are told apart by number. *)
  let allocated (block : Gc.Memprof.allocation) =
    incr last;
    ml_on_sampled_alloc !last (bytes_of (block.size + 1)) interval;
    Some !last
  in
  let tracker =
    {
      Gc.Memprof.alloc_minor = allocated;
      alloc_major = allocated;
      promote = Option.some;
      dealloc_minor = ml_on_free;
      dealloc_major = ml_on_free;
    }
  in
  ignore (Gc.Memprof.start ~sampling_rate ~callstack_size:0 tracker)

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
