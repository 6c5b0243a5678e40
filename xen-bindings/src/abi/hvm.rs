//! HVM operations and parameters (`hvm/hvm_op.h`, `hvm/params.h`).

use super::layout;

/// Commands of the HVM hypercall (`HVMOP_*`).
pub mod op {
    /// Set a parameter.
    pub const SET_PARAM: u32 = 0;
    /// Read a parameter.
    pub const GET_PARAM: u32 = 1;
    /// Give a vCPU an upcall vector of its own.
    pub const SET_EVTCHN_UPCALL_VECTOR: u32 = 23;
}

/// Parameter numbers (`HVM_PARAM_*`).
pub mod param {
    /// The delivery of event channel notifications to vCPU 0 (for a vector: to every vCPU).
    pub const CALLBACK_IRQ: u32 = 0;
    /// Frame of the xenstore ring.
    pub const STORE_PFN: u32 = 1;
    /// Port of the xenstore ring.
    pub const STORE_EVTCHN: u32 = 2;
    /// Frame of the console ring.
    pub const CONSOLE_PFN: u32 = 17;
    /// Port of the console ring.
    pub const CONSOLE_EVTCHN: u32 = 18;
}

/// `HVM_PARAM_CALLBACK_TYPE_VECTOR`: bits 63..56 of the callback parameter; bits 7..0 are the
/// vector.
pub const CALLBACK_TYPE_VECTOR: u64 = 2;
/// First bit of the type in the callback parameter.
pub const CALLBACK_TYPE_SHIFT: u32 = 56;

/// `struct xen_hvm_param`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Param {
    /// `DOMID_SELF`.
    pub domain: u16,
    /// Zero.
    pub pad: u16,
    /// One of [`param`].
    pub index: u32,
    /// In or out.
    pub value: u64,
}
layout!(Param, size 16, domain @ 0, index @ 4, value @ 8);

/// `struct xen_hvm_evtchn_upcall_vector`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct EvtchnUpcallVector {
    /// vCPU.
    pub vcpu: u32,
    /// Vector, 0x10 at least.
    pub vector: u8,
    /// Zero.
    pub pad: [u8; 3],
}
layout!(EvtchnUpcallVector, size 8, vcpu @ 0, vector @ 4);
