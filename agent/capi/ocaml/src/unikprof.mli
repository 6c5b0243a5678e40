(** The profiler inside this unikernel: events of the program's own, and the bytes of its clients.

    The profiler is an archive that the unikernel links: [libunikprof.a] or [libunikprof-dropin.a]. Without an archive,
    with one that has no flight recorder or no such calls, and before the profiler has started, events are dropped. A
    program can therefore keep its calls in every build. *)

(** {1 Events}

    A name has 1 to 48 bytes of UTF-8 without control characters. A program can use up to 256 names. Events with other or
    further names are dropped, and clients show how many names were refused. No call allocates memory for the profiler
    or raises an exception, and each looks up its name. *)

val mark : ?value:int -> string -> unit
(** [mark ~value name] records that something happened now, with a value (0 if none is given). *)

val counter : string -> int -> unit
(** [counter name value] records the value that a counter has from now on. *)

val with_span : string -> (unit -> 'a) -> 'a
(** [with_span name f] is [f ()]. A span lasts from the call until [f] returns or raises. The samples in its time are its
    own. For an [f] that returns a promise, or that other fibres run beside, use [Unikprof_lwt.with_span] or
    {!async_span_begin}. *)

type span
(** A span that has begun. *)

val span_begin : string -> span
(** Begins a nested span, which must end before the spans around it do. The samples in its time are its own. One that ends
    otherwise is shown as an asynchronous span, and one that never ends as such. *)

val async_span_begin : string -> span
(** Begins an asynchronous span: code of others runs before it ends. Such spans may overlap, and no sample is theirs by time
    alone: see {!within}. *)

val span_trace : span -> trace_id:string -> span_id:string -> unit
(** Records that a span is the one with this id of a distributed trace, such as one of OpenTelemetry: 16 and 8 bytes, not
    hexadecimal digits. Clients give the ids to the span's samples.

    @raise Invalid_argument if the lengths are others. *)

val within : span -> (unit -> 'a) -> 'a
(** [within span f] is [f ()]. The samples of its time are those of the asynchronous [span], until [f] returns or raises. Use
    it around each stretch of code that runs for the span: [f] must not wait. *)

val span_end : span -> unit
(** Ends a span. *)

(** {1 Allocations} *)

val sample_allocations : ?interval:int -> unit -> unit
(** Reports the program's own values to recordings of the modes [alloc] and [live], from now on. [Gc.Memprof] samples one
    byte in [interval] (by default 32,768) at random; each recording draws from these samples with its own mean,
    [--every], which must be at least eight times as great. Call it once, in a program that does not use [Gc.Memprof]
    otherwise. The archive must have been built with [--heap].

    A stack is that of the moment when OCaml tells of a block. Blocks that C code allocates, such as those of
    [Bytes.create] and of large arrays, have the stack of the program's next allocation.

    [Gc.Memprof] works in OCaml 4.11 to 4.14 and from 5.3 on.

    @raise Failure in OCaml 5.0 to 5.2.
    @raise Invalid_argument if the interval is less than 64. *)

(** {1 Clients}

    For guests that serve the profiler's clients over a TCP of their own: see [unikprof_connection_open] and the calls
    after it in unikprof.h. [Unikprof_lwt] and [Unikprof_mirage] use these functions. *)

type buffer = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t
(** The same type as [Cstruct.buffer]. *)

type connection
(** A client's connection. *)

val connect : unit -> connection option
(** A client has connected. [None] if the profiler is not running or all its sessions are in use: send {!refusal} to
    the client, and close its connection. *)

val input : connection -> buffer -> int -> int -> int option
(** [input connection buffer offset length] passes in bytes that the client has sent. Returns how many were accepted;
    offer the others again in the next turn of the loop. [None]: close the connection.

    @raise Invalid_argument if the bytes are not in the buffer. *)

val output : connection -> buffer -> int option
(** Fills in bytes for the client, from the beginning of the buffer. Returns how many; all of them must be sent.
    [None]: everything was sent, close the connection. *)

val disconnect : connection -> unit
(** The connection is closed or about to be closed. Call it once. *)

val refusal : unit -> string
(** The answer to a client for which there is no session. Empty if there is no archive that serves clients. *)

val never : int
(** The time of {!poll} and {!deadline} if there is nothing to wait for: [max_int]. *)

val poll : int -> int
(** [poll now_ns] does the work that is due, after all bytes have been moved. [now_ns] is the time on the clock of
    [now_ns] in [struct unikprof_ops]. Returns when to call it again even if nothing arrives, on the same clock. *)

val deadline : unit -> int
(** When the guest's timer must call [unikprof_on_tick]. A guest without [kick] in [struct unikprof_ops] sets its timer
    for this time after each {!poll}, since a recording may have begun. *)
