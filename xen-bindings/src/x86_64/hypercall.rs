//! Calling Xen on x86-64: through a page of code that Xen fills, or by the processor's own
//! instruction.

#![allow(unsafe_code, reason = "the hypercall page is called and installed here")]

use core::arch::asm;
use core::arch::x86_64::__cpuid;
use core::fmt;
use core::ptr::NonNull;

use super::cpuid::XenLeaves;
use crate::abi::PAGE_SIZE;
use crate::abi::xen::hypercall::PAGE_ENTRIES;
use crate::hypercall::Hypercall;

/// The page that Xen has filled with one entry of 32 bytes for each hypercall.
///
/// ```no_run
/// use xen_sys_lite::{HypercallPage, PageMemory};
///
/// // In an identity-mapped guest without NX on its data, any page-aligned static serves.
/// static HYPERCALLS: PageMemory = PageMemory::new();
///
/// // SAFETY: nothing else uses the page, it is mapped executable at its physical address.
/// let xen = unsafe { HypercallPage::install(HYPERCALLS.base(), HYPERCALLS.base().addr().get() as u64) }?;
/// let (major, minor) = xen_sys_lite::version::xen_version(&xen)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
pub struct HypercallPage {
    entries: NonNull<u8>,
}

// SAFETY: the page is only executed after installation; any vCPU may do so at any time.
unsafe impl Send for HypercallPage {}
// SAFETY: as above.
unsafe impl Sync for HypercallPage {}

impl HypercallPage {
    /// Has Xen fill `page`, whose guest-physical address is `physical_address`.
    ///
    /// The page is filled anew after a restore or migration by calling this again.
    ///
    /// # Safety
    /// `page` is the virtual address of a page at `physical_address`, both aligned to 4,096 bytes,
    /// mapped executable for as long as the result is used, and used for nothing else. The caller
    /// runs at privilege level 0.
    ///
    /// # Errors
    /// [`NotXen`] where CPUID shows no Xen; nothing has been changed then.
    pub unsafe fn install(page: NonNull<u8>, physical_address: u64) -> Result<Self, NotXen> {
        let leaves = XenLeaves::find().ok_or(NotXen)?;
        // SAFETY: the MSR is the one Xen names for this purpose, the page is the caller's to give.
        unsafe { write_msr(leaves.hypercall_msr(), physical_address) };
        Ok(Self { entries: page })
    }

    /// Uses a page that was filled before, by an early entry in assembly for instance.
    ///
    /// # Safety
    /// Xen has filled `page`, and it stays mapped executable for as long as the result is used.
    #[must_use]
    pub const unsafe fn from_installed(page: NonNull<u8>) -> Self {
        Self { entries: page }
    }
}

const ENTRY_SIZE: usize = 32;
const _: () = assert!(ENTRY_SIZE * PAGE_ENTRIES as usize == PAGE_SIZE);

impl Hypercall for HypercallPage {
    #[inline]
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64 {
        if number >= PAGE_ENTRIES {
            return -38; // -ENOSYS, as Xen answers for a number it does not know.
        }
        let entry = self.entries.as_ptr().wrapping_add(number as usize * ENTRY_SIZE);
        let [first, second, third, fourth, fifth] = arguments;
        let result;
        // SAFETY: the entry lies in the page (checked above), which Xen filled (constructor's
        // contract). The ABI takes arguments in rdi, rsi, rdx, r10, r8 and may change them as well
        // as rax, rcx, r9 and r11. The call pushes a return address, so the block is not marked
        // `nostack`. Whether the arguments are right is the caller's contract.
        unsafe {
            asm!(
                "call {entry}",
                entry = in(reg) entry,
                inlateout("rdi") first => _,
                inlateout("rsi") second => _,
                inlateout("rdx") third => _,
                inlateout("r10") fourth => _,
                inlateout("r8") fifth => _,
                lateout("rax") result,
                lateout("rcx") _,
                lateout("r9") _,
                lateout("r11") _,
            );
        }
        result
    }
}

/// The processor's instruction for calling the hypervisor, without a page: `vmmcall` on processors
/// of AMD and Hygon, `vmcall` on the others. For HVM and PVH guests. Xen's advisory 466 recommends
/// it over the page, whose indirect branches cannot be hardened by the guest.
#[derive(Clone, Copy, Debug)]
pub struct HypercallInstruction {
    is_vmmcall: bool,
}

