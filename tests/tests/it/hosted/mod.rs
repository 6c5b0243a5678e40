//! The whole way on one machine: guests that are processes, and the client's own program.

#![allow(clippy::unwrap_used)]

mod harness;

mod always_on;
mod analysis;
mod attribution;
mod build_ids;
mod c_guest;
mod callers;
mod collect;
mod demo;
mod diff;
mod events;
mod fleet;
mod fleet_record;
mod heap;
mod hostile;
mod hostile_keyed;
mod idle;
mod keyed;
mod kinds_of_time;
mod lines;
mod many_guests;
mod merge;
mod minute;
mod ocaml_guest;
mod ocaml_package;
mod page;
mod pprof;
mod reading;
mod recordings;
mod sharing;
mod snapshot;
mod threads;
mod timeline;
mod top;
mod trace;
mod trace_languages;
mod viewers;
mod windows;
