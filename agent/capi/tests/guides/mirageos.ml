(* What surrounds the OCaml of docs/guide/mirageos.md: the parts of the libraries that it uses. *)
module type LWT = sig
  type 'a t
end

module Page
    (Lwt : LWT)
    (Cstruct : sig
      type t
    end)
    (Stack : sig
      type t

      module TCP : sig
        type flow
        type write_error

        val write : flow -> Cstruct.t -> (unit, write_error) result Lwt.t
      end
    end)
    (Unikprof : sig
      val mark : ?value:int -> string -> unit
      val with_span : string -> (unit -> 'a) -> 'a
    end)
    (Unikprof_lwt : sig
      val with_span : string -> (unit -> 'a Lwt.t) -> 'a Lwt.t
    end)
    (Unikprof_mirage : sig
      module Make (Stack : sig
        type t
      end) : sig
        val serve : Stack.t -> port:int -> unit
      end
    end)
    (Guest : sig
      val render : string -> Cstruct.t
    end) =
struct
  open Guest

//= 1
//= 2
end
