//! An allocator for Rust guests that reports to the agent.
#![allow(unsafe_code, reason = "an allocator's methods are unsafe")]

use core::alloc::{GlobalAlloc, Layout};
use core::ptr;
use core::sync::atomic::{AtomicPtr, Ordering};

use crate::agent::Agent;
use crate::ground::platform::Platform;

/// An allocator that reports the allocations of another one to the agent, once there is one.
///
/// ```
/// use std::alloc::System;
/// # #[cfg(feature = "hosted")]
/// # mod guest {
/// # use std::alloc::System;
/// use unikprof_agent::heap::Sampled;
/// use unikprof_agent::hosted::Hosted;
///
/// #[global_allocator]
/// static HEAP: Sampled<System, Hosted> = Sampled::new(System);
/// // At the start: HEAP.attach(guest.agent());
/// # }
/// ```
///
/// Until [`attach`](Self::attach) it only forwards. Afterwards a call costs about a nanosecond
/// more, and a sampled one a microsecond.
#[derive(Debug)]
pub struct Sampled<A, P: Platform + 'static> {
    allocator: A,
    agent: AtomicPtr<Agent<'static, P>>,
}

impl<A, P: Platform> Sampled<A, P> {
    /// An allocator that forwards to `allocator`.
    pub const fn new(allocator: A) -> Self {
        Self { allocator, agent: AtomicPtr::new(ptr::null_mut()) }
    }

    /// Reports all calls from now on to this agent.
    pub fn attach(&self, agent: &'static Agent<'static, P>) {
        self.agent.store(ptr::from_ref(agent).cast_mut(), Ordering::Release);
    }

    #[inline(always)]
    fn agent(&self) -> Option<&'static Agent<'static, P>> {
        // SAFETY: the pointer is NULL or came from a reference to an agent that lives for ever.
        unsafe { self.agent.load(Ordering::Acquire).as_ref() }
    }
}

// SAFETY: every method forwards to the inner allocator with the caller's arguments.
unsafe impl<A: GlobalAlloc, P: Platform> GlobalAlloc for Sampled<A, P> {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc`.
        let address = unsafe { self.allocator.alloc(layout) };
        if let Some(agent) = self.agent() {
            agent.on_alloc(address, layout.size());
        }
        address
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller upholds the contract of `alloc_zeroed`.
        let address = unsafe { self.allocator.alloc_zeroed(layout) };
        if let Some(agent) = self.agent() {
            agent.on_alloc(address, layout.size());
        }
        address
    }

    #[inline]
    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        // Before another vCPU can get the address.
        if let Some(agent) = self.agent() {
            agent.on_free(address);
        }
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { self.allocator.dealloc(address, layout) };
    }

    #[inline]
    unsafe fn realloc(&self, address: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let agent = self.agent();
        let held = agent
            .filter(|agent| agent.may_be_live(address))
            .and_then(|agent| agent.take_live(address));
        // SAFETY: the caller upholds the contract of `realloc`.
        let new = unsafe { self.allocator.realloc(address, layout, size) };
        if let Some(agent) = agent {
            if let Some(held) = held
                && !(new.is_null() && agent.put_back(&held))
            {
                super::count_freed(agent.slots, held.entry.held);
            }
            agent.on_alloc(new, size);
        }
        new
    }
}
