//! The state of the fake hypervisor and its domain.

use core::sync::atomic::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::vec::Vec;

use crate::abi::xen::{SharedInfo, VcpuInfo, virq};
use crate::abi::{grant_table, vcpu};
use crate::errno::Errno;

#[derive(Default)]
pub(super) struct State {
    pub(super) now_ns: u64,
    /// System time on the host of the next restore.
    pub(super) restored_ns: u64,
    pub(super) shared: Option<&'static SharedInfo>,
    pub(super) vcpus: BTreeMap<u32, Vcpu>,
    pub(super) current: u32,
    pub(super) ports: BTreeMap<u32, FakePort>,
    pub(super) params: BTreeMap<u32, u64>,
    pub(super) grant_frames: BTreeMap<u64, &'static grant_table::GrantFrameV1>,
    pub(super) upcall_vectors: BTreeMap<u32, u8>,
    pub(super) assists: BTreeSet<u64>,
    pub(super) shutdown: Option<u32>,
}

#[derive(Default)]
pub(super) struct Vcpu {
    pub(super) info: Option<&'static VcpuInfo>,
    pub(super) runstate: Option<&'static vcpu::RunstateInfo>,
    /// System time from which its runstate is counted.
    pub(super) made_ns: u64,
    pub(super) stolen_ns: u64,
    pub(super) blocked_ns: u64,
    pub(super) deadline_ns: Option<u64>,
    pub(super) initialised: bool,
    pub(super) up: bool,
}

#[derive(Clone, Copy)]
pub(super) struct FakePort {
    pub(super) kind: PortKind,
    pub(super) vcpu: u32,
}

#[derive(Clone, Copy, PartialEq)]
pub(super) enum PortKind {
    Unbound(u16),
    Interdomain(u16, u32),
    Virq(u32),
    Ipi,
}

impl Vcpu {
    /// Running, stolen, blocked and offline time.
    pub(super) fn runstate_ns(&self, now_ns: u64) -> [u64; 4] {
        let running_ns = now_ns - self.made_ns - self.stolen_ns - self.blocked_ns;
        [running_ns, self.stolen_ns, self.blocked_ns, 0]
    }
}

impl State {
    pub(super) fn vcpu(&mut self, id: u32) -> Result<&mut Vcpu, Errno> {
        self.vcpus.get_mut(&id).ok_or(Errno::ENOENT)
    }

    pub(super) fn open(&mut self, port: FakePort) -> u32 {
        let number = (1..).find(|number| !self.ports.contains_key(number)).unwrap_or(u32::MAX);
        self.ports.insert(number, port);
        number
    }

    pub(super) fn find(&self, kind: PortKind, vcpu: u32) -> Option<u32> {
        let found = self.ports.iter().find(|(_, port)| port.kind == kind && port.vcpu == vcpu);
        found.map(|(number, _)| *number)
    }

    pub(super) fn raise_virq(&mut self, virq: u32, vcpu: u32) {
        if let Some(port) = self.find(PortKind::Virq(virq), vcpu) {
            self.raise(port);
        }
    }

    /// The two-level ABI from Xen's side: pending bit, then selector, then upcall flag.
    pub(super) fn raise(&self, port: u32) {
        let (Some(shared), Some(info)) = (self.shared, self.info_of_port(port)) else {
            return;
        };
        let (word, bit) = (port as usize / 64, 1_u64 << (port % 64));
        if shared.evtchn_pending[word].fetch_or(bit, Ordering::SeqCst) & bit == 0
            && shared.evtchn_mask[word].load(Ordering::SeqCst) & bit == 0
        {
            select(info, word);
        }
    }

    pub(super) fn unmask(&self, port: u32) -> Result<(), Errno> {
        let shared = self.shared.ok_or(Errno::EINVAL)?;
        let info = self.info_of_port(port).ok_or(Errno::EINVAL)?;
        let (word, bit) = (port as usize / 64, 1_u64 << (port % 64));
        // As Xen: only a port that was masked is delivered now.
        let was_masked = shared.evtchn_mask[word].fetch_and(!bit, Ordering::SeqCst) & bit != 0;
        if was_masked && shared.evtchn_pending[word].load(Ordering::SeqCst) & bit != 0 {
            select(info, word);
        }
        Ok(())
    }

    pub(super) fn info_of_port(&self, port: u32) -> Option<&'static VcpuInfo> {
        self.info_of_vcpu(self.ports.get(&port)?.vcpu)
    }

    pub(super) fn info_of_vcpu(&self, id: u32) -> Option<&'static VcpuInfo> {
        let registered = self.vcpus.get(&id)?.info;
        registered.or_else(|| self.shared?.vcpu_info.get(id as usize))
    }

    pub(super) fn any_pending(&self, ports: &[u32]) -> bool {
        self.shared.is_some_and(|shared| {
            ports.iter().any(|port| {
                let word = shared.evtchn_pending[*port as usize / 64].load(Ordering::SeqCst);
                word & 1 << (port % 64) != 0
            })
        })
    }

    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.vcpus.values().filter_map(|vcpu| vcpu.deadline_ns).min()
    }

    pub(super) fn expire_timers(&mut self) {
        let now = self.now_ns;
        let mut expired = Vec::new();
        for (id, vcpu) in &mut self.vcpus {
            if vcpu.deadline_ns.is_some_and(|deadline| deadline <= now) {
                vcpu.deadline_ns = None;
                expired.push(*id);
            }
        }
        for id in expired {
            self.raise_virq(virq::TIMER, id);
        }
    }

    /// Writes clocks and runstates with the version protocol. A multiplier of zero makes clocks
    /// read exactly `now_ns`, whatever the TSC does.
    pub(super) fn publish_time(&self) {
        for (id, vcpu) in &self.vcpus {
            if let Some(info) = self.info_of_vcpu(*id) {
                info.time.version.fetch_add(1, Ordering::SeqCst);
                info.time.system_time.store(self.now_ns, Ordering::SeqCst);
                info.time.tsc_to_system_mul.store(0, Ordering::SeqCst);
                info.time.flags.store(1, Ordering::SeqCst);
                info.time.version.fetch_add(1, Ordering::SeqCst);
            }
            if let Some(area) = vcpu.runstate {
                let marked = self.now_ns | vcpu::RUNSTATE_UPDATE;
                area.state_entry_time.store(marked, Ordering::SeqCst);
                for (time, ns) in area.time.iter().zip(vcpu.runstate_ns(self.now_ns)) {
                    time.store(ns, Ordering::SeqCst);
                }
                area.state_entry_time.store(self.now_ns, Ordering::SeqCst);
            }
        }
    }
}

fn select(info: &VcpuInfo, word: usize) {
    if info.evtchn_pending_sel.fetch_or(1 << word, Ordering::SeqCst) & 1 << word == 0 {
        info.evtchn_upcall_pending.store(1, Ordering::SeqCst);
    }
}
