//! Loads whose profile is known before it is taken: what the accuracy suite runs.
//!
//! All are plain functions without memory of their own, so that the same code runs in a process and in
//! a unikernel. Where a truth is measured, it is measured with a clock that the caller brings: a closure
//! that answers the ns that this vCPU or thread has run. Time spent blocked or stolen must not advance it.
//!
//! | module | what is known of it |
//! |---|---|
//! | [`shares`] | how long each of a dozen functions ran |
//! | [`leaves`] | the share of each caller of shared leaf functions; small, shrink-wrapped and tail-calling functions |
//! | [`periodic`] | the halves of a period take the same time, in step with a sampler of that period |
//! | [`slowdown`] | by how much a function has become slower |
//! | [`bursts`] | how long each burst of work is |
//! | [`depth`] | how deep the stack is |
//! | [`chains`] | what is wrong with the chain of frame pointers (x86_64) |
//!
//! Functions that a profile must name carry `#[inline(never)]` and names of their own. What a caller
//! gets back it still changes, so that no call is made a jump where none is meant.
#![no_std]

#[cfg(test)]
extern crate std;

pub mod bursts;
#[cfg(target_arch = "x86_64")]
pub mod chains;
pub mod depth;
pub mod leaves;
pub mod meter;
pub mod periodic;
pub mod shares;
pub mod slowdown;
mod work;
