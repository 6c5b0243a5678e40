//! The interrupt: a tick of the timer, an event on its way to the guest's own handler, or both. It runs with interrupts
//! off on the tick stack. A poll runs with interrupts on, on its own stack, and begins when an interrupt finds it due.
//!
//! # One vector
//!
//! The timer raises the vector of the guest's events. If the guest loads another interrupt table later, or writes its
//! gate anew, its own handler gets the timer's last interrupt, finds no event, and the profiler is gone without harm; a
//! vector of its own would have no gate there. Events that come by the local APIC, too, cannot be told from ticks;
//! whatever is due is done.
//!
//! # A guest that waits
//!
//! The guest waits by `sti; hlt`, or by the hypercall `SCHEDOP_block` through Xen's page. An interrupt without an event of
//! the guest's own returns to the `hlt` or to the call: the guest does not wake. A tick that finds the guest waiting
//! begins a block of the agent, and arms no further tick. An event of the guest's own ends the block. So a recorded guest
//! is interrupted at most once in each wait, and one that is not recorded only by clients. If an event of the guest's own
//! arrives when such an instruction is about to be executed again, the entry lets the guest continue behind it, as the
//! processor would have.
//!
//! A guest may also look for its events outside of upcalls, and takes those of the device then, which it does not
//! know, or masks its port. So each interrupt looks at the device itself, and [`CHECK_NS`] after an event of the
//! guest's own there is one; again and again while an upcall is pending, since Xen raises no other.
//!
//! The bytes before the program counter may also belong to another instruction. So a wait is one only if Xen has
//! counted blocked time since the profiler's last interrupt: a blocked vCPU continues with an interrupt, and all of
//! them pass here.
#![allow(
    unsafe_code,
    reason = "the state is reached from interrupts, and instructions are read"
)]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use unikprof_agent::{Continuation, Platform as _, Registers};
use xen_sys_lite::HypercallInstruction;
use xen_sys_lite::abi::xen::{SharedInfo, VcpuInfo};
use xen_sys_lite::clock::{Clock, read_tsc};
use xen_sys_lite::cpuid::XenLeaves;
use xen_sys_lite::events::{Binding, EventChannels, Port};
use xen_sys_lite::runstate::{self, RunstateArea};
use xen_sys_lite::vcpu::VcpuId;

use crate::delivery::Delivery;
use crate::machine;
use crate::machine::apic::Apic;
use crate::machine::entry::{self, Saved};
use crate::served::{Served, ServedAgent};

/// Used as a time: never.
const NEVER: u64 = u64::MAX;
/// After the guest has handled an event, the device is looked at within this time.
const CHECK_NS: u64 = 20_000_000;
/// Polls take their share of a CPU over this time.
const SHARE_NS: u64 = 100_000_000;
/// The timer may fire so much before its time, on another clock than Xen's.
const EARLY_NS: u64 = 100_000;
/// The one-shot timer counts no longer than 42.9 s.
const LONGEST_NS: u64 = 40_000_000_000;
/// The device's port is proven to be the device's at this interval.
const PROOF_NS: u64 = 1_000_000_000;
const STI: u8 = 0xfb;
const HLT: u8 = 0xf4;
/// An entry of the hypercall page: `mov eax, 29`, for `sched_op`, and `vmcall` or `vmmcall`.
const LOAD_SCHED_OP: [u8; 5] = [0xb8, SCHED_OP as u8, 0, 0, 0];
const CALLS_XEN: [[u8; 3]; 2] = [[0x0f, 0x01, 0xc1], [0x0f, 0x01, 0xd9]];
const SCHED_OP: u64 = 29;
/// The first argument of `sched_op`.
const SCHEDOP_BLOCK: u64 = 1;

/// What the entry does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Next {
    /// Return to the interrupted code.
    Return = 0,
    /// Poll, then return to the interrupted code.
    Poll = 1,
    /// Continue with the guest's handler.
    Guest = 2,
}

