//! The profiler for PVH unikernels that know nothing of it: its own network device, timer,
//! interrupt vector and stack.
//!
//! `build-archive FOLDER --dropin` makes `libunikprof-dropin.a` of it; docs/guide/dropin.md
//! says how to link and configure it.
//!
//! From the top down:
//!
//! - `start`: finds what is needed in the running guest, and connects it. Whatever is missing, the
//!   guest continues without the profiler.
//! - `upcall`: the interrupt: a tick of the timer, or an event on its way to the guest's own
//!   handler.
//! - `vcpus`: what is kept of each vCPU.
//! - `delivery`: how Xen delivers events to the guest.
//! - `served`: the network device and the agent's TCP server, polled on a stack of its own.
//! - `stacks`: the guest's stacks, for traces.
//! - `events`: the calls by which the guest records events of its own.
//! - `crash`: the crash dump.
//! - `configuration`: the settings in xenstore.
//! - `machine`: the processor: page tables, the interrupt table, the local APIC, the entry of
//!   interrupts.
#![no_std]

#[cfg(test)]
extern crate std;

mod configuration;
mod console;
mod crash;
mod delivery;
mod events;
mod exclusive;
mod found;
mod image;
mod machine;
mod served;
#[cfg(feature = "trace")]
mod stacks;
mod start;
mod statics;
mod store;
mod upcall;
mod vcpus;

#[cfg(unikprof_archive)]
#[path = "../../capi/src/freestanding.rs"]
mod freestanding;
#[cfg(unikprof_archive)]
use machine as arch;

/// Starts the profiler. A second call does nothing.
///
/// Call it on the first vCPU with interrupts off or on, after the guest has mapped its shared
/// information page, loaded its interrupt table and set the vector of its events, and before it
/// uses xenstore or the grant table itself. It prints one line on the console: what it did, or why
/// it did not start.
#[allow(unsafe_code, reason = "the name is called from C")]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_dropin_start() {
    start::start();
}

/// Connects the profiler's network device again. Without it a guest that was restored from a save
/// is sampled further, and not reachable.
///
/// Call it on the first vCPU after a restore, when the guest has its shared information page and
/// the vector of its events as before, or when the device's backend has come anew; while nobody
/// uses xenstore and the console. It waits for the backend, and prints a line on the console. Keys,
/// `access` and `cpu-share` that are in xenstore replace the former ones. A guest that keeps the
/// indices of these two rings in variables of its own calls it before it connects them in the new
/// domain. Events of the guest's own watches that come during the call are lost. On another vCPU it
/// does nothing, which the host's log says.
#[allow(unsafe_code, reason = "the name is called from C")]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_dropin_resume() {
    start::resume();
}

/// Writes the crash dump on the console: what was recorded last, for `unikprof-client recover`.
/// Only the first call does.
///
/// Call it where the guest ends because of an error, on the first vCPU, with interrupts off or on.
/// It waits for the console's reader: at most 5 s without a read and 30 s in all, and at the end up
/// to 5 s more for the last lines.
#[allow(unsafe_code, reason = "the name is called from C")]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_dropin_crash() {
    crash::leave();
}

/// Has traces tell the guest's stacks apart by a function of the guest's instead of blocks of 64
/// KiB; NULL: by these again.
///
/// For the stack that contains `sp` it fills in an id below 2^63, which no other stack has
/// meanwhile, and the stack's end at present, and returns 1; or it returns 0 if that is no known
/// stack, and the call is not counted. It is called in breakpoints with interrupts off, on any
/// vCPU: it uses general registers only, and neither waits nor locks. A breakpoint in it would be
/// endless: before a trace it is called with the stack pointer of a poll, and what runs then is not
/// traced. For the guest's stacks it must not call functions that it does not call then. Call this
/// before a client traces.
#[cfg(feature = "trace")]
#[allow(unsafe_code, reason = "the name is called from C")]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_dropin_call_stacks(call_stack: Option<stacks::Ask>) {
    stacks::set(call_stack);
}

/// The same for a profiler without traces, which asks for nothing.
#[cfg(not(feature = "trace"))]
#[allow(unsafe_code, reason = "the name is called from C")]
#[unsafe(no_mangle)]
pub extern "C" fn unikprof_dropin_call_stacks(_: usize) {}
