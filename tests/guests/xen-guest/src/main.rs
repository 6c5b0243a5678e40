//! A small unikernel for x86-64 (PVH) and aarch64: boots on Xen, serves TCP, and its timer
//! interrupts it for a sampler.
//!
//! Reading order: `arch` (what differs between the processors: `boot`, from Xen's entry to Rust,
//! `interrupts`, `start_info`, `processor`), `heap` (memory), `hypervisor` (the connection to Xen),
//! `vcpus`, `timer`, `upcall` (events), `idle`, and here the main loop: poll, then sleep until the
//! next deadline or event.
//!
//! # The command line
//!
//! `xl save`, `restore`, `migrate`, `shutdown` and `reboot` work without any of these words.
//!
//! | word | what it does | feature |
//! |---|---|---|
//! | `ip=10.0.2.50/24` `gateway=10.0.2.2` | the network; without `ip` there is none | |
//! | `ip=dhcp` | an address from the network | |
//! | `ip=xenstore` | the address in `vm-data/ip`, or of the `vif` in the domain's configuration | |
//! | `faults=loss:5,duplicate:2,reorder:3,corrupt:1,seed:1` | a bad line, in percent of the frames | |
//! | `echo=7` | sends back the bytes received on a TCP port | |
//! | `stats=7001` | sends each TCP client the vCPUs' statistics, a line `NAME VALUE` each: see `statistics` | |
//! | `profiler=keys:7777` | serves the profiler to clients with a key, see `profiler_access`; without it, to none | `agent` |
//! | `profiler=open:7777` | serves it to every client | `agent` |
//! | `trace=yes` | lets clients trace functions: anyone if the profiler is open, else who has a key for it | `trace` |
//! | `record-at-boot=NAME` | begins an always-on recording with that name at boot | `agent` |
//! | `ticks=host`, `ticks=owned` | the owner of the timer: the guest (the default) or the profiler | `agent` |
//! | `vcpus=2` | the number of running vCPUs; those after the first run only the load | |
//! | `offline=400` | with two vCPUs that work, the second one stops itself after 400 ms, and is started again 400 ms later (aarch64) | |
//! | `load=50` | works half of each vCPU's time, for the demo service | `demo` |
//! | `hotspots=50` | the same in functions of known shares: see `hotspots` | |
//! | `allocations=50` | the same with allocations of known sizes and numbers: see `allocations` | `heap` |
//! | `chatter=100` | the same with a loop that writes to the console: see `chatter` | |
//! | `probed=50` | the same in 250 functions for traces: see `arch::probed` | `trace` |
//! | `signals=20` | with two vCPUs, the second one sleeps until signals of the first, sent for 20 % of its time: see `arch::signals` | `gate` |
//! | `burst_after=5` | once, after 5 s, two seconds of other work: see `burst` | `agent` |
//! | `events=upcalls` | reports some timer upcalls by marks, from within them | `agent` |
//! | `panic_after=5` `panic_in=upcall` | after 5 s a second of work that ends in a panic: see `failing` | `agent` |
//! | `stuck=loop`, `panic` `stuck_after=5` | the main loop never polls again, or panics, after 5 s (0) | |
//! | `bare=1000` | empty ticks at 1 kHz, for comparison; not together with the profiler | |
//! | `orders=7002` | executes orders, lines on a TCP port, and answers the true values: see `accuracy` | `accuracy` |
//! | `captures=7003` | sends the samples that such an order has captured | `accuracy` |
//! | `misbehave=panic`, `null`, `triple-fault`, `power-off` | ends the guest in this way | |

#![no_std]
#![no_main]

extern crate alloc;

#[cfg(feature = "accuracy")]
mod accuracy;
mod addressing;
#[cfg(feature = "heap")]
mod allocations;
#[cfg(target_arch = "aarch64")]
#[path = "aarch64/mod.rs"]
mod arch;
#[cfg(target_arch = "x86_64")]
#[path = "x86_64/mod.rs"]
mod arch;
mod bare;
#[cfg(feature = "agent")]
mod burst;
#[cfg(feature = "accuracy")]
mod capture;
mod channel;
mod chatter;
mod command_line;
mod console;
#[cfg(feature = "agent")]
mod crash;
#[cfg(feature = "demo")]
mod demo;
mod echo;
#[cfg(feature = "agent")]
mod events;
#[cfg(feature = "agent")]
mod failing;
mod faults;
mod guest;
mod heap;
mod hotspots;
mod hypercalls;
mod hypervisor;
mod idle;
mod load;
mod lock;
mod memory_functions;
mod misbehave;
mod network;
mod network_device;
mod panic;
mod power;
#[cfg(feature = "agent")]
mod profiler;
#[cfg(feature = "agent")]
mod profiler_access;
mod sampler;
mod served;
mod statistics;
mod statistics_service;
mod store;
mod stuck;
mod suspend;
mod timer;
mod upcall;
mod vcpus;

#[cfg(feature = "trace")]
use crate::arch::breakpoints;
#[cfg(target_arch = "x86_64")]
use crate::arch::descriptors;
#[cfg(feature = "gate")]
use crate::arch::dropin;
#[cfg(feature = "gate")]
use crate::arch::signals;
use crate::arch::{boot, early_console, interrupts, processor, random, start_info};
use crate::command_line::CommandLine;
use crate::guest::Guest;

/// The first Rust code, on the first vCPU with interrupts off.
#[unsafe(no_mangle)]
#[allow(unsafe_code, reason = "called by the assembly of `boot`")]
extern "C" fn kernel_main(start_info_address: u64) -> ! {
    early_println!("xen-guest: started");
    vcpus::attach_first();
    // SAFETY: the address comes from Xen, and the heap is still empty.
    let start = unsafe { start_info::read(start_info_address) }
        .unwrap_or_else(|error| panic!("start info at {start_info_address:#x}: {error}"));
    // SAFETY: this memory is after everything in use.
    unsafe { heap::give(start.free_memory.clone()) };
    early_println!(
        "xen-guest: {} KiB of heap, command line {:?}",
        (start.free_memory.end - start.free_memory.start) / 1024,
        start.command_line
    );
    let (major, minor) = hypervisor::connect().unwrap_or_else(|errno| panic!("Xen: {errno}"));
    vcpus::connect_current().unwrap_or_else(|errno| panic!("the first vCPU: {errno}"));
    interrupts::enable();
    // Its line would be overwritten by a console that is connected already.
    #[cfg(feature = "gate")]
    dropin::start();
    console::connect().unwrap_or_else(|errno| panic!("the console: {errno}"));
    println!("xen-guest: up on Xen {major}.{minor}");

    let command_line = CommandLine(start.command_line);
    if let Some(word) = command_line.value("misbehave") {
        misbehave::misbehave(word);
    }
    Guest::start(command_line).run()
}