impl HypercallInstruction {
    /// Finds the processor's instruction. The caller runs at privilege level 0, or each hypercall
    /// is an exception.
    ///
    /// # Errors
    /// [`NotXen`] where CPUID shows no Xen.
    pub fn find() -> Result<Self, NotXen> {
        XenLeaves::find().ok_or(NotXen)?;
        let leaf = __cpuid(0);
        let vendor = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
        let is_vmmcall = matches!(vendor.as_flattened(), b"AuthenticAMD" | b"HygonGenuine");
        Ok(Self { is_vmmcall })
    }
}

macro_rules! call_by {
    ($instruction:literal, $number:expr, $arguments:expr) => {{
        let [first, second, third, fourth, fifth] = $arguments;
        let result;
        // SAFETY: the processor has the instruction, by which Xen is called with the number in eax
        // and arguments in rdi, rsi, rdx, r10, r8. Whether the arguments are right is the caller's
        // contract.
        unsafe {
            asm!(
                $instruction,
                inlateout("rax") u64::from($number) => result,
                inlateout("rdi") first => _,
                inlateout("rsi") second => _,
                inlateout("rdx") third => _,
                inlateout("r10") fourth => _,
                inlateout("r8") fifth => _,
                lateout("rcx") _,
                lateout("r9") _,
                lateout("r11") _,
                options(nostack),
            );
        }
        result
    }};
}

impl Hypercall for HypercallInstruction {
    #[inline]
    unsafe fn call(&self, number: u32, arguments: [u64; 5]) -> i64 {
        if self.is_vmmcall {
            call_by!("vmmcall", number, arguments)
        } else {
            call_by!("vmcall", number, arguments)
        }
    }
}

/// CPUID shows no Xen: the guest runs on something else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotXen;

impl fmt::Display for NotXen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no Xen hypervisor in the CPUID leaves")
    }
}

impl core::error::Error for NotXen {}

/// Writes a model-specific register.
///
/// # Safety
/// Privilege level 0, and a write whose effect the caller may have.
unsafe fn write_msr(register: u32, value: u64) {
    let (low, high) = (value as u32, (value >> 32) as u32);
    // SAFETY: the caller's contract.
    unsafe {
        asm!(
            "wrmsr", in("ecx") register, in("eax") low, in("edx") high,
            options(nostack, preserves_flags)
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::arch::global_asm;

    // A hypercall page of our own: entry n spoils every register the ABI lets it spoil, and returns
    // n + the arguments weighted with powers of ten.
    global_asm!(
        ".pushsection .text.test_hypercalls, \"ax\", @progbits",
        ".balign 4096",
        "test_hypercall_page:",
        ".set number, 0",
        ".rept 128",
        ".balign 32",
        "mov eax, number",
        "jmp test_hypercall_body",
        ".set number, number + 1",
        ".endr",
        ".balign 32",
        "test_hypercall_body:",
        "imul rdi, rdi, 1000",
        "add rax, rdi",
        "imul rsi, rsi, 10000",
        "add rax, rsi",
        "imul rdx, rdx, 100000",
        "add rax, rdx",
        "imul r10, r10, 1000000",
        "add rax, r10",
        "imul r8, r8, 10000000",
        "add rax, r8",
        "mov rcx, -1",
        "mov rdi, -1",
        "mov rsi, -1",
        "mov rdx, -1",
        "mov r8, -1",
        "mov r9, -1",
        "mov r10, -1",
        "mov r11, -1",
        "ret",
        ".popsection",
    );

    unsafe extern "C" {
        static test_hypercall_page: u8;
    }

    /// Guards against arguments in other registers than the ABI's, and against a value kept in one
    /// that the hypervisor may change.
    #[test]
    fn arguments_go_where_the_abi_says() {
        // SAFETY: the page above consists of entries of 32 bytes that keep to the ABI.
        let page = unsafe { HypercallPage::from_installed(NonNull::from(&test_hypercall_page)) };
        for number in [0, 1, 20, 32, 127] {
            for scale in 1..4 {
                let arguments = [1, 2, 3, 4, 5].map(|value| value * scale);
                // SAFETY: no entry touches memory.
                let result = unsafe { page.call(number, arguments) };
                assert_eq!(result, i64::from(number) + scale as i64 * 54_321_000);
            }
        }
        // SAFETY: a number beyond the page calls nothing.
        assert_eq!(unsafe { page.call(128, [0; 5]) }, -38);
    }
}
