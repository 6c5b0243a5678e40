//! Detects Xen, and reads its information from CPUID.

use core::arch::x86_64::{__cpuid, __cpuid_count};

use crate::abi::cpuid as abi;
use crate::vcpu::VcpuId;

/// The place where Xen's CPUID leaves begin.
///
/// ```
/// // On a machine that is not a Xen guest there is none.
/// if let Some(leaves) = xen_sys_lite::cpuid::XenLeaves::find() {
///     let (major, minor) = leaves.version();
///     println!("Xen {major}.{minor}");
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XenLeaves {
    base: u32,
}

impl XenLeaves {
    /// Looks for Xen's signature; with Viridian enlightenments it lies above the first place.
    #[must_use]
    pub fn find() -> Option<Self> {
        (abi::FIRST_LEAF..abi::LAST_LEAF).step_by(abi::LEAF_STEP as usize).find_map(|base| {
            let leaf = __cpuid(base);
            let signed = [leaf.ebx, leaf.ecx, leaf.edx] == abi::SIGNATURE;
            let reaches = leaf.eax >= base.saturating_add(abi::LEAF_HYPERCALL);
            (signed && reaches).then_some(Self { base })
        })
    }

    /// Major and minor version of the hypervisor.
    #[must_use]
    pub fn version(self) -> (u16, u16) {
        let eax = __cpuid(self.base + abi::LEAF_VERSION).eax;
        ((eax >> 16) as u16, eax as u16)
    }

    /// The MSR that takes the physical address of the hypercall page.
    #[must_use]
    pub fn hypercall_msr(self) -> u32 {
        __cpuid(self.base + abi::LEAF_HYPERCALL).ebx
    }

    /// The vCPU that this code runs on, if Xen provides it.
    #[must_use]
    pub fn vcpu(self) -> Option<VcpuId> {
        let leaf = self.hvm_leaf()?;
        (leaf.0 & abi::HVM_VCPU_ID_PRESENT != 0).then_some(VcpuId(leaf.1))
    }

    /// The leaf whose ebx is the number of the vCPU, if Xen provides it: for code that cannot call
    /// [`vcpu`](Self::vcpu).
    #[must_use]
    pub fn vcpu_leaf(self) -> Option<u32> {
        self.vcpu().map(|_| self.base + abi::LEAF_HVM)
    }

    /// The id of this domain, if Xen provides it.
    #[must_use]
    pub fn domain(self) -> Option<u16> {
        let leaf = self.hvm_leaf()?;
        (leaf.0 & abi::HVM_DOMID_PRESENT != 0).then_some(leaf.2 as u16)
    }

    fn hvm_leaf(self) -> Option<(u32, u32, u32)> {
        let wanted = self.base + abi::LEAF_HVM;
        (__cpuid(self.base).eax >= wanted).then(|| {
            let leaf = __cpuid_count(wanted, 0);
            (leaf.eax, leaf.ebx, leaf.ecx)
        })
    }
}
