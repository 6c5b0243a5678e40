(** The profiler's clients over the network stack of a MirageOS guest, for guests with one network device only. *)

module Make (Stack : Tcpip.Stack.V4V6) : sig
  val serve : Stack.t -> port:int -> unit
  (** [serve stack ~port] accepts the profiler's clients on a TCP port from now on, and does the profiler's work. Call it
      once. The guest's glue has called [unikprof_init] with [solo5_clock_monotonic] as its [now_ns], and defines
      [unikprof_set_sampler]: see docs/guide/mirageos.md. *)
end