/// The profiler of the first vCPU.
pub(crate) struct Running {
    agent: &'static ServedAgent,
    shared: &'static SharedInfo,
    clock: Clock<'static>,
    runstate: &'static RunstateArea,
    events: EventChannels<HypercallInstruction>,
    apic: Apic,
    delivery: Delivery,
    /// The guest's interrupts that are not events pass elsewhere.
    has_others: bool,
    /// Of polls, in thousandths of a CPU.
    share_permille: AtomicU32,
    /// The device's event channel; 0 for none.
    port: AtomicU32,
    /// Its other end: domain and port.
    backend: [AtomicU32; 2],
    leaves: XenLeaves,
    /// This domain's number.
    domain: AtomicU32,
    /// The domain was restored, and the grants are still those of the old one.
    is_new_domain: AtomicBool,
    /// When to see whether it still is, in system time.
    proof_at_ns: AtomicU64,
    /// Cycles of the time stamp counter in a ns, 32.32 fixed point.
    cycles_per_ns: u64,
    /// Used by the poll only.
    served: UnsafeCell<Served>,
    is_polling: AtomicBool,
    /// The device has sent an event since the last poll began.
    is_noticed: AtomicBool,
    /// When to poll without an event, in system time.
    poll_at_ns: AtomicU64,
    /// While the last poll ended, something was received that it could not take.
    is_stuck: AtomicBool,
    /// The guest's handler has had an upcall since the last poll began, or since none was pending.
    has_passed: AtomicBool,
    /// The guest's handler did not get an upcall, for a poll's sake.
    is_owed: AtomicBool,
    /// When the timer fires, in system time.
    armed_ns: AtomicU64,
    /// When the next tick is due, in system time.
    tick_at_ns: AtomicU64,
    /// When to look at the device, in system time.
    check_at_ns: AtomicU64,
    /// When the polls so far have used no more than their share, in system time.
    paid_at_ns: AtomicU64,
    /// The guest waits in `hlt`.
    is_waiting: AtomicBool,
    /// The agent has been told of the wait.
    is_block: AtomicBool,
    /// The `hlt` to which the last interrupt has returned, or 0.
    waits_at: AtomicU64,
    /// The vCPU's blocked time when the last interrupt ended.
    blocked_ns: AtomicU64,
    /// Events of the guest's own.
    guests_events: AtomicU32,
    /// What the poll under way has interrupted: program counter, stack pointer, frame pointer; 0 for a wait.
    interrupted: [AtomicU64; 3],
}

// SAFETY: `served` is used by the poll only, which `is_polling` admits once; the rest is shared by atomics or read.
unsafe impl Sync for Running {}

static RUNNING: AtomicPtr<Running> = AtomicPtr::new(core::ptr::null_mut());

pub(crate) fn running() -> Option<&'static Running> {
    // SAFETY: null, or given by `publish` for ever.
    unsafe { RUNNING.load(Ordering::Acquire).as_ref() }
}

/// The agent, once it has started.
pub(crate) fn agent() -> Option<&'static ServedAgent> {
    Some(running()?.agent)
}

