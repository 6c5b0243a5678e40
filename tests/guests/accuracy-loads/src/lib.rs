//! Loads with known profiles, for the accuracy suite.
//!
//! All are plain functions without state, so that the same code runs in a process and in a
//! unikernel. True times are measured with the caller's clock: a closure that returns the running
//! time of this vCPU or thread in ns. Blocked or stolen time must not advance it.
//!
//! | module | what is known of it |
//! |---|---|
//! | [`shares`] | how long each of a dozen functions ran |
//! | [`leaves`] | the share of each caller of shared leaf functions; small, shrink-wrapped and tail-calling functions |
//! | [`periodic`] | the halves of a period take the same time, in step with a sampler of that period |
//! | [`slowdown`] | by how much a function has become slower |
//! | [`bursts`] | how long each burst of work is |
//! | [`depth`] | how deep the stack is |
//! | [`chains`] | what is wrong with the chain of frame pointers |
//!
//! [`orders`] has the text by which a guest is told to run them.
//!
//! Functions that a profile must name have `#[inline(never)]` and unique names. A caller modifies
//! each result, so that no call becomes a tail jump unless it should.
#![no_std]

extern crate alloc;

#[cfg(test)]
extern crate std;

pub mod bursts;
pub mod chains;
pub mod depth;
pub mod leaves;
pub mod meter;
pub mod orders;
pub mod periodic;
pub mod shares;
pub mod slowdown;
mod work;
