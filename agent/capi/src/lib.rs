//! The agent for guests that are not written in Rust.
//!
//! The C ABI is in [`abi`] (structures and constants), [`status`] (error codes) and [`ffi`] (the
//! calls). The header `include/unikprof.h` is generated from them. `README.md` in this package says
//! how to build the static library and what a guest has to do.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod abi;
pub mod ffi;
#[cfg(unikprof_archive)]
mod freestanding;
#[cfg(feature = "smoltcp")]
mod network;
#[cfg(not(feature = "smoltcp"))]
#[path = "no_network.rs"]
mod network;
pub mod status;
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("the C archive is for x86_64 and aarch64");