/// Lets interrupts use `running`.
pub(crate) fn publish(running: &'static mut Running) -> &'static Running {
    RUNNING.store(running, Ordering::Release);
    running
}

/// Where a walk continues at the end of a chain of frames: a poll's in the code that it interrupted, a coroutine's or
/// fiber's on the stack that the frame pointer leads to, which may lie below.
pub(crate) fn continuation(sp: u64, _: u64) -> Option<Continuation> {
    let running = running()?;
    if !entry::is_on_poll_stack(sp) {
        return Some(Continuation::FrameRecord);
    }
    let [pc, sp, fp] = running
        .interrupted
        .each_ref()
        .map(|word| word.load(Ordering::Relaxed));
    (pc != 0).then(|| Continuation::Interrupted(Registers::new(pc, sp, fp)))
}

/// An interrupt of the guest or of a poll.
pub(crate) extern "C" fn on_interrupt(saved: &mut Saved) -> Next {
    running().map_or(Next::Guest, |running| running.on_interrupt(saved))
}

/// A poll, with interrupts off before and after.
pub(crate) extern "C" fn on_poll(saved: &mut Saved) {
    if let Some(running) = running() {
        running.on_poll(saved);
    }
}

impl Saved {
    fn registers(&self) -> Registers {
        Registers::new(self.rip, self.rsp, self.rbp)
    }

    /// The wait that has ended before the program counter.
    fn wait_before(&self) -> Option<Wait> {
        let [hlt, call] = [1, 3].map(|size| self.rip.wrapping_sub(size));
        if code(hlt) == [HLT] {
            return Some(Wait::Hlt(hlt));
        }
        let is_block = self.rdi == SCHEDOP_BLOCK
            && CALLS_XEN.contains(&code(call))
            && code(call.wrapping_sub(5)) == LOAD_SCHED_OP;
        is_block.then_some(Wait::Block(call))
    }

    /// Returns to the wait, if the guest cannot tell; returns where it is.
    fn repeat(&mut self) -> Option<u64> {
        match self.wait_before()? {
            Wait::Hlt(at) if code(at.wrapping_sub(1)) == [STI] => self.rip = at,
            Wait::Hlt(_) => return None,
            Wait::Block(at) => (self.rip, self.rax) = (at, SCHED_OP),
        }
        Some(self.rip)
    }

    /// Continues behind the wait to which an interrupt has returned, if it was not executed yet.
    fn skip_wait(&mut self, waits_at: u64) {
        if self.rip != waits_at {
        } else if code(self.rip) == [HLT] {
            self.rip += 1;
        } else if CALLS_XEN.contains(&code(self.rip)) {
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

/// The bytes at an address of executed code.
fn code<const SIZE: usize>(address: u64) -> [u8; SIZE] {
    // SAFETY: the processor has executed the instructions, or is about to.
    unsafe { core::ptr::with_exposed_provenance::<[u8; SIZE]>(address as usize).read() }
}

impl Running {
    /// The profiler, not yet published. `has_others` tells whether other interrupts than events come to the guest.
    pub(crate) fn new(
        agent: &'static ServedAgent,
        shared: &'static SharedInfo,
        (clock, runstate): (Clock<'static>, &'static RunstateArea),
        (xen, leaves): (HypercallInstruction, XenLeaves),
        (apic, delivery, has_others): (Apic, Delivery, bool),
        (served, share_permille): (Served, u32),
    ) -> Self {
        let hz = clock.snapshot().tsc_hz().unwrap_or(0);
        Self {
            agent,
            shared,
            clock,
            runstate,
            events: EventChannels::new(xen, shared),
            apic,
            delivery,
            has_others,
            share_permille: AtomicU32::new(share_permille),
            port: AtomicU32::new(0),
            backend: [const { AtomicU32::new(0) }; 2],
            leaves,
            domain: AtomicU32::new(0),
            is_new_domain: AtomicBool::new(false),
            proof_at_ns: AtomicU64::new(0),
            cycles_per_ns: ((u128::from(hz) << 32) / 1_000_000_000) as u64,
            served: UnsafeCell::new(served),
            is_polling: AtomicBool::new(false),
            is_noticed: AtomicBool::new(true),
            is_stuck: AtomicBool::new(false),
            has_passed: AtomicBool::new(false),
            is_owed: AtomicBool::new(false),
            armed_ns: AtomicU64::new(NEVER),
            poll_at_ns: AtomicU64::new(0),
            tick_at_ns: AtomicU64::new(NEVER),
            check_at_ns: AtomicU64::new(NEVER),
            paid_at_ns: AtomicU64::new(0),
            is_waiting: AtomicBool::new(false),
            is_block: AtomicBool::new(false),
            waits_at: AtomicU64::new(0),
            blocked_ns: AtomicU64::new(agent.platform().blocked_ns(0)),
            guests_events: AtomicU32::new(0),
            interrupted: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Lets the timer and the connected device interrupt, beginning with a poll.
    pub(crate) fn begin(&self) {
        self.go_on(true);
    }

    fn go_on(&self, has_network: bool) {
        self.apic.enable(self.delivery.vector);
        // SAFETY: interrupts are off, and there is no poll.
        let port = unsafe { &*self.served.get() }.port();
        if let Some(port) = port.filter(|_| has_network) {
            if let Ok((Binding::Interdomain { domain, port }, _)) = self.events.status(port) {
                self.backend[0].store(u32::from(domain), Ordering::Relaxed);
                self.backend[1].store(port, Ordering::Relaxed);
            }
            self.port.store(port.0, Ordering::Relaxed);
            // Fails only for a port that does not exist.
            let _ = self.events.unmask(port);
        }
        self.is_noticed.store(true, Ordering::Relaxed);
        self.domain.store(self.domain_id(), Ordering::Relaxed);
        self.put_off_proof();
        self.arm();
    }

    /// Sets the share of polls, in thousandths of a CPU, 1 to 1000.
    pub(crate) fn set_cpu_share(&self, permille: u32) {
        self.share_permille.store(permille, Ordering::Relaxed);
    }

    pub(crate) fn is_polling(&self) -> bool {
        self.is_polling.load(Ordering::Relaxed)
    }

    /// Connects the device again, by `reconnect`, which is told whether the domain is a new one, and says when it has
    /// forgotten the old one. After an error there is no network. Interrupts are off, and no poll is under way.
    pub(crate) fn reconnect<T, E>(
        &self,
        reconnect: impl FnOnce(&mut Served, &AtomicBool) -> Result<T, E>,
    ) -> Result<T, E> {
        if self.is_restored() {
            self.follow_restore();
        }
        self.port.store(0, Ordering::Relaxed);
        // SAFETY: there is no poll, and none begins: interrupts are off.
        let result = reconnect(unsafe { &mut *self.served.get() }, &self.is_new_domain);
        self.go_on(result.is_ok());
        result
    }

    fn port(&self) -> Option<Port> {
        let port = self.port.load(Ordering::Relaxed);
        (port != 0).then_some(Port(port))
    }

    /// Whether a port is connected as the device's was.
    fn is_ours(&self, port: Port) -> bool {
        let binding = self.events.status(port).map(|(binding, _)| binding);
        let [domain, far_port] = self.backend.each_ref().map(|it| it.load(Ordering::Relaxed));
        binding.is_ok_and(|binding| {
            matches!(binding, Binding::Interdomain { domain: of, port }
                if u32::from(of) == domain && port == far_port)
        })
    }

    /// Whether the domain is another one than at the last proof: by its number, or because its time began anew and
    /// the device's port is gone, as it is in every new domain.
    fn is_restored(&self) -> bool {
        self.domain_id() != self.domain.load(Ordering::Relaxed)
            || self.has_stepped_back() && self.port().is_some_and(|port| !self.is_ours(port))
    }

    /// Whether it is earlier than at the last proof. A starved host's clock steps back too, and more often than domains
    /// of one number follow each other.
    fn has_stepped_back(&self) -> bool {
        self.proof_at_ns.load(Ordering::Relaxed) > self.clock.now_ns() + PROOF_NS
    }

    /// What was to happen at times of a clock that has stepped back.
    fn follow_clock(&self) {
        let tick_at_ns = self.agent.deadline().unwrap_or(NEVER);
        self.tick_at_ns.store(tick_at_ns, Ordering::Relaxed);
        self.paid_at_ns.store(0, Ordering::Relaxed);
        self.check_at_ns.store(NEVER, Ordering::Relaxed);
        self.is_noticed.store(true, Ordering::Relaxed);
    }

    fn domain_id(&self) -> u32 {
        self.leaves.domain().map_or(u32::MAX, u32::from)
    }

    fn put_off_proof(&self) {
        let proof_at_ns = self.clock.now_ns() + PROOF_NS;
        self.proof_at_ns.store(proof_at_ns, Ordering::Relaxed);
    }

    /// The domain was restored from a save: what Xen knew of the profiler is gone. Sampling goes on.
    fn follow_restore(&self) {
        self.port.store(0, Ordering::Relaxed);
        self.is_new_domain.store(true, Ordering::Relaxed);
        self.domain.store(self.domain_id(), Ordering::Relaxed);
        self.put_off_proof();
        // The area is where it was, which Xen has accepted before.
        let _ = runstate::register(self.events.hypercall(), VcpuId(0), self.runstate);
        self.agent.resume();
        self.wake();
        let blocked_ns = self.agent.platform().blocked_ns(0);
        self.blocked_ns.store(blocked_ns, Ordering::Relaxed);
        self.follow_clock();
        self.poll_at_ns.store(NEVER, Ordering::Relaxed);
        self.is_owed.store(false, Ordering::Relaxed);
    }

    fn on_interrupt(&self, saved: &mut Saved) -> Next {
        let by_apic = self.delivery.by_apic;
        let is_timer = !by_apic && self.apic.is_in_service(self.delivery.vector);
        if is_timer {
            self.apic.end_of_interrupt();
        }
        let armed_ns = self.armed_ns.load(Ordering::Relaxed);
        // What the profiler has not caused is the guest's, also if it no longer tells its events where it did.
        let is_own = self.look() | is_timer | self.is_past(armed_ns.saturating_sub(EARLY_NS));
        self.find_wait(saved);
        if self.is_past(self.tick_at_ns.load(Ordering::Relaxed)) {
            let next_ns = self.agent.on_tick(Some(&saved.registers()));
            self.tick_at_ns
                .store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
        }
        let is_guests = !is_own || !is_timer && self.take_upcall();
        if is_guests {
            // A guest that leaves its upcall pending while it computes must not keep polls off.
            let has_passed = self.has_passed.swap(true, Ordering::Relaxed);
            if !(is_own && by_apic && has_passed && self.is_past(self.next_poll_ns())) {
                self.pass_on(saved);
                return Next::Guest;
            }
            self.is_owed.store(true, Ordering::Relaxed);
        } else {
            self.is_owed.store(false, Ordering::Relaxed);
            self.has_passed.store(false, Ordering::Relaxed);
        }
        if by_apic {
            // The guest's handler, which would have ended it, does not run.
            self.apic.end_of_interrupt();
        }
        self.leave(saved)
    }

    /// Looks whether the device has sent an event, which it returns, and when to look again.
    fn look(&self) -> bool {
        let port = self.port();
        let (is_masked, is_pending) = port.map_or((false, false), |port| {
            (self.events.is_masked(port), self.events.is_pending(port))
        });
        // Before an event is taken, which could be another's, and now and then.
        let proof_at_ns = self.proof_at_ns.load(Ordering::Relaxed);
        let now_ns = self.clock.now_ns();
        let is_proven = (now_ns..=now_ns + PROOF_NS).contains(&proof_at_ns);
        if is_masked || is_pending || !is_proven {
            if self.is_restored() {
                machine::debug_line(
                    "the guest was restored: no network before unikprof_dropin_resume()",
                );
                self.follow_restore();
                return false;
            }
            if self.has_stepped_back() {
                self.follow_clock();
            }
            self.put_off_proof();
            if port.is_some_and(|port| !self.is_ours(port)) {
                // The backend has gone.
                self.port.store(0, Ordering::Relaxed);
                return false;
            }
        }
        let Some(port) = port else {
            return false;
        };
        if is_masked {
            // As in `begin`.
            let _ = self.events.unmask(port);
        }
        if is_pending && self.events.take_pending(port) {
            self.is_noticed.store(true, Ordering::Relaxed);
        }
        if self.is_past(self.check_at_ns.load(Ordering::Relaxed)) {
            let is_upcall_pending = self
                .vcpu_info()
                .evtchn_upcall_pending
                .load(Ordering::SeqCst)
                != 0;
            let next_ns = match is_upcall_pending {
                true => self.clock.now_ns() + CHECK_NS,
                false => NEVER,
            };
            self.check_at_ns.store(next_ns, Ordering::Relaxed);
        }
        is_pending
    }

    /// Before the guest's handler.
    fn pass_on(&self, saved: &mut Saved) {
        self.is_owed.store(false, Ordering::Relaxed);
        self.guests_events.fetch_add(1, Ordering::Relaxed);
        saved.skip_wait(self.waits_at.swap(0, Ordering::Relaxed));
        self.wake();
        if self.check_at_ns.load(Ordering::Relaxed) == NEVER {
            let check_at_ns = self.clock.now_ns() + CHECK_NS;
            self.check_at_ns.store(check_at_ns, Ordering::Relaxed);
        }
        // A poll that is due begins with the timer's interrupt, which follows.
        self.arm();
    }

    /// Ends an interrupt that the guest's handler does not see: begins a poll that is due, else returns to the
    /// interrupted code.
    fn leave(&self, saved: &mut Saved) -> Next {
        if self.is_past(self.next_poll_ns()) {
            self.is_polling.store(true, Ordering::Relaxed);
            self.has_passed.store(false, Ordering::Relaxed);
            // A poll of a guest that waits is running time, and not its idle function's.
            self.end_block();
            let interrupted = match self.is_waiting.load(Ordering::Relaxed) {
                true => [0; 3],
                false => [saved.rip, saved.rsp, saved.rbp],
            };
            for (word, value) in self.interrupted.iter().zip(interrupted) {
                word.store(value, Ordering::Relaxed);
            }
            // Ticks interrupt the poll.
            self.arm();
            return Next::Poll;
        }
        if !self.is_polling() {
            self.wait_again(saved);
        }
        self.arm();
        Next::Return
    }

    fn on_poll(&self, saved: &mut Saved) {
        let events = self.guests_events.load(Ordering::Relaxed);
        let waits_at = self.waits_at.load(Ordering::Relaxed);
        self.is_noticed.store(false, Ordering::Relaxed);
        let began_ns = (self.clock.now_ns(), self.running_ns());
        machine::enable_interrupts();
        // SAFETY: `is_polling` is set, so this is the only poll.
        let next_ns = unsafe { &mut *self.served.get() }.poll();
        machine::disable_interrupts();
        let platform = self.agent.platform();
        let poll_at_ns = next_ns.map_or(NEVER, |at_ns| platform.timer_deadline(at_ns));
        self.poll_at_ns.store(poll_at_ns, Ordering::Relaxed);
        self.pay(began_ns);
        // SAFETY: as above; the poll is over.
        let is_stuck = unsafe { &*self.served.get() }.has_received();
        self.is_stuck.store(is_stuck, Ordering::Relaxed);
        if is_stuck {
            // Or it came when the poll did not look any more, and the guest may take its event.
            let again_ns = self.clock.now_ns() + CHECK_NS;
            self.poll_at_ns.fetch_min(again_ns, Ordering::Relaxed);
        }
        // The poll may have begun a recording.
        let tick_at_ns = self.agent.deadline().unwrap_or(NEVER);
        self.tick_at_ns.store(tick_at_ns, Ordering::Relaxed);
        self.is_polling.store(false, Ordering::Relaxed);
        if events == self.guests_events.load(Ordering::Relaxed) {
            self.wait_again(saved);
        } else {
            // The event ends the wait also where its `hlt` was about to be executed again.
            saved.skip_wait(waits_at);
            self.wake();
        }
        self.arm();
    }

    /// Charges the running time since `began_ns`, system time and running time, to the share of polls.
    fn pay(&self, (began_ns, began_running_ns): (u64, u64)) {
        let spent_ns = self.running_ns().saturating_sub(began_running_ns);
        let share_permille = u64::from(self.share_permille.load(Ordering::Relaxed));
        let price_ns = spent_ns.saturating_mul(1000) / share_permille;
        let from_ns = self.paid_at_ns.load(Ordering::Relaxed).max(began_ns);
        self.paid_at_ns
            .store(from_ns.saturating_add(price_ns), Ordering::Relaxed);
    }

    /// Begins a block of the agent if the interrupted code waits in `hlt`, and there is none.
    fn find_wait(&self, saved: &Saved) {
        if self.is_polling() || self.is_block.load(Ordering::Relaxed) {
            return;
        }
        let platform = self.agent.platform();
        let blocked_ns = platform.blocked_ns(0);
        let before_ns = self.blocked_ns.swap(blocked_ns, Ordering::Relaxed);
        if blocked_ns > before_ns && saved.wait_before().is_some() {
            self.is_waiting.store(true, Ordering::Relaxed);
            self.is_block.store(true, Ordering::Relaxed);
            // The block began when its first ns was counted, not now.
            platform.at_blocked_ns(0, before_ns, || {
                self.agent.on_block(Some(&saved.registers()));
            });
        }
    }

    /// Returns to the wait if the guest waits. Otherwise, where the idiom is another one, or where interrupts come that do
    /// not pass here because the guest uses the APIC itself, the guest wakes.
    fn wait_again(&self, saved: &mut Saved) {
        if !self.is_waiting.load(Ordering::Relaxed)
            || saved.rip == self.waits_at.load(Ordering::Relaxed)
        {
            return;
        }
        let at = if self.has_others {
            None
        } else {
            saved.repeat()
        };
        match at {
            Some(at) => self.waits_at.store(at, Ordering::Relaxed),
            None => self.wake(),
        }
    }

    /// The guest continues after a wait.
    fn wake(&self) {
        self.is_waiting.store(false, Ordering::Relaxed);
        self.end_block();
    }

    fn end_block(&self) {
        if self.is_block.swap(false, Ordering::Relaxed) {
            let blocked_ns = self.agent.platform().blocked_ns(0);
            self.blocked_ns.store(blocked_ns, Ordering::Relaxed);
            let next_ns = self.agent.on_wake();
            self.tick_at_ns
                .store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
        }
    }

    /// Whether an event of the guest's own is pending. If not, the upcall is acknowledged, so that the guest's handler
    /// need not run.
    fn take_upcall(&self) -> bool {
        let vcpu = self.vcpu_info();
        if vcpu.evtchn_upcall_pending.load(Ordering::SeqCst) == 0 {
            return false;
        }
        // The order of Xen's own demultiplexing: a new event sets the flag again.
        vcpu.evtchn_upcall_pending.store(0, Ordering::SeqCst);
        let words = vcpu.evtchn_pending_sel.swap(0, Ordering::SeqCst);
        let all = self
            .shared
            .evtchn_pending
            .iter()
            .zip(&self.shared.evtchn_mask);
        let is_pending = all.enumerate().any(|(number, (pending, mask))| {
            words >> number & 1 != 0
                && pending.load(Ordering::SeqCst) & !mask.load(Ordering::SeqCst) != 0
        });
        if is_pending {
            vcpu.evtchn_pending_sel.fetch_or(words, Ordering::SeqCst);
            vcpu.evtchn_upcall_pending.store(1, Ordering::SeqCst);
        }
        is_pending
    }

    fn running_ns(&self) -> u64 {
        self.agent.platform().running_ns(0)
    }

    fn vcpu_info(&self) -> &'static VcpuInfo {
        &self.shared.vcpu_info[0]
    }

    /// When the next poll is due, in system time.
    fn next_poll_ns(&self) -> u64 {
        if self.is_polling() || self.port().is_none() {
            return NEVER;
        }
        // SAFETY: there is no poll, and none can begin meanwhile.
        let has_received = || unsafe { &*self.served.get() }.has_received();
        let is_stuck = self.is_stuck.load(Ordering::Relaxed);
        let is_noticed = self.is_noticed.load(Ordering::Relaxed);
        let poll_at_ns = match is_noticed || !is_stuck && has_received() {
            true => 0,
            false => self.poll_at_ns.load(Ordering::Relaxed),
        };
        let paid_at_ns = self.paid_at_ns.load(Ordering::Relaxed);
        poll_at_ns.max(paid_at_ns.saturating_sub(SHARE_NS))
    }

    fn is_past(&self, at_ns: u64) -> bool {
        at_ns != NEVER && at_ns <= self.clock.now_ns()
    }

    /// Arms the timer for the next tick or poll.
    fn arm(&self) {
        let times =
            [&self.tick_at_ns, &self.check_at_ns].map(|at_ns| at_ns.load(Ordering::Relaxed));
        let is_owed = !self.is_polling() && self.is_owed.load(Ordering::Relaxed);
        let next_ns = if is_owed { 0 } else { self.next_poll_ns() };
        let now_ns = self.clock.now_ns();
        let at_ns = match times.into_iter().fold(next_ns, u64::min) {
            NEVER => NEVER,
            at_ns => at_ns.min(now_ns + LONGEST_NS),
        };
        self.armed_ns.store(at_ns, Ordering::Relaxed);
        let delay_ns = (at_ns != NEVER).then(|| at_ns.saturating_sub(now_ns));
        self.apic.arm(delay_ns, |delay_ns| {
            let cycles = (u128::from(delay_ns) * u128::from(self.cycles_per_ns)) >> 32;
            read_tsc().wrapping_add(cycles as u64)
        });
    }
}
