(** The profiler in a program that uses Lwt. *)

val with_span : string -> (unit -> 'a Lwt.t) -> 'a Lwt.t
(** [with_span name f] is [f ()]. An asynchronous span with this name lasts from the call until the promise is resolved or
    rejected, whatever else runs meanwhile. Samples until [f] returns its promise are the span's own. What runs after a wait
    has no span: Lwt does not tell for whom it calls a callback. Where that work matters, begin the span by
    {!Unikprof.async_span_begin} and run the work in {!Unikprof.within}. *)

(** {1 Serving the profiler's clients}

    For guests whose only TCP is in OCaml, and which therefore link [libunikprof.a]: the drop-in archive has a network
    device of its own and serves its clients itself. *)

(** A TCP connection. A MirageOS flow has this signature. *)
module type FLOW = sig
  type flow
  type error
  type write_error

  val read : flow -> ([ `Data of Cstruct.t | `Eof ], error) result Lwt.t
  val write : flow -> Cstruct.t -> (unit, write_error) result Lwt.t
  val close : flow -> unit Lwt.t
end

(** The guest's clock and timer. *)
module type TIME = sig
  val now_ns : unit -> int
  (** The time on the clock of [now_ns] in [struct unikprof_ops]. *)

  val sleep_ns : int -> unit Lwt.t
  (** Is resolved after this many ns. *)

  val set_sampler : int -> unit
  (** Sets the timer that calls [unikprof_on_tick] for this time, or turns it off for {!Unikprof.never}. Does nothing
      in a guest that has [kick] in [struct unikprof_ops]. *)
end

module Make (_ : TIME) (Flow : FLOW) : sig
  val serve : Flow.flow -> unit Lwt.t
  (** Serves the client at the other end, and closes the connection. Never rejected. Use it to accept connections on a
      TCP port; every client may have a connection. If a recording may run that no client has started, call {!run}. *)

  val run : unit -> unit
  (** Does the profiler's work from now on. {!serve} calls it. A second call does nothing. *)
end
