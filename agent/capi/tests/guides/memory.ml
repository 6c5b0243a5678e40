(* What surrounds the OCaml of docs/guide/memory.md: the part of the package that it uses. *)
module Page (Unikprof : sig
  val sample_allocations : ?interval:int -> unit -> unit
end) =
struct
//= 1
end
