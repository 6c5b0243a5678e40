//! Event channel operations (`event_channel.h`).

use super::layout;

/// Commands of the event channel hypercall (`EVTCHNOP_*`).
pub mod op {
    /// Connect to a port another domain offers.
    pub const BIND_INTERDOMAIN: u32 = 0;
    /// Bind a virtual interrupt.
    pub const BIND_VIRQ: u32 = 1;
    /// Close a port.
    pub const CLOSE: u32 = 3;
    /// Notify the other end.
    pub const SEND: u32 = 4;
    /// State of a port.
    pub const STATUS: u32 = 5;
    /// Offer a port to another domain.
    pub const ALLOC_UNBOUND: u32 = 6;
    /// A port by which one vCPU notifies another.
    pub const BIND_IPI: u32 = 7;
    /// Move a port to another vCPU.
    pub const BIND_VCPU: u32 = 8;
    /// Clear the mask bit and deliver what is pending.
    pub const UNMASK: u32 = 9;
}

/// States of a port (`EVTCHNSTAT_*`).
pub mod status {
    /// Not in use.
    pub const CLOSED: u32 = 0;
    /// Waiting for the other domain.
    pub const UNBOUND: u32 = 1;
    /// Connected to another domain.
    pub const INTERDOMAIN: u32 = 2;
    /// Bound to a physical interrupt.
    pub const PIRQ: u32 = 3;
    /// Bound to a virtual interrupt.
    pub const VIRQ: u32 = 4;
    /// Bound to another vCPU of this domain.
    pub const IPI: u32 = 5;
}

/// `struct evtchn_alloc_unbound`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct AllocUnbound {
    /// Domain in which to allocate; `DOMID_SELF`.
    pub domain: u16,
    /// Domain that may connect.
    pub remote_domain: u16,
    /// Out: the port.
    pub port: u32,
}
layout!(AllocUnbound, size 8, domain @ 0, remote_domain @ 2, port @ 4);

/// `struct evtchn_bind_interdomain`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BindInterdomain {
    /// Domain that offers the port.
    pub remote_domain: u16,
    /// Zero.
    pub pad: u16,
    /// The offered port.
    pub remote_port: u32,
    /// Out: our port.
    pub local_port: u32,
}
layout!(BindInterdomain, size 12, remote_domain @ 0, remote_port @ 4, local_port @ 8);

/// `struct evtchn_bind_virq`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BindVirq {
    /// Virtual interrupt.
    pub virq: u32,
    /// vCPU to notify.
    pub vcpu: u32,
    /// Out: the port.
    pub port: u32,
}
layout!(BindVirq, size 12, virq @ 0, vcpu @ 4, port @ 8);

/// `struct evtchn_bind_ipi`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BindIpi {
    /// vCPU to notify.
    pub vcpu: u32,
    /// Out: the port.
    pub port: u32,
}
layout!(BindIpi, size 8, vcpu @ 0, port @ 4);

/// The common shape of `struct evtchn_close`, `evtchn_send` and `evtchn_unmask`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct PortArgument {
    /// The port.
    pub port: u32,
}
layout!(PortArgument, size 4, port @ 0);

/// `struct evtchn_status`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Status {
    /// Domain asked about; `DOMID_SELF`.
    pub domain: u16,
    /// Zero.
    pub pad: u16,
    /// Port asked about.
    pub port: u32,
    /// Out: one of [`status`].
    pub status: u32,
    /// Out: vCPU the port notifies.
    pub vcpu: u32,
    /// Out: depends on the state (domain; domain and port; interrupt number).
    pub detail: [u32; 2],
}
layout!(Status, size 24, domain @ 0, port @ 4, status @ 8, vcpu @ 12, detail @ 16);

/// `struct evtchn_bind_vcpu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct BindVcpu {
    /// The port.
    pub port: u32,
    /// vCPU to notify from now on.
    pub vcpu: u32,
}
layout!(BindVcpu, size 8, port @ 0, vcpu @ 4);
