//! The numbers of PSCI (Arm DEN 0022), by which a guest on aarch64 starts and stops its vCPUs,
//! without the call: see [`vcpu`](crate::vcpu).

use crate::errno::Errno;
use crate::vcpu::VcpuId;

/// The affinity fields of `MPIDR_EL1` that Xen gives a vCPU: sixteen vCPUs differ in Aff0, the
/// others by Aff1.
pub(crate) const fn affinity(vcpu: VcpuId) -> u64 {
    let number = vcpu.0 as u64;
    number >> 4 << 8 | number & 0xf
}

/// The vCPU with this `MPIDR_EL1`.
pub(crate) const fn vcpu_of(mpidr: u64) -> VcpuId {
    VcpuId((mpidr >> 4 & 0xff0 | mpidr & 0xf) as u32)
}

/// The result of a call, a 32-bit number.
pub(crate) fn result(value: i64) -> Result<(), Errno> {
    match value as i32 {
        0 => Ok(()),
        // NOT_SUPPORTED
        -1 => Err(Errno::ENOSYS),
        // DENIED
        -3 => Err(Errno::EPERM),
        // ALREADY_ON, ON_PENDING
        -4 | -5 => Err(Errno::EEXIST),
        // NOT_PRESENT
        -7 => Err(Errno::ENOENT),
        // INVALID_PARAMETERS, which Xen answers for a vCPU that does not exist, and all others.
        _ => Err(Errno::EINVAL),
    }
}

/// The result of a question for a vCPU's state: on, off, or about to be on.
pub(crate) fn is_up(value: i64) -> Result<bool, Errno> {
    match value as i32 {
        state @ 0..=2 => Ok(state != 1),
        error => Err(result(error.into()).err().unwrap_or(Errno::EINVAL)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against the seventeenth vCPU being taken for another one.
    #[test]
    fn a_vcpu_has_one_affinity() {
        assert_eq!(affinity(VcpuId(3)), 3);
        assert_eq!(affinity(VcpuId(16)), 0x100);
        for vcpu in (0..4096).map(VcpuId) {
            // Xen sets bit 31: the multiprocessing extensions.
            assert_eq!(vcpu_of(affinity(vcpu) | 1 << 31), vcpu);
        }
    }

    /// Guards against a stack that is used again while its vCPU may still run.
    #[test]
    fn only_a_vcpu_that_is_off_is_not_up() {
        for (value, expected) in
            [(0, Ok(true)), (1, Ok(false)), (2, Ok(true)), (-2, Err(Errno::EINVAL))]
        {
            assert_eq!(is_up(value), expected);
        }
    }

    /// Guards against a result whose upper half is not zero, or not the sign's.
    #[test]
    fn results_are_32_bits() {
        assert_eq!(result(0), Ok(()));
        for value in [-4, 0xffff_fffc] {
            assert_eq!(result(value), Err(Errno::EEXIST));
        }
        assert_eq!(result(-2), Err(Errno::EINVAL));
        assert_eq!(result(i64::MIN + 7), Err(Errno::EINVAL));
    }
}
