//! The hypercalls of the tests' hypervisor.

#![allow(unsafe_code, reason = "hypercall arguments are reached by address, as Xen reaches them")]

use core::sync::atomic::{AtomicU64, Ordering};
use std::vec::Vec;

use super::hypervisor::FakeXen;
use super::physical::full_page;
use super::state::{FakePort, PortKind};
use crate::abi::xen::{DOMID_SELF, SharedInfo, VcpuInfo, hypercall as number};
use crate::abi::{event_channel, grant_table, hvm, memory, sched, vcpu, version};
use crate::errno::Errno;
use crate::events::Port;
use crate::hypercall::Hypercall;
use crate::page::Frame;

impl Hypercall for FakeXen {
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64 {
        self.hypercalls.fetch_add(1, Ordering::SeqCst);
        let [command, second, third, ..] = arguments;
        // SAFETY: the caller's contract, the one Xen has: addresses fit the command.
        let result = unsafe {
            match number {
                number::SET_TIMER_OP => {
                    self.set_timer(command);
                    Ok(0)
                }
                number::EVENT_CHANNEL_OP => self.event_channel_op(command as u32, second),
                number::VCPU_OP => self.vcpu_op(command as u32, second as u32, third),
                number::SCHED_OP => self.sched_op(command as u32, second),
                number::HVM_OP => self.hvm_op(command as u32, second),
                number::MEMORY_OP => self.memory_op(command as u32, second),
                number::GRANT_TABLE_OP => grant_table_op(command as u32, second),
                number::XEN_VERSION => version_op(command as u32, second),
                number::VM_ASSIST => {
                    self.state().assists.insert(second);
                    Ok(0)
                }
                _ => Err(Errno::ENOSYS),
            }
        };
        match result {
            Ok(value) => value as i64,
            Err(errno) => -i64::from(errno.0),
        }
    }
}

/// # Safety
/// `address` is that of a `T` the caller lends exclusively for the call.
unsafe fn argument<'a, T>(address: u64) -> Result<&'a mut T, Errno> {
    let pointer = core::ptr::with_exposed_provenance_mut::<T>(address as usize);
    // SAFETY: the caller's contract; null is caught.
    unsafe { pointer.as_mut() }.ok_or(Errno::EFAULT)
}

impl FakeXen {
    fn set_timer(&self, system_time_ns: u64) {
        /// Timers further ahead, or beyond the sign, fire after `WRAPPED_NS`.
        const FARTHEST_NS: u64 = 1 << 50;
        const WRAPPED_NS: u64 = 50_000_000;
        let mut state = self.state();
        let (now_ns, current) = (state.now_ns, state.current);
        let is_wrapped = system_time_ns.saturating_sub(now_ns) >= FARTHEST_NS;
        let deadline_ns = if is_wrapped { now_ns + WRAPPED_NS } else { system_time_ns };
        if let Ok(vcpu) = state.vcpu(current) {
            vcpu.deadline_ns = (system_time_ns != 0).then_some(deadline_ns);
        }
        state.expire_timers();
    }

