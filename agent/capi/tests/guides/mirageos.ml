(* What surrounds the OCaml of docs/embedding/mirageos.md: the type of Cstruct. *)
module Cstruct = struct
  type buffer = (char, Bigarray.int8_unsigned_elt, Bigarray.c_layout) Bigarray.Array1.t
end

//= 1
