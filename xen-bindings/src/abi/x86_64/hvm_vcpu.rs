//! First registers of a secondary vCPU of a PVH or HVM guest (`hvm/hvm_vcpu.h`).

use super::super::layout;

/// `VCPU_HVM_MODE_64B`: start in long mode, with flat 64-bit segments.
pub const MODE_64B: u32 = 1;

/// `struct vcpu_hvm_x86_64`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "each field is the register of its name")]
pub struct Registers64 {
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rbx: u64,
    pub rsp: u64,
    pub rbp: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rip: u64,
    pub rflags: u64,
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
}
layout!(Registers64, size 112, rax @ 0, rbx @ 24, rsp @ 32, rdi @ 56, rip @ 64, rflags @ 72,
    cr0 @ 80, cr3 @ 88, cr4 @ 96, efer @ 104);

/// `struct vcpu_hvm_context`, in its 64-bit form.
///
/// The header's union also has a 32-bit form, which is eight bytes longer.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct VcpuHvmContext {
    /// [`MODE_64B`].
    pub mode: u32,
    /// Zero.
    pub pad: u32,
    /// The registers.
    pub registers: Registers64,
    /// Rest of the union; zero.
    pub rest: u64,
}
layout!(VcpuHvmContext, size 128, mode @ 0, registers @ 8);