    /// # Safety
    /// As `Hypercall::call`.
    unsafe fn event_channel_op(&self, command: u32, address: u64) -> Result<u64, Errno> {
        use event_channel::{self as abi, op};
        // SAFETY: the caller's contract, for each structure below.
        unsafe {
            match command {
                op::BIND_VIRQ => {
                    let argument = argument::<abi::BindVirq>(address)?;
                    let kind = PortKind::Virq(argument.virq);
                    let mut state = self.state();
                    state.vcpu(argument.vcpu)?;
                    if state.find(kind, argument.vcpu).is_some() {
                        return Err(Errno::EEXIST);
                    }
                    argument.port = state.open(FakePort { kind, vcpu: argument.vcpu });
                }
                op::BIND_IPI => {
                    let argument = argument::<abi::BindIpi>(address)?;
                    let mut state = self.state();
                    state.vcpu(argument.vcpu)?;
                    argument.port =
                        state.open(FakePort { kind: PortKind::Ipi, vcpu: argument.vcpu });
                }
                op::ALLOC_UNBOUND => {
                    let argument = argument::<abi::AllocUnbound>(address)?;
                    if argument.domain != DOMID_SELF {
                        return Err(Errno::EPERM);
                    }
                    let kind = PortKind::Unbound(argument.remote_domain);
                    argument.port = self.state().open(FakePort { kind, vcpu: 0 });
                }
                op::BIND_INTERDOMAIN => {
                    let argument = argument::<abi::BindInterdomain>(address)?;
                    let kind = PortKind::Interdomain(argument.remote_domain, argument.remote_port);
                    let mut state = self.state();
                    argument.local_port = state.open(FakePort { kind, vcpu: 0 });
                    state.raise(argument.local_port);
                }
                op::BIND_VCPU => {
                    let argument = argument::<abi::BindVcpu>(address)?;
                    let mut state = self.state();
                    state.vcpu(argument.vcpu)?;
                    let port = state.ports.get_mut(&argument.port).ok_or(Errno::EINVAL)?;
                    if matches!(port.kind, PortKind::Ipi | PortKind::Virq(_)) {
                        return Err(Errno::EINVAL);
                    }
                    port.vcpu = argument.vcpu;
                }
                op::CLOSE => {
                    let port = argument::<abi::PortArgument>(address)?.port;
                    self.state().ports.remove(&port).ok_or(Errno::EINVAL)?;
                    self.detach(Port(port));
                    if let Some(shared) = self.state().shared {
                        shared.evtchn_pending[port as usize / 64]
                            .fetch_and(!(1 << (port % 64)), Ordering::SeqCst);
                    }
                }
                op::SEND => {
                    let port = argument::<abi::PortArgument>(address)?.port;
                    let kind = self.state().ports.get(&port).ok_or(Errno::EINVAL)?.kind;
                    match kind {
                        PortKind::Ipi => self.state().raise(port),
                        PortKind::Interdomain(..) => self.notify(port),
                        PortKind::Unbound(_) => {}
                        PortKind::Virq(_) => return Err(Errno::EINVAL),
                    }
                }
                op::UNMASK => {
                    let port = argument::<abi::PortArgument>(address)?.port;
                    self.state().unmask(port)?;
                }
                op::STATUS => {
                    let argument = argument::<abi::Status>(address)?;
                    let state = self.state();
                    let Some(port) = state.ports.get(&argument.port) else {
                        argument.status = abi::status::CLOSED;
                        return Ok(0);
                    };
                    argument.vcpu = port.vcpu;
                    (argument.status, argument.detail) = match port.kind {
                        PortKind::Unbound(domain) => (abi::status::UNBOUND, [u32::from(domain), 0]),
                        PortKind::Interdomain(domain, remote) => {
                            (abi::status::INTERDOMAIN, [u32::from(domain), remote])
                        }
                        PortKind::Virq(virq) => (abi::status::VIRQ, [virq, 0]),
                        PortKind::Ipi => (abi::status::IPI, [0; 2]),
                    };
                }
                _ => return Err(Errno::ENOSYS),
            }
        }
        Ok(0)
    }

