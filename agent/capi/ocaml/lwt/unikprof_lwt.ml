open Lwt.Infix

let with_span name f =
  let span = Unikprof.async_span_begin name in
  Lwt.finalize (fun () -> Unikprof.within span f) (fun () ->
      Unikprof.span_end span;
      Lwt.return_unit)

module type FLOW = sig
  type flow
  type error
  type write_error

  val read : flow -> ([ `Data of Cstruct.t | `Eof ], error) result Lwt.t
  val write : flow -> Cstruct.t -> (unit, write_error) result Lwt.t
  val close : flow -> unit Lwt.t
end

module type TIME = sig
  val now_ns : unit -> int
  val sleep_ns : int -> unit Lwt.t
  val set_sampler : int -> unit
end

module Make (Time : TIME) (Flow : FLOW) = struct
  type client = {
    flow : Flow.flow;
    connection : Unikprof.connection;
    (* Received, and not accepted by the profiler yet. *)
    mutable input : Cstruct.t;
    (* Resolved when all of the input was accepted, or the client is gone. *)
    taken : unit Lwt_condition.t;
    (* The message under way. *)
    mutable sent : unit Lwt.t;
    mutable is_over : bool;
    over : unit Lwt.u;
  }

  let clients : client list ref = ref []
  let is_running = ref false

  (* There is something to do; turns wait for [work]. *)
  let is_due = ref false
  let work : unit Lwt_condition.t = Lwt_condition.create ()

  let wake () =
    is_due := true;
    Lwt_condition.signal work ()

  (* What the profiler writes, before it is copied into a message of its length. *)
  let output = Cstruct.create 16384

  let forget client =
    if not client.is_over then begin
      client.is_over <- true;
      clients := List.filter (fun other -> other != client) !clients;
      Unikprof.disconnect client.connection;
      Lwt_condition.broadcast client.taken ();
      Lwt.wakeup_later client.over ()
    end

  let write client length =
    (* A copy: the flow may keep it until the client has confirmed it. *)
    let message = Cstruct.create_unsafe length in
    Cstruct.blit output 0 message 0 length;
    let is_sent =
      Lwt.catch
        (fun () -> Flow.write client.flow message >|= Result.is_ok)
        (fun _ -> Lwt.return_false)
    in
    client.sent <-
      (is_sent >|= fun is_sent ->
       if not is_sent then forget client;
       wake ())

  (* Moves bytes in both directions until none move. *)
  let rec move client =
    let { Cstruct.buffer; off; len } = client.input in
    let taken = if len = 0 then Some 0 else Unikprof.input client.connection buffer off len in
    let given =
      if Lwt.is_sleeping client.sent then Some 0 else Unikprof.output client.connection output.Cstruct.buffer
    in
    match (taken, given) with
    | None, _ | _, None -> forget client
    | Some taken, Some given ->
        client.input <- Cstruct.shift client.input taken;
        if taken > 0 && Cstruct.is_empty client.input then Lwt_condition.signal client.taken ();
        if given > 0 then write client given;
        if (taken > 0 || given > 0) && not client.is_over then move client

  let rec turn () =
    is_due := false;
    List.iter move !clients;
    let again_ns = Unikprof.poll (Time.now_ns ()) in
    Time.set_sampler (Unikprof.deadline ());
    (* Also if another thread has made work, or waits to run, between two turns. *)
    (if !is_due then Lwt.pause ()
     else
       let is_woken = Lwt_condition.wait work in
       if again_ns = Unikprof.never then is_woken
       else Lwt.pick [ is_woken; Time.sleep_ns (max 0 (again_ns - Time.now_ns ())) ])
    >>= turn

  let run () =
    if not !is_running then begin
      is_running := true;
      Lwt.async turn
    end

  let rec read client =
    Flow.read client.flow >>= function
    | Ok (`Data data) when not client.is_over ->
        client.input <- data;
        wake ();
        (if Cstruct.is_empty data then Lwt.return_unit else Lwt_condition.wait client.taken)
        >>= fun () -> if client.is_over then Lwt.return_unit else read client
    | Ok _ | Error _ -> Lwt.return_unit

  let serve_connection flow connection =
    let is_over, over = Lwt.wait () in
    let client =
      {
        flow;
        connection;
        input = Cstruct.empty;
        taken = Lwt_condition.create ();
        sent = Lwt.return_unit;
        is_over = false;
        over;
      }
    in
    clients := client :: !clients;
    wake ();
    Lwt.pick [ is_over; read client ] >>= fun () ->
    forget client;
    client.sent

  let serve flow =
    run ();
    let served () =
      match Unikprof.connect () with
      | Some connection -> serve_connection flow connection
      | None -> Flow.write flow (Cstruct.of_string (Unikprof.refusal ())) >|= ignore
    in
    Lwt.catch served (fun _ -> Lwt.return_unit) >>= fun () ->
    Lwt.catch (fun () -> Flow.close flow) (fun _ -> Lwt.return_unit)
end
