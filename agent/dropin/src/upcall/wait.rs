//! A guest that waits.
//!
//! The guest waits by `sti; hlt`, or by the hypercall `SCHEDOP_block` through Xen's page. An
//! interrupt without an event of the guest's own returns to the `sti`, with interrupts off, or to
//! the call: the guest does not wake. A tick that finds the guest waiting begins a block of the
//! agent, and arms no further tick. An event of the guest's own ends the block. So a recorded guest
//! is interrupted at most once in each wait, and one that is not recorded only by clients. If an
//! event of the guest's own arrives when the call is about to be executed again, the entry lets the
//! guest continue behind it, as Xen would have.
//!
//! The bytes before the program counter may also belong to another instruction. So a wait is one
//! only if Xen has counted blocked time since it was last asked, by a tick or for a wait: a blocked
//! vCPU continues with an interrupt, and all of them pass here.
//!
//! With several vCPUs no wait is repeated: another may end one by an interrupt of the local APIC.
//! If the profiler's comes while that one is handled, it finds the guest behind the wait, too, and
//! a return to it could last for ever. So a tick wakes a recorded guest there, as an interrupt of
//! no concern does, and ends the agent's block. One that is not recorded is not looked at after its
//! own events, since that would wake it.
#![allow(unsafe_code, reason = "instructions are read")]

use core::sync::atomic::Ordering;

use unikprof_agent::{Platform as _, Registers};
use xen_sys_lite::abi::PAGE_SIZE;

use super::Running;
use super::entry::Saved;
use crate::found;
use crate::machine::INTERRUPTS_ON;
use crate::vcpus::{self, NEVER, Vcpu};

const STI: u8 = 0xfb;
const HLT: u8 = 0xf4;
/// An entry of the hypercall page: `mov eax, 29`, for `sched_op`, and `vmcall` or `vmmcall`.
const LOAD_SCHED_OP: [u8; 5] = [0xb8, SCHED_OP as u8, 0, 0, 0];
const CALLS_XEN: [[u8; 3]; 2] = [[0x0f, 0x01, 0xc1], [0x0f, 0x01, 0xd9]];
const SCHED_OP: u64 = 29;
/// Bytes of `LOAD_SCHED_OP` and a call.
const LONGEST_WAIT: u64 = 8;
/// The first argument of `sched_op`.
const SCHEDOP_BLOCK: u64 = 1;

impl Saved {
    pub(super) fn registers(&self) -> Registers {
        Registers::new(self.rip, self.rsp, self.rbp)
    }

    /// The wait that has ended before the program counter.
    fn wait_before(&self) -> Option<Wait> {
        if !can_read_before(self.rip, |address| found::code().contains(&address)) {
            return None;
        }
        let [hlt, call] = [1, 3].map(|size| self.rip.wrapping_sub(size));
        if code(hlt) == [HLT] {
            return Some(Wait::Hlt(hlt));
        }
        let is_block = self.rdi == SCHEDOP_BLOCK
            && CALLS_XEN.contains(&code(call))
            && code(call.wrapping_sub(5)) == LOAD_SCHED_OP;
        is_block.then_some(Wait::Block(call))
    }

    /// Returns to the wait, if the guest cannot tell. Returns where it is if an interrupt may come
    /// before it is executed, else 0; `None` if the guest goes on.
    fn repeat(&mut self) -> Option<u64> {
        match self.wait_before()? {
            Wait::Hlt(at) if code(at.wrapping_sub(1)) == [STI] => {
                // With interrupts off until the `hlt`, as the guest has come there.
                self.rip = at.wrapping_sub(1);
                self.flags &= !INTERRUPTS_ON;
                Some(0)
            }
            Wait::Hlt(_) => None,
            Wait::Block(at) => {
                (self.rip, self.rax) = (at, SCHED_OP);
                Some(at)
            }
        }
    }

    /// Continues behind the call to which an interrupt has returned, if it was not executed yet.
    pub(super) fn skip_wait(&mut self, waits_at: u64) {
        if self.rip == waits_at && CALLS_XEN.contains(&code(self.rip)) {
            // It has succeeded.
            (self.rip, self.rax) = (self.rip + 3, 0);
        }
    }
}

/// An instruction in which the guest waits, by its address.
enum Wait {
    Hlt(u64),
    Block(u64),
}

