//! Delivery of upcalls to a PVH or HVM guest as interrupts with a vector.

use crate::abi::hvm::{self as abi, CALLBACK_TYPE_SHIFT, CALLBACK_TYPE_VECTOR};
use crate::errno::Errno;
use crate::hvm::{Param, set_param};
use crate::hypercall::Hypercall;
use crate::hypercall::operations::{HvmSetUpcallVector, issue};
use crate::vcpu::VcpuId;

/// Has upcalls delivered to every vCPU as interrupt `vector`, which needs no end-of-interrupt.
///
/// # Errors
/// `EINVAL` from a Xen without this way of delivery.
pub fn set_callback_vector(hypercall: &impl Hypercall, vector: u8) -> Result<(), Errno> {
    let value = CALLBACK_TYPE_VECTOR << CALLBACK_TYPE_SHIFT | u64::from(vector);
    set_param(hypercall, Param::CALLBACK_IRQ, value)
}

/// Has `vcpu`'s upcalls delivered as interrupt `vector` through its local APIC.
///
/// The APIC must be enabled, and the handler ends each interrupt there. This way wins over
/// [`set_callback_vector`].
///
/// # Errors
/// `EINVAL` for a vector below 0x10, `ENOENT` for a vCPU that does not exist.
pub fn set_upcall_vector(
    hypercall: &impl Hypercall,
    vcpu: VcpuId,
    vector: u8,
) -> Result<(), Errno> {
    let mut argument = abi::EvtchnUpcallVector { vcpu: vcpu.0, vector, pad: [0; 3] };
    issue::<HvmSetUpcallVector>(hypercall, &mut argument).map(drop)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::fake::FakeXen;

    #[test]
    fn the_callback_is_a_vector_of_the_abis_form() {
        let xen = FakeXen::new();
        set_callback_vector(&xen, 0xf3).unwrap();
        assert_eq!(xen.tool_param(Param::CALLBACK_IRQ), Some(0x0200_0000_0000_00f3));
    }

    #[test]
    fn a_vcpu_has_a_vector_of_its_own() {
        let xen = FakeXen::new();
        set_upcall_vector(&xen, VcpuId(0), 0x40).unwrap();
        assert_eq!(xen.upcall_vector(VcpuId(0)), Some(0x40));
        assert_eq!(set_upcall_vector(&xen, VcpuId(0), 0xf), Err(Errno::EINVAL));
        assert_eq!(set_upcall_vector(&xen, VcpuId(1), 0x40), Err(Errno::ENOENT));
    }
}
