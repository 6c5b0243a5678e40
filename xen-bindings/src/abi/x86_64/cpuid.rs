//! Xen's CPUID leaves (`arch-x86/cpuid.h`).

/// First leaf at which Xen may announce itself; else at a multiple of [`LEAF_STEP`] above.
pub const FIRST_LEAF: u32 = 0x4000_0000;
/// Distance of the places where a hypervisor may announce itself.
pub const LEAF_STEP: u32 = 0x100;
/// End of the leaves given to hypervisors.
pub const LAST_LEAF: u32 = 0x4001_0000;

/// "XenV", "MMXe", "nVMM" in ebx, ecx, edx.
pub const SIGNATURE: [u32; 3] = [0x566e_6558, 0x6558_4d4d, 0x4d4d_566e];

/// Leaf base + 1: eax holds the version, major in bits 31..16.
pub const LEAF_VERSION: u32 = 1;
/// Leaf base + 2: eax hypercall pages, ebx the MSR that takes the address of the first.
pub const LEAF_HYPERCALL: u32 = 2;
/// Leaf base + 4: eax features, ebx vCPU id, ecx domain id.
pub const LEAF_HVM: u32 = 4;

/// Bit of leaf base + 4, eax: ebx holds the vCPU id.
pub const HVM_VCPU_ID_PRESENT: u32 = 1 << 3;
/// Bit of leaf base + 4, eax: ecx holds the domain id.
pub const HVM_DOMID_PRESENT: u32 = 1 << 4;