    /// # Safety
    /// As `Hypercall::call`.
    unsafe fn vcpu_op(&self, command: u32, id: u32, address: u64) -> Result<u64, Errno> {
        use vcpu::op;
        let mut state = self.state();
        let (shared, now_ns) = (state.shared, state.now_ns);
        let vcpu = state.vcpu(id)?;
        // SAFETY: the caller's contract, for each structure below.
        unsafe {
            match command {
                #[cfg(target_arch = "x86_64")]
                op::INITIALISE => {
                    let context = argument::<crate::abi::hvm_vcpu::VcpuHvmContext>(address)?;
                    if core::mem::replace(&mut vcpu.initialised, true) {
                        return Err(Errno::EEXIST);
                    }
                    if context.registers.cr0 >> 31 == 0 || context.registers.efer & 0x100 == 0 {
                        vcpu.initialised = false;
                        return Err(Errno::EINVAL);
                    }
                }
                op::UP => {
                    if !vcpu.initialised {
                        return Err(Errno::EINVAL);
                    }
                    vcpu.up = true;
                }
                op::DOWN => vcpu.up = false,
                op::IS_UP => return Ok(u64::from(vcpu.up)),
                op::GET_RUNSTATE_INFO => {
                    let times = vcpu.runstate_ns(now_ns);
                    argument::<vcpu::RunstateInfo>(address)?.time = times.map(AtomicU64::new);
                }
                op::REGISTER_RUNSTATE_MEMORY_AREA => {
                    let area = argument::<vcpu::RegisterMemoryArea>(address)?;
                    vcpu.runstate = Some(&*argument::<vcpu::RunstateInfo>(area.address)?);
                    state.publish_time();
                }
                op::REGISTER_VCPU_INFO => {
                    let place = argument::<vcpu::RegisterVcpuInfo>(address)?;
                    if vcpu.info.is_some() || place.offset as usize + 64 > 4096 {
                        return Err(Errno::EINVAL);
                    }
                    let new = Frame(place.frame).address() + u64::from(place.offset);
                    let new: &'static VcpuInfo = &*argument::<VcpuInfo>(new)?;
                    let old = shared.and_then(|shared| shared.vcpu_info.get(id as usize));
                    if let Some(old) = old {
                        // Xen does the same: events of the move are not lost.
                        new.evtchn_pending_sel
                            .store(old.evtchn_pending_sel.load(Ordering::SeqCst), Ordering::SeqCst);
                        new.evtchn_upcall_pending.store(1, Ordering::SeqCst);
                        new.evtchn_pending_sel.store(u64::MAX, Ordering::SeqCst);
                    }
                    vcpu.info = Some(new);
                    state.publish_time();
                }
                op::STOP_PERIODIC_TIMER => {}
                _ => return Err(Errno::ENOSYS),
            }
        }
        Ok(0)
    }

    /// # Safety
    /// As `Hypercall::call`.
    unsafe fn sched_op(&self, command: u32, address: u64) -> Result<u64, Errno> {
        match command {
            sched::op::YIELD => Ok(0),
            sched::op::BLOCK => {
                let wake = self.state().next_deadline();
                self.sleep_until(wake);
                Ok(0)
            }
            sched::op::POLL => {
                // SAFETY: the caller's contract; the ports lie where the structure says.
                let (poll, ports) = unsafe {
                    let poll = argument::<sched::Poll>(address)?;
                    let first = core::ptr::with_exposed_provenance::<u32>(poll.ports as usize);
                    (*poll, core::slice::from_raw_parts(first, poll.count as usize).to_vec())
                };
                if poll.count as usize > sched::POLL_MAX_PORTS {
                    return Err(Errno::EINVAL);
                }
                self.poll(&ports, poll.timeout_abs_ns);
                Ok(0)
            }
            sched::op::SHUTDOWN => {
                // SAFETY: the caller's contract.
                let reason = unsafe { argument::<sched::Shutdown>(address)? }.reason;
                self.state().shutdown = Some(reason);
                if reason != sched::shutdown::SUSPEND {
                    return Ok(0);
                }
                if self.suspend_cancelled.swap(false, Ordering::SeqCst) {
                    return Ok(1);
                }
                self.become_new_domain();
                Ok(0)
            }
            _ => Err(Errno::ENOSYS),
        }
    }

    /// Sleeping lets every backend run once, as they would on other CPUs.
    fn poll(&self, ports: &[u32], timeout_abs_ns: u64) {
        if self.state().any_pending(ports) {
            return;
        }
        let attached: Vec<u32> = self.lock_backends().keys().copied().collect();
        for port in attached {
            self.notify(port);
        }
        if !self.state().any_pending(ports) {
            self.sleep_until((timeout_abs_ns != 0).then_some(timeout_abs_ns));
        }
    }

    fn sleep_until(&self, wake_ns: Option<u64>) {
        let now = self.now_ns();
        self.advance(wake_ns.unwrap_or(now).saturating_sub(now));
    }

    /// Resets the domain as a restore or migration does: plain memory, no ports, no grants, no
    /// registered areas, no timers, a clock with another origin and vCPUs that have not run yet.
    fn become_new_domain(&self) {
        let mut state = self.state();
        state.ports.clear();
        state.shared = None;
        state.grant_frames.clear();
        state.upcall_vectors.clear();
        let now_ns = state.restored_ns;
        state.now_ns = now_ns;
        for vcpu in state.vcpus.values_mut() {
            (vcpu.info, vcpu.runstate, vcpu.deadline_ns) = (None, None, None);
            (vcpu.made_ns, vcpu.stolen_ns) = (now_ns, 0);
        }
        drop(state);
        self.lock_backends().clear();
    }

