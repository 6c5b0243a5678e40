(* A guest in OCaml whose loop is Lwt's: it works in spans, and serves the profiler's clients over its own sockets.

   It prints `listening on ADDRESS`, and ends when its standard input ends. *)
open Lwt.Infix

external start : unit -> unit = "guest_start"
external now_ns : unit -> int = "guest_now_ns" [@@noalloc]
external set_sampler : int -> unit = "guest_set_sampler" [@@noalloc]

module Time = struct
  let now_ns = now_ns
  let sleep_ns ns = Lwt_unix.sleep (float_of_int ns /. 1e9)
  let set_sampler = set_sampler
end

module Flow = struct
  type flow = Lwt_unix.file_descr
  type error = Unix.error
  type write_error = Unix.error

  let checked f = Lwt.catch f (function Unix.Unix_error (error, _, _) -> Lwt.return_error error | e -> Lwt.fail e)

  let read socket =
    checked (fun () ->
        let bytes = Bytes.create 512 in
        Lwt_unix.read socket bytes 0 512 >|= function
        | 0 -> Ok `Eof
        | length -> Ok (`Data (Cstruct.of_bytes ~len:length bytes)))

  let write socket message =
    let rec from offset =
      let left = Cstruct.length message - offset in
      if left = 0 then Lwt.return_ok ()
      else Lwt_unix.write socket (Cstruct.to_bytes message) offset left >>= fun length -> from (offset + length)
    in
    checked (fun () -> from 0)

  let close = Lwt_unix.close
end

module Clients = Unikprof_lwt.Make (Time) (Flow)

let[@inline never] rec spin left state =
  if left = 0 then state else spin (left - 1) (state lxor (state lsl 13) lxor (state lsr 7))

(* A span that ends by an exception. *)
let[@inline never] fail number =
  Unikprof.with_span "fails" (fun () -> if number >= 0 then raise Not_found else number)

let[@inline never] rec cells count list = if count = 0 then list else cells (count - 1) (count :: list)

(* Cells that are dropped at once, and as many that stay. *)
let[@inline never] drop () = ignore (List.length (cells 400 []))

let kept = ref []
let kept_bytes = ref 0

let[@inline never] keep () =
  if !kept_bytes < 200_000_000 then begin
    kept := cells 400 !kept;
    (* A cell has a header and two words. *)
    kept_bytes := !kept_bytes + (400 * 24)
  end;
  Unikprof.counter "kept" !kept_bytes

let rec work number state =
  drop ();
  keep ();
  let state = Unikprof.with_span "turn" (fun () -> spin 1_000_000 state) in
  Unikprof.mark ~value:number "number";
  Unikprof.counter "below zero" (-number);
  assert (match fail number with _ -> false | exception Not_found -> true);
  (* No event name: empty, with a 0, not UTF-8. *)
  List.iter Unikprof.mark [ ""; "a\000b"; "\xff" ];
  Lwt.pause () >>= fun () -> work (number + 1) state

(* Spans of promises: each lasts while others work. *)
let rec wait () =
  Lwt_unix.sleep 0.002 |> fun promise ->
  Unikprof_lwt.with_span "waits" (fun () -> promise) >>= fun () ->
  Lwt.catch
    (fun () -> Unikprof_lwt.with_span "rejected" (fun () -> Lwt_unix.sleep 0.002 >>= fun () -> Lwt.fail Not_found))
    (fun _ -> Lwt.return_unit)
  >>= wait

let listen () =
  let socket = Lwt_unix.(socket PF_INET SOCK_STREAM 0) in
  Lwt_unix.bind socket Unix.(ADDR_INET (inet_addr_loopback, 0)) >>= fun () ->
  Lwt_unix.listen socket 8;
  (match Lwt_unix.getsockname socket with
   | Unix.ADDR_INET (_, port) -> Printf.printf "listening on 127.0.0.1:%d\n%!" port
   | Unix.ADDR_UNIX _ -> assert false);
  let rec accept () =
    Lwt_unix.accept socket >>= fun (client, _) ->
    Lwt.async (fun () -> Clients.serve client);
    accept ()
  in
  accept ()

let rec input_ended () = Lwt_unix.read Lwt_unix.stdin (Bytes.create 1) 0 1 >>= fun length ->
  if length = 0 then Lwt.return_unit else input_ended ()

let () =
  Sys.set_signal Sys.sigpipe Sys.Signal_ignore;
  start ();
  Unikprof.sample_allocations ~interval:4_096 ();
  Lwt_main.run (Lwt.pick [ input_ended (); listen (); work 0 1; wait () ])
