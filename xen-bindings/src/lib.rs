#![cfg_attr(not(test), no_std)]
//! The guest side of the Xen ABI, without `std` and without allocation, for PVH and HVM guests on
//! x86_64 and for guests on aarch64.
//!
//! The crate reads from bottom to top; each layer uses only those before it.
//!
//! 1. [`abi`]: layouts and numbers, with the header each comes from. No behaviour.
//! 2. [`Hypercall`]: how the guest calls Xen. [`HypercallPage`] implements it, found through
//!    [`cpuid`], and for tests `fake::FakeXen` (feature `fake`). [`Errno`] is the error it returns.
//! 3. [`SharedPage`]: memory that other domains or Xen also write. Values are copied in and out,
//!    with checks.
//! 4. One vCPU, all usable through shared references inside an upcall, without lock, allocation or
//!    panic: [`events`], [`clock`], [`timer`], [`runstate`], [`sched`], [`vcpu`].
//! 5. The domain's own resources: [`version`], [`start_info`], [`hvm`], [`memory`].
//! 6. Sharing with other domains: [`grant`], [`ring`], and [`Channel`] to wait for them.
//! 7. Communicating with other domains: [`xenstore`], [`console`], [`last_words`], [`xenbus`],
//!    [`net`].
//!
//! # What is trusted
//!
//! Xen is trusted. Backends, consoles and xenstore are not: indices that jump, unsolicited answers,
//! lengths beyond the page and unknown codes are typed errors or are preserved (`Unsupported`).
//! They cause no out-of-bounds access and no panic. After such an error the ring concerned is not
//! used again.
//!
//! `unsafe` is in few files: the hypercall and its table of operations, pages, the places where
//! memory is given to Xen by address (`memory`, `vcpu`, `grant`), the start information, and single
//! instructions (clocks, system registers, starting a vCPU). A constructor over raw memory is one
//! `unsafe fn` with a stated contract; what it makes is safe to use.
//!
//! # The order of a boot
//!
//! ```no_run
//! use xen_sys_lite::clock::Clock;
//! use xen_sys_lite::events::{EventChannels, Upcall, Virq};
//! use xen_sys_lite::memory::SharedInfoPage;
//! use xen_sys_lite::timer;
//! use xen_sys_lite::vcpu::VcpuId;
//! use xen_sys_lite::{HypercallPage, PageMemory, SharedPage, hvm};
//!
//! static HYPERCALLS: PageMemory = PageMemory::new();
//! static SHARED: PageMemory = PageMemory::new();
//! const BOOT: VcpuId = VcpuId(0);
//!
//! // SAFETY: an identity-mapped guest at ring 0; each page is used for this alone.
//! let (xen, page) = unsafe {
//!     let address = HYPERCALLS.base().addr().get() as u64;
//!     (HypercallPage::install(HYPERCALLS.base(), address)?, SharedPage::identity(SHARED.base()))
//! };
//! let shared = SharedInfoPage::map(&xen, page)?.get();
//! let events = EventChannels::new(xen, shared);
//! events.mask_all();
//! hvm::set_callback_vector(&xen, 0x40)?;
//!
//! let upcall = Upcall::for_legacy_vcpu(shared, BOOT).ok_or("more than 32 vCPUs")?;
//! let clock = Clock::new(shared, BOOT).ok_or("more than 32 vCPUs")?;
//! let tick = events.bind_virq(Virq::TIMER, BOOT)?;
//! upcall.own(tick);
//! events.unmask(tick)?;
//! timer::set_singleshot(&xen, clock.now_ns() + 1_000_000)?;
//!
//! // In the handler of interrupt 0x40, with `upcall` in a static:
//! upcall.demux(|port| {
//!     if port == tick {
//!         let _ = timer::set_singleshot(&xen, clock.now_ns() + 1_000_000);
//!     }
//! });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # After a restore or migration
//!
//! When [`sched::suspend`] returns [`Woken::InNewDomain`](sched::Woken::InNewDomain), Xen's state
//! for the guest is gone. Restore it in this order: [`HypercallPage::install`] again,
//! [`SharedInfoPage::map_again`](memory::SharedInfoPage::map_again), mask all ports and set the
//! callback, [`runstate::register`] and [`vcpu::register_vcpu_info`] for each vCPU, bind the
//! virtual interrupts, [`GrantTable::resume`](grant::GrantTable::resume), a new
//! [`Store`](xenstore::Store) and [`Console`](console::Console) from the HVM parameters, and
//! [`Netfront::resume`](net::Netfront::resume). System time has a different origin.
//!
//! # Limits
//!
//! Two-level event channels (4,096 ports), grant table version 1 (frames below 2³²), one queue for
//! each network device, frames in one piece (no scatter-gather, no segmentation offload).
//!
//! # Features
//!
//! - `smoltcp`: [`net::Netfront`] is a `smoltcp::phy::Device`.
//! - `fake`: the hypervisor, xenstore and network backend of the tests, for other crates' tests too
//!   (`std`).

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
compile_error!("this crate supports Xen on x86_64 and aarch64");

#[cfg(all(feature = "fake", not(test)))]
extern crate std;

pub mod abi;
mod byte_ring;
mod channel;
pub mod clock;
pub mod console;
#[cfg(any(target_arch = "aarch64", test))]
pub mod device_tree;
mod errno;
pub mod events;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod grant;
pub mod hvm;
mod hypercall;
mod index;
pub mod last_words;
pub mod memory;
pub mod net;
mod page;
#[cfg(any(target_arch = "aarch64", test))]
mod psci;
pub mod ring;
pub mod runstate;
pub mod sched;
pub mod vcpu;
pub mod version;
pub mod xenbus;
pub mod xenstore;

/// The processor's atomics; `tests/rings_model.rs` has loom's in their place.
mod sync {
    pub(crate) use core::sync::atomic::{AtomicU32, Ordering, fence};
}

// What differs between processor architectures.
#[cfg(target_arch = "x86_64")]
mod x86_64;
#[cfg(target_arch = "x86_64")]
use x86_64 as arch;
#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg(target_arch = "aarch64")]
use aarch64 as arch;

pub use arch::*;
pub use channel::{Channel, PolledChannel};
pub use errno::Errno;
pub use hypercall::Hypercall;
pub use page::{Frame, OutOfPage, PageMemory, Plain, SharedPage};
