external set_sampler : int -> unit = "unikprof_ml_set_sampler" [@@noalloc]

module Time = struct
  let now_ns () = Int64.to_int (Mirage_mtime.elapsed_ns ())
  let sleep_ns ns = Mirage_sleep.ns (Int64.of_int ns)
  let set_sampler = set_sampler
end

module Make (Stack : Tcpip.Stack.V4V6) = struct
  module Clients = Unikprof_lwt.Make (Time) (Stack.TCP)

  let serve stack ~port =
    Clients.run ();
    Stack.TCP.listen (Stack.tcp stack) ~port Clients.serve
end