    /// # Safety
    /// As `Hypercall::call`.
    unsafe fn hvm_op(&self, command: u32, address: u64) -> Result<u64, Errno> {
        let mut state = self.state();
        // SAFETY: the caller's contract, for each structure below.
        unsafe {
            match command {
                hvm::op::SET_PARAM => {
                    let param = argument::<hvm::Param>(address)?;
                    if param.index != hvm::param::CALLBACK_IRQ {
                        return Err(Errno::EPERM);
                    }
                    state.params.insert(param.index, param.value);
                }
                hvm::op::GET_PARAM => {
                    let param = argument::<hvm::Param>(address)?;
                    if param.domain != DOMID_SELF || param.index >= 39 {
                        return Err(Errno::EINVAL);
                    }
                    param.value = state.params.get(&param.index).copied().unwrap_or(0);
                }
                hvm::op::SET_EVTCHN_UPCALL_VECTOR => {
                    let upcall = argument::<hvm::EvtchnUpcallVector>(address)?;
                    state.vcpu(upcall.vcpu)?;
                    if upcall.vector < 0x10 {
                        return Err(Errno::EINVAL);
                    }
                    state.upcall_vectors.insert(upcall.vcpu, upcall.vector);
                }
                _ => return Err(Errno::ENOSYS),
            }
        }
        Ok(0)
    }

    /// # Safety
    /// As `Hypercall::call`.
    unsafe fn memory_op(&self, command: u32, address: u64) -> Result<u64, Errno> {
        if command != memory::ADD_TO_PHYSMAP {
            return Err(Errno::ENOSYS);
        }
        // SAFETY: the caller's contract.
        let request = *unsafe { argument::<memory::AddToPhysmap>(address)? };
        // SAFETY: the caller gives the page up to Xen.
        let page = unsafe { full_page(Frame(request.frame)) }.ok_or(Errno::EINVAL)?;
        page.clear();
        let mut state = self.state();
        match request.space {
            memory::space::SHARED_INFO => {
                // SAFETY: a whole page of the guest that lives for ever; all fields are atomics.
                state.shared = Some(unsafe { page.base().cast::<SharedInfo>().as_ref() });
                state.publish_time();
            }
            memory::space::GRANT_TABLE => {
                // SAFETY: as above.
                let frame = unsafe { page.base().cast().as_ref() };
                state.grant_frames.insert(request.index, frame);
            }
            _ => return Err(Errno::ENOSYS),
        }
        Ok(0)
    }
}

/// # Safety
/// As `Hypercall::call`.
unsafe fn grant_table_op(command: u32, address: u64) -> Result<u64, Errno> {
    // SAFETY: the caller's contract, for each structure below.
    unsafe {
        match command {
            grant_table::op::QUERY_SIZE => {
                let size = argument::<grant_table::QuerySize>(address)?;
                (size.frames, size.max_frames, size.status) = (1, 64, 0);
            }
            grant_table::op::SET_VERSION => {
                if argument::<grant_table::SetVersion>(address)?.version != 1 {
                    return Err(Errno::EINVAL);
                }
            }
            _ => return Err(Errno::ENOSYS),
        }
    }
    Ok(0)
}

/// # Safety
/// As `Hypercall::call`.
unsafe fn version_op(command: u32, address: u64) -> Result<u64, Errno> {
    match command {
        version::VERSION => Ok(4 << 16 | 17),
        version::GET_FEATURES => {
            // SAFETY: the caller's contract.
            let features = unsafe { argument::<version::FeatureInfo>(address)? };
            features.submap = 1 << version::feature::HVM_CALLBACK_VECTOR
                | 1 << version::feature::HVM_SAFE_PVCLOCK
                | 1 << version::feature::AUTO_TRANSLATED_PHYSMAP;
            Ok(0)
        }
        _ => Err(Errno::ENOSYS),
    }
}