/// Whether the bytes of the longest wait can be read before a program counter: they are in its
/// page, or in the image's code. The page before it may not be mapped.
fn can_read_before(pc: u64, is_code: impl Fn(u64) -> bool) -> bool {
    pc % PAGE_SIZE as u64 >= LONGEST_WAIT || is_code(pc.wrapping_sub(LONGEST_WAIT))
}

/// The bytes at an address of code.
fn code<const SIZE: usize>(address: u64) -> [u8; SIZE] {
    // SAFETY: the processor is about to execute the instructions, or `can_read_before` them.
    unsafe { core::ptr::with_exposed_provenance::<[u8; SIZE]>(address as usize).read() }
}

impl Running {
    /// Asks Xen for the blocked time, which the next `find_wait` compares with its own.
    pub(super) fn ask_blocked_ns(&self, vcpu: &Vcpu) {
        let blocked_ns = self.agent.platform().blocked_ns(vcpu.number());
        vcpu.blocked_ns.store(blocked_ns, Ordering::Relaxed);
    }

    /// Keeps the blocked time for `find_wait`, where a tick or a poll has just read the vCPU's
    /// times.
    pub(super) fn keep_blocked_ns(&self, vcpu: &Vcpu) {
        let blocked_ns = self.agent.platform().last_blocked_ns(vcpu.number());
        vcpu.blocked_ns.store(blocked_ns, Ordering::Relaxed);
    }

    /// Finds out by Xen's count of blocked time whether the interrupted code waits, and reports the
    /// wait to the agent unless that is done already.
    pub(super) fn find_wait(&self, vcpu: &'static Vcpu, saved: &Saved) {
        let is_in_poll = vcpu.is_first() && self.is_polling();
        // Xen is not asked where the code tells.
        if is_in_poll || vcpu.is_block.load(Ordering::Relaxed) || saved.wait_before().is_none() {
            return;
        }
        let platform = self.agent.platform();
        let number = vcpu.number();
        let blocked_ns = platform.blocked_ns(number);
        let before_ns = vcpu.blocked_ns.swap(blocked_ns, Ordering::Relaxed);
        if blocked_ns > before_ns {
            vcpu.is_waiting.store(true, Ordering::Relaxed);
            vcpu.is_block.store(true, Ordering::Relaxed);
            // The block began when its first ns was counted, not now.
            platform.at_blocked_ns(number, before_ns, || {
                self.agent.on_block(Some(&saved.registers()));
            });
        }
    }

    /// Returns to the wait if the guest waits. With several vCPUs, or where the idiom is another
    /// one, the guest wakes.
    pub(super) fn wait_again(&self, vcpu: &'static Vcpu, saved: &mut Saved) {
        let waits_at = vcpu.waits_at.load(Ordering::Relaxed);
        let is_waiting = vcpu.is_waiting.load(Ordering::Relaxed);
        if !is_waiting || waits_at != 0 && saved.rip == waits_at {
            return;
        }
        match vcpus::others().is_empty().then(|| saved.repeat()).flatten() {
            Some(at) => vcpu.waits_at.store(at, Ordering::Relaxed),
            None => self.wake(vcpu),
        }
    }

    /// The guest continues after a wait.
    pub(super) fn wake(&self, vcpu: &'static Vcpu) {
        vcpu.is_waiting.store(false, Ordering::Relaxed);
        self.end_block(vcpu);
    }

    /// Tells the agent the end of its block, if there is one. Xen is asked for the blocked time
    /// then.
    pub(super) fn end_block(&self, vcpu: &'static Vcpu) {
        if vcpu.is_block.swap(false, Ordering::Relaxed) {
            self.ask_blocked_ns(vcpu);
            let next_ns = self.agent.on_wake();
            vcpu.tick_at_ns.store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Guards against a fault at the first instructions of a page whose predecessor is not mapped.
    #[test]
    fn only_the_image_is_read_across_a_pages_start() {
        const PAGE: u64 = PAGE_SIZE as u64;
        let is_code = |address| (PAGE..3 * PAGE).contains(&address);
        for (pc, expected) in [
            (0, false),
            (7, false),
            (8, true),
            (PAGE - 1, true),
            (PAGE, false),
            (PAGE + 7, false),
            (PAGE + 8, true),
            (2 * PAGE, true),
            (2 * PAGE + 7, true),
            (3 * PAGE, true),
            (3 * PAGE + 8, true),
            (4 * PAGE, false),
        ] {
            assert_eq!(can_read_before(pc, is_code), expected, "{pc:#x}");
        }
    }
}
