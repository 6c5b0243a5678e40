//! The hypervisor of the tests.

#![allow(unsafe_code, reason = "granted pages are found by frame")]

use std::boxed::Box;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::physical::{full_page, leak_page};
use super::state::{FakePort, PortKind, State, Vcpu};
use crate::abi::grant_table;
use crate::abi::xen::SharedInfo;
use crate::errno::Errno;
use crate::events::{Port, Virq};
use crate::hvm::Param;
use crate::memory::SharedInfoPage;
use crate::page::{Frame, SharedPage};
use crate::vcpu::VcpuId;

/// The other end of a port: called when the guest sends to it.
pub(super) type Backend = Box<dyn FnMut(&FakeXen) + Send>;

/// Answers the hypercalls of this crate as Xen does.
///
/// One domain lives in it. Its memory is the pages of [`leak_page`]; other guest-physical addresses
/// are taken for the process's own. Time moves by [`advance`](Self::advance) and by blocking until
/// a deadline, and clocks read exactly that.
pub struct FakeXen {
    pub(super) state: Mutex<State>,
    pub(super) backends: Mutex<BTreeMap<u32, Arc<Mutex<Backend>>>>,
    pub(super) suspend_cancelled: AtomicBool,
    pub(super) hypercalls: AtomicU64,
}

/// Why a backend could not use a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GrantFault {
    /// There is no such entry.
    BadReference,
    /// The entry permits nothing, or not to this domain.
    NotPermitted,
    /// The entry permits reading only.
    ReadOnly,
}

impl FakeXen {
    /// A domain with vCPU 0 up, nothing mapped, and system time zero.
    #[must_use]
    pub fn new() -> Self {
        let mut state = State::default();
        state.vcpus.insert(0, Vcpu { initialised: true, up: true, ..Vcpu::default() });
        Self {
            state: Mutex::new(state),
            backends: Mutex::default(),
            suspend_cancelled: AtomicBool::new(false),
            hypercalls: AtomicU64::new(0),
        }
    }

    /// Adds a vCPU that is not initialised.
    pub fn add_vcpu(&self, vcpu: VcpuId) {
        self.state().vcpus.insert(vcpu.0, Vcpu::default());
    }

    /// Starts a vCPU that was added.
    pub fn start_vcpu(&self, vcpu: VcpuId) {
        if let Some(vcpu) = self.state().vcpus.get_mut(&vcpu.0) {
            (vcpu.initialised, vcpu.up) = (true, true);
        }
    }

    /// Makes `vcpu` the one that calls: only it can set its timer.
    pub fn run_as(&self, vcpu: VcpuId) {
        self.state().current = vcpu.0;
    }

    /// Maps the shared information page at a new page, with every port unmasked as Xen leaves them.
    #[must_use]
    pub fn map_shared_info(&self) -> &'static SharedInfo {
        match SharedInfoPage::map(self, leak_page()) {
            Ok(page) => page.get(),
            Err(errno) => unreachable!("the fake maps any page: {errno}"),
        }
    }

    /// Moves time on, and raises the timer of vCPUs whose deadline is reached.
    pub fn advance(&self, ns: u64) {
        let mut state = self.state();
        state.now_ns = state.now_ns.saturating_add(ns);
        state.expire_timers();
        state.publish_time();
    }

    /// System time.
    #[must_use]
    pub fn now_ns(&self) -> u64 {
        self.state().now_ns
    }

    /// Sets the system time that the domain finds after a restore: less than now on a host that has
    /// booted later. Zero unless set.
    pub fn set_restored_ns(&self, system_time_ns: u64) {
        self.state().restored_ns = system_time_ns;
    }

    /// Sets the time of day at system time zero.
    pub fn set_wall_base(&self, seconds: u64, nanoseconds: u32) {
        if let Some(shared) = self.state().shared {
            shared.wc_version.fetch_add(1, Ordering::SeqCst);
            shared.wc_sec.store(seconds as u32, Ordering::SeqCst);
            shared.wc_sec_hi.store((seconds >> 32) as u32, Ordering::SeqCst);
            shared.wc_nsec.store(nanoseconds, Ordering::SeqCst);
            shared.wc_version.fetch_add(1, Ordering::SeqCst);
        }
    }

    /// Moves time on while `vcpu` waits for a physical CPU.
    pub fn steal(&self, vcpu: VcpuId, ns: u64) {
        if let Some(vcpu) = self.state().vcpus.get_mut(&vcpu.0) {
            vcpu.stolen_ns += ns;
        }
        self.advance(ns);
    }

    /// Moves time on while `vcpu` is blocked.
    pub fn sleep(&self, vcpu: VcpuId, ns: u64) {
        if let Some(vcpu) = self.state().vcpus.get_mut(&vcpu.0) {
            vcpu.blocked_ns += ns;
        }
        self.advance(ns);
    }

    /// Raises a virtual interrupt; nothing happens where it is not bound.
    pub fn raise_virq(&self, virq: Virq, vcpu: VcpuId) {
        self.state().raise_virq(virq.0, vcpu.0);
    }

    /// Raises the port of the guest's end, as a backend does to notify it.
    pub fn raise(&self, port: Port) {
        self.state().raise(port.0);
    }

    /// Makes a port that is connected to domain `remote`, as the tools do for console and xenstore.
    pub fn connected_port(&self, remote: u16) -> Port {
        let mut state = self.state();
        Port(state.open(FakePort { kind: PortKind::Interdomain(remote, 1), vcpu: 0 }))
    }

    /// Calls `backend` whenever the guest sends to `port`.
    pub fn attach(&self, port: Port, backend: impl FnMut(&Self) + Send + 'static) {
        let backend: Backend = Box::new(backend);
        self.lock_backends().insert(port.0, Arc::new(Mutex::new(backend)));
    }

    /// Takes away what [`attach`](Self::attach) gave.
    pub fn detach(&self, port: Port) {
        self.lock_backends().remove(&port.0);
    }

    /// Connects a backend to a port the guest offers to `domain`.
    ///
    /// # Errors
    /// `EINVAL` where the guest does not offer that port to that domain.
    pub fn bind(&self, port: Port, domain: u16) -> Result<(), Errno> {
        match self.state().ports.get_mut(&port.0) {
            Some(found) if found.kind == PortKind::Unbound(domain) => {
                found.kind = PortKind::Interdomain(domain, port.0);
                Ok(())
            }
            _ => Err(Errno::EINVAL),
        }
    }

    /// Is the port open?
    #[must_use]
    pub fn is_open(&self, port: Port) -> bool {
        self.state().ports.contains_key(&port.0)
    }

    /// Number of open ports.
    #[must_use]
    pub fn open_ports(&self) -> usize {
        self.state().ports.len()
    }

    /// Sets a parameter, as the tools do.
    pub fn set_tool_param(&self, param: Param, value: u64) {
        self.state().params.insert(param.0, value);
    }

    /// A parameter as it stands.
    #[must_use]
    pub fn tool_param(&self, param: Param) -> Option<u64> {
        self.state().params.get(&param.0).copied()
    }

    /// The upcall vector of a vCPU.
    #[must_use]
    pub fn upcall_vector(&self, vcpu: VcpuId) -> Option<u8> {
        self.state().upcall_vectors.get(&vcpu.0).copied()
    }

    /// The deadline of a vCPU's single shot.
    #[must_use]
    pub fn deadline_ns(&self, vcpu: VcpuId) -> Option<u64> {
        self.state().vcpus.get(&vcpu.0)?.deadline_ns
    }

    /// Reason of the last shutdown (`SHUTDOWN_*`).
    #[must_use]
    pub fn shutdown_reason(&self) -> Option<u32> {
        self.state().shutdown
    }

    /// Makes the next suspends come back in the same domain.
    pub fn cancel_suspend(&self) {
        self.suspend_cancelled.store(true, Ordering::SeqCst);
    }

    /// Hypercalls made so far.
    #[must_use]
    pub fn hypercalls(&self) -> u64 {
        self.hypercalls.load(Ordering::SeqCst)
    }

    /// The page behind a grant, as a backend of `domain` copies to or from it.
    ///
    /// # Errors
    /// See [`GrantFault`].
    pub fn granted(
        &self,
        domain: u16,
        reference: u32,
        write: bool,
    ) -> Result<SharedPage, GrantFault> {
        let entry = self.grant_entry(reference).ok_or(GrantFault::BadReference)?;
        let flags = entry.flags.load(Ordering::Acquire);
        if flags & grant_table::GTF_PERMIT_ACCESS == 0
            || entry.domain.load(Ordering::Relaxed) != domain
        {
            return Err(GrantFault::NotPermitted);
        }
        if write && flags & grant_table::GTF_READONLY != 0 {
            return Err(GrantFault::ReadOnly);
        }
        let frame = Frame(u64::from(entry.frame.load(Ordering::Relaxed)));
        // SAFETY: guests under the fake grant pages of `leak_page` only, or statics: mapped for
        // ever.
        unsafe { full_page(frame) }.ok_or(GrantFault::BadReference)
    }

    /// Maps a grant, as a backend of `domain` does: the guest cannot end it until
    /// [`unmap`](Self::unmap).
    ///
    /// # Errors
    /// See [`GrantFault`].
    pub fn map(&self, domain: u16, reference: u32, write: bool) -> Result<SharedPage, GrantFault> {
        let page = self.granted(domain, reference, write)?;
        let entry = self.grant_entry(reference).ok_or(GrantFault::BadReference)?;
        let writing = if write { grant_table::GTF_WRITING } else { 0 };
        entry.flags.fetch_or(grant_table::GTF_READING | writing, Ordering::SeqCst);
        Ok(page)
    }

    /// Ends what [`map`](Self::map) began.
    pub fn unmap(&self, reference: u32) {
        if let Some(entry) = self.grant_entry(reference) {
            let used = grant_table::GTF_READING | grant_table::GTF_WRITING;
            entry.flags.fetch_and(!used, Ordering::SeqCst);
        }
    }

    fn grant_entry(&self, reference: u32) -> Option<&'static grant_table::GrantEntryV1> {
        let per_page = grant_table::ENTRIES_PER_PAGE as u32;
        let state = self.state();
        let frame = state.grant_frames.get(&u64::from(reference / per_page))?;
        Some(&frame.entries[(reference % per_page) as usize])
    }

    /// Runs the backend at `port`, which may itself use the fake.
    pub(super) fn notify(&self, port: u32) {
        let backend = self.lock_backends().get(&port).cloned();
        if let Some(backend) = backend {
            // A backend that is running already sees what is new when it looks again.
            if let Ok(mut backend) = backend.try_lock() {
                backend(self);
            }
        }
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn lock_backends(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Mutex<Backend>>>> {
        self.backends.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for FakeXen {
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for FakeXen {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("FakeXen").field("now_ns", &self.now_ns()).finish_non_exhaustive()
    }
}
