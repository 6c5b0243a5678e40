//! The interrupt: a tick of the timer, an event on its way to the guest's own handler, or both. It
//! runs with interrupts off on the tick stack. A poll runs with interrupts on, on its own stack,
//! and begins when an interrupt finds it due.
//!
//! # One vector
//!
//! The timer raises the vector of the guest's events. If the guest loads another interrupt table
//! later, or writes its gate anew, its own handler gets the timer's last interrupt, finds no event,
//! and the profiler is gone without harm; a vector of its own would have no gate there. Events that
//! come by the local APIC, too, cannot be told from ticks; whatever is due is done.
//!
//! # A guest that waits
//!
//! The guest waits by `sti; hlt`, or by the hypercall `SCHEDOP_block` through Xen's page. An
//! interrupt without an event of the guest's own returns to the `sti`, with interrupts off, or to
//! the call: the guest does not wake. A tick that finds the guest waiting begins a block of the
//! agent, and arms no further tick. An event of the guest's own ends the block. So a recorded guest
//! is interrupted at most once in each wait, and one that is not recorded only by clients. If an
//! event of the guest's own arrives when the call is about to be executed again, the entry lets the
//! guest continue behind it, as Xen would have.
//!
//! A guest may also look for its events outside of upcalls, and takes those of the device then,
//! which it does not know, or masks its port. So each interrupt looks at the device itself, and
//! [`CHECK_NS`] after an event of the guest's own there is one; again and again while an upcall is
//! pending, since Xen raises no other.
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
#![allow(unsafe_code, reason = "the state is reached from interrupts, and instructions are read")]

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use unikprof_agent::{Continuation, Platform as _, Registers};
use xen_sys_lite::HypercallInstruction;
use xen_sys_lite::abi::PAGE_SIZE;
use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::clock::{Clock, read_counter};
use xen_sys_lite::cpuid::XenLeaves;
use xen_sys_lite::events::{Binding, EventChannels, Port};

use crate::delivery::Delivery;
use crate::machine::apic::Apic;
use crate::machine::descriptors;
use crate::machine::entry::{self, Saved};
use crate::machine::{self, INTERRUPTS_ON};
use crate::served::{Served, ServedAgent};
use crate::start;
use crate::vcpus::{self, NEVER, Vcpu};

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
/// Bytes of `LOAD_SCHED_OP` and a call.
const LONGEST_WAIT: u64 = 8;
/// The first argument of `sched_op`.
const SCHEDOP_BLOCK: u64 = 1;

/// The entry's next step.
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

/// The running profiler. The network is the first vCPU's.
pub(crate) struct Running {
    agent: &'static ServedAgent,
    shared: &'static SharedInfo,
    clock: Clock<'static>,
    events: EventChannels<HypercallInstruction>,
    apic: Apic,
    delivery: Delivery,
    /// The limit of polls, in thousandths of a CPU.
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
    cycles_per_ns: AtomicU64,
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
    /// When to look at the device, in system time.
    check_at_ns: AtomicU64,
    /// When the polls so far have used no more than their share, in system time.
    paid_at_ns: AtomicU64,
    /// Events of the guest's own.
    guests_events: AtomicU32,
    /// The code that the current poll has interrupted: program counter, stack pointer, frame
    /// pointer; 0 for a wait.
    interrupted: [AtomicU64; 3],
}

// SAFETY: `served` is used by the poll only, which `is_polling` admits once; the rest is shared by
// atomics or read.
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

/// Where a walk continues at the end of a chain of frames: a poll's in the code that it
/// interrupted, a coroutine's or fiber's on the stack that the frame pointer leads to, which may
/// lie below.
pub(crate) fn continuation(sp: u64, _: u64) -> Option<Continuation> {
    let running = running()?;
    if !entry::is_on_poll_stack(sp) {
        return Some(Continuation::FrameRecord);
    }
    let [pc, sp, fp] = running.interrupted.each_ref().map(|word| word.load(Ordering::Relaxed));
    (pc != 0).then(|| Continuation::Interrupted(Registers::new(pc, sp, fp)))
}

/// Interrupts another vCPU than the first, for the agent; there is no port that it need send to.
pub(crate) fn kick(vcpu: u32) -> Option<Port> {
    let vcpu = vcpus::of(vcpu).filter(|it| !it.is_first())?;
    vcpu.kick(&running()?.events);
    None
}

/// An interrupt of the guest or of a poll.
pub(crate) extern "C" fn on_interrupt(saved: &mut Saved, vcpu: u32) -> Next {
    machine::keeping_cr2(|| match (running(), vcpus::of(vcpu)) {
        (Some(running), Some(vcpu)) if vcpu.is_first() => running.on_interrupt(vcpu, saved),
        (Some(running), Some(vcpu)) => running.on_interrupt_elsewhere(vcpu, saved),
        _ => Next::Guest,
    })
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
        if !can_read_before(self.rip, start::is_code) {
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
    fn skip_wait(&mut self, waits_at: u64) {
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

/// Cycles of the time stamp counter in a ns, 32.32 fixed point.
fn cycles_per_ns(clock: &Clock<'_>) -> u64 {
    let hz = clock.snapshot().counter_hz().unwrap_or(0);
    ((u128::from(hz) << 32) / 1_000_000_000) as u64
}

impl Running {
    /// The profiler, not yet published.
    pub(crate) fn new(
        agent: &'static ServedAgent,
        shared: &'static SharedInfo,
        clock: Clock<'static>,
        (xen, leaves): (HypercallInstruction, XenLeaves),
        (apic, delivery): (Apic, Delivery),
        (served, share_permille): (Served, u32),
    ) -> Self {
        let cycles_per_ns = cycles_per_ns(&clock);
        Self {
            agent,
            shared,
            clock,
            events: EventChannels::new(xen, shared),
            apic,
            delivery,
            share_permille: AtomicU32::new(share_permille),
            port: AtomicU32::new(0),
            backend: [const { AtomicU32::new(0) }; 2],
            leaves,
            domain: AtomicU32::new(0),
            is_new_domain: AtomicBool::new(false),
            proof_at_ns: AtomicU64::new(0),
            cycles_per_ns: AtomicU64::new(cycles_per_ns),
            served: UnsafeCell::new(served),
            is_polling: AtomicBool::new(false),
            is_noticed: AtomicBool::new(true),
            is_stuck: AtomicBool::new(false),
            has_passed: AtomicBool::new(false),
            is_owed: AtomicBool::new(false),
            poll_at_ns: AtomicU64::new(0),
            check_at_ns: AtomicU64::new(NEVER),
            paid_at_ns: AtomicU64::new(0),
            guests_events: AtomicU32::new(0),
            interrupted: [const { AtomicU64::new(0) }; 3],
        }
    }

    /// Lets the timer and the connected device interrupt, beginning with a poll.
    pub(crate) fn begin(&self) {
        let first = vcpus::first();
        self.ask_blocked_ns(first);
        vcpus::others().iter().for_each(|it| it.connect(&self.events));
        self.go_on(true);
    }

    fn go_on(&self, has_network: bool) {
        let is_free = self.apic.is_free(self.delivery.vector);
        vcpus::first().is_unusable.store(!is_free, Ordering::Relaxed);
        if is_free {
            self.apic.enable(self.delivery.vector);
        }
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
        self.arm(vcpus::first(), true);
    }

    /// Where the guest itself calls the profiler: follows it if it has written the gate of its
    /// events anew, or has loaded another table. Until then there were no ticks, and clients got no
    /// answer. With several vCPUs each may have its own table.
    pub(crate) fn follow_table(&'static self) {
        let vector = self.delivery.vector;
        if !vcpus::others().is_empty() || descriptors::is_intercepted(vector) {
            return;
        }
        let were_on = machine::disable_interrupts();
        // SAFETY: interrupts are off; the guest runs with this table.
        if unsafe { descriptors::intercept(vector) } == Ok(true) {
            machine::debug_line(
                "follows the guest, which has changed the interrupt gate of its events",
            );
            self.is_noticed.store(true, Ordering::Relaxed);
            self.arm(vcpus::first(), true);
        }
        if were_on {
            machine::enable_interrupts();
        }
    }

    /// The vector of the guest's events.
    pub(crate) fn vector(&self) -> u8 {
        self.delivery.vector
    }

    /// Sets the share of polls, in thousandths of a CPU, 1 to 1000.
    pub(crate) fn set_cpu_share(&self, permille: u32) {
        self.share_permille.store(permille, Ordering::Relaxed);
    }

    pub(crate) fn is_polling(&self) -> bool {
        self.is_polling.load(Ordering::Relaxed)
    }

    /// Connects the device again, by `reconnect`, which is told whether the domain is a new one,
    /// and says when it has forgotten the old one. After an error there is no network. Interrupts
    /// are off, and no poll is under way.
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

    /// Whether the domain is another one than at the last proof: by its number, or because its time
    /// began anew and the device's port is gone, as it is in every new domain.
    fn is_restored(&self) -> bool {
        self.domain_id() != self.domain.load(Ordering::Relaxed)
            || self.has_stepped_back() && self.port().is_some_and(|port| !self.is_ours(port))
    }

    /// Whether it is earlier than at the last proof. A starved host's clock steps back too, and
    /// more often than domains of one number follow each other.
    fn has_stepped_back(&self) -> bool {
        self.proof_at_ns.load(Ordering::Relaxed) > self.clock.now_ns() + PROOF_NS
    }

    /// What was to happen at times of a clock that has stepped back.
    fn follow_clock(&self) {
        let tick_at_ns = self.agent.deadline().unwrap_or(NEVER);
        vcpus::first().tick_at_ns.store(tick_at_ns, Ordering::Relaxed);
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

    /// The domain was restored from a save: what Xen knew of the profiler is gone. Sampling goes
    /// on.
    fn follow_restore(&self) {
        self.port.store(0, Ordering::Relaxed);
        self.is_new_domain.store(true, Ordering::Relaxed);
        self.domain.store(self.domain_id(), Ordering::Relaxed);
        self.put_off_proof();
        // Another host's processor counts at another rate.
        let cycles_per_ns = cycles_per_ns(&self.clock);
        self.cycles_per_ns.store(cycles_per_ns, Ordering::Relaxed);
        self.agent.resume();
        let first = vcpus::first();
        self.wake(first);
        self.ask_blocked_ns(first);
        vcpus::others().iter().for_each(|it| it.connect(&self.events));
        self.follow_clock();
        self.poll_at_ns.store(NEVER, Ordering::Relaxed);
        self.is_owed.store(false, Ordering::Relaxed);
    }

    fn on_interrupt(&self, vcpu: &'static Vcpu, saved: &mut Saved) -> Next {
        let by_apic = self.delivery.by_apic;
        let (is_timer, has_fired) = self.find_timer(vcpu);
        // What the profiler has not caused is the guest's, also if it no longer tells its events
        // where it did.
        let is_own = self.look() | has_fired;
        self.sample(vcpu, saved, false);
        let is_guests = !is_own || !is_timer && self.take_upcall(vcpu);
        if is_guests {
            // A guest that leaves its upcall pending while it computes must not keep polls off.
            let has_passed = self.has_passed.swap(true, Ordering::Relaxed);
            if !(is_own && by_apic && has_passed && self.is_past(self.next_poll_ns())) {
                self.is_owed.store(false, Ordering::Relaxed);
                self.guests_events.fetch_add(1, Ordering::Relaxed);
                if self.may_check() && self.check_at_ns.load(Ordering::Relaxed) == NEVER {
                    let check_at_ns = self.clock.now_ns() + CHECK_NS;
                    self.check_at_ns.store(check_at_ns, Ordering::Relaxed);
                }
                // A poll that is due begins with the timer's interrupt, which follows.
                self.pass_on(vcpu, saved, has_fired);
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
        self.leave(vcpu, saved, has_fired)
    }

    /// An interrupt of another vCPU than the first.
    fn on_interrupt_elsewhere(&self, vcpu: &'static Vcpu, saved: &mut Saved) -> Next {
        if !self.is_sampled(vcpu) {
            return Next::Guest;
        }
        let (is_timer, has_fired) = self.find_timer(vcpu);
        let is_own = self.take_kick(vcpu) | has_fired;
        let is_kicked = vcpu.is_kicked.swap(false, Ordering::SeqCst);
        self.sample(vcpu, saved, is_kicked);
        if !is_own || !is_timer && self.take_upcall(vcpu) {
            self.pass_on(vcpu, saved, has_fired);
            return Next::Guest;
        }
        if self.delivery.by_apic {
            self.apic.end_of_interrupt();
        }
        self.wait_again(vcpu, saved);
        self.arm(vcpu, has_fired);
        Next::Return
    }

    /// Whether the device may be looked at in a wait of the guest's.
    fn may_check(&self) -> bool {
        vcpus::others().is_empty() || self.agent.is_recording()
    }

    /// Whether another vCPU than the first is sampled. Its first event prepares it.
    fn is_sampled(&self, vcpu: &'static Vcpu) -> bool {
        if vcpu.is_ready.load(Ordering::Relaxed) {
            // In a restored domain it is not, until the first vCPU has found out.
            return !vcpu.has_moved(self.shared);
        }
        let is_sent = vcpu.kick_port().is_some_and(|it| self.events.is_pending(it));
        if !is_sent || vcpu.is_unusable.load(Ordering::Relaxed) {
            return false;
        }
        // The rest is not done anew with each event.
        vcpu.is_unusable.store(true, Ordering::Relaxed);
        if !vcpu.register_time(self.events.hypercall()) || vcpu.has_moved(self.shared) {
            machine::debug_line("a vCPU is not sampled: the guest has moved its vcpu_info");
            return false;
        }
        let vector = self.delivery.vector;
        let Ok(apic) = self.apic.of_another_vcpu(vector) else {
            machine::debug_line("a vCPU is not sampled: its local APIC cannot be used");
            return false;
        };
        apic.enable(vector);
        vcpu.is_unusable.store(false, Ordering::Relaxed);
        self.ask_blocked_ns(vcpu);
        vcpu.is_ready.store(true, Ordering::Release);
        // A wait of the old domain: interrupts since the restore were not seen.
        self.wake(vcpu);
        true
    }

    /// Takes the event by which the first vCPU interrupts another; returns whether there was one.
    fn take_kick(&self, vcpu: &Vcpu) -> bool {
        let Some(port) = vcpu.kick_port() else {
            return false;
        };
        if self.events.is_masked(port) {
            // As in `look`.
            let _ = self.events.unmask(port);
        }
        self.events.is_pending(port) && self.events.take_pending(port)
    }

    /// Whether the interrupt is known to be the timer's, and whether the timer has fired. If the
    /// guest uses the timer, the profiler does so no more.
    fn find_timer(&self, vcpu: &Vcpu) -> (bool, bool) {
        let vector = self.delivery.vector;
        let is_timer = !self.delivery.by_apic && self.apic.is_in_service(vector);
        if is_timer {
            self.apic.end_of_interrupt();
        } else if !vcpu.is_unusable.load(Ordering::Relaxed) && !self.apic.is_ours(vector) {
            vcpu.is_unusable.store(true, Ordering::Relaxed);
            machine::debug_line(
                "no more ticks, nor answers to clients: the guest uses the local APIC's timer \
                 itself now",
            );
        }
        let armed_ns = vcpu.armed_ns.load(Ordering::Relaxed);
        let has_fired = is_timer || self.is_past(armed_ns.saturating_sub(EARLY_NS));
        (is_timer, has_fired)
    }

    /// Takes a tick that is due, or any if the agent is to be looked at.
    fn sample(&self, vcpu: &'static Vcpu, saved: &Saved, is_kicked: bool) {
        self.find_wait(vcpu, saved);
        if is_kicked || self.is_past(vcpu.tick_at_ns.load(Ordering::Relaxed)) {
            let next_ns = self.agent.on_tick(Some(&saved.registers()));
            vcpu.tick_at_ns.store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
            if !vcpu.is_block.load(Ordering::Relaxed) {
                self.keep_blocked_ns(vcpu);
            }
        }
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
            vcpus::repeat_kicks(&self.events);
            // SAFETY: interrupts are off; the guest runs with this table.
            unsafe { descriptors::intercept_faults() };
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
            let is_upcall_pending =
                vcpus::first().info(self.shared).evtchn_upcall_pending.load(Ordering::SeqCst) != 0;
            let next_ns = match is_upcall_pending {
                true => self.clock.now_ns() + CHECK_NS,
                false => NEVER,
            };
            self.check_at_ns.store(next_ns, Ordering::Relaxed);
        }
        is_pending
    }

    /// Before the guest's handler.
    fn pass_on(&self, vcpu: &'static Vcpu, saved: &mut Saved, has_fired: bool) {
        saved.skip_wait(vcpu.waits_at.swap(0, Ordering::Relaxed));
        self.wake(vcpu);
        self.arm(vcpu, has_fired);
    }

    /// Ends an interrupt that the guest's handler does not see: begins a poll that is due, else
    /// returns to the interrupted code.
    fn leave(&self, vcpu: &'static Vcpu, saved: &mut Saved, has_fired: bool) -> Next {
        if self.is_past(self.next_poll_ns()) {
            self.is_polling.store(true, Ordering::Relaxed);
            self.has_passed.store(false, Ordering::Relaxed);
            // A poll of a guest that waits is running time, and not its idle function's.
            self.end_block(vcpu);
            let interrupted = match vcpu.is_waiting.load(Ordering::Relaxed) {
                true => [0; 3],
                false => [saved.rip, saved.rsp, saved.rbp],
            };
            for (word, value) in self.interrupted.iter().zip(interrupted) {
                word.store(value, Ordering::Relaxed);
            }
            // Ticks interrupt the poll.
            self.arm(vcpu, has_fired);
            return Next::Poll;
        }
        if !self.is_polling() {
            self.wait_again(vcpu, saved);
        }
        self.arm(vcpu, has_fired);
        Next::Return
    }

    fn on_poll(&self, saved: &mut Saved) {
        let vcpu = vcpus::first();
        // A tick that has become due since the interrupt fires as soon as interrupts are on.
        let _own_work = self.agent.own_work();
        let events = self.guests_events.load(Ordering::Relaxed);
        let waits_at = vcpu.waits_at.load(Ordering::Relaxed);
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
        self.keep_blocked_ns(vcpu);
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
        vcpu.tick_at_ns.store(tick_at_ns, Ordering::Relaxed);
        vcpus::repeat_kicks(&self.events);
        self.is_polling.store(false, Ordering::Relaxed);
        if events == self.guests_events.load(Ordering::Relaxed) {
            self.wait_again(vcpu, saved);
        } else {
            // The event ends the wait also where its call was about to be executed again.
            saved.skip_wait(waits_at);
            self.wake(vcpu);
        }
        self.arm(vcpu, true);
    }

    /// Charges the running time since `began_ns`, system time and running time, to the share of
    /// polls.
    fn pay(&self, (began_ns, began_running_ns): (u64, u64)) {
        let spent_ns = self.running_ns().saturating_sub(began_running_ns);
        let share_permille = u64::from(self.share_permille.load(Ordering::Relaxed));
        let price_ns = spent_ns.saturating_mul(1000) / share_permille;
        let from_ns = self.paid_at_ns.load(Ordering::Relaxed).max(began_ns);
        self.paid_at_ns.store(from_ns.saturating_add(price_ns), Ordering::Relaxed);
    }

    /// Asks Xen for the blocked time, which the next `find_wait` compares with its own.
    fn ask_blocked_ns(&self, vcpu: &Vcpu) {
        let blocked_ns = self.agent.platform().blocked_ns(vcpu.number());
        vcpu.blocked_ns.store(blocked_ns, Ordering::Relaxed);
    }

    /// Keeps the blocked time for `find_wait`, where a tick or a poll has just read the vCPU's
    /// times.
    fn keep_blocked_ns(&self, vcpu: &Vcpu) {
        let blocked_ns = self.agent.platform().last_blocked_ns(vcpu.number());
        vcpu.blocked_ns.store(blocked_ns, Ordering::Relaxed);
    }

    /// Finds out by Xen's count of blocked time whether the interrupted code waits, and reports the
    /// wait to the agent unless that is done already.
    fn find_wait(&self, vcpu: &'static Vcpu, saved: &Saved) {
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
    fn wait_again(&self, vcpu: &'static Vcpu, saved: &mut Saved) {
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
    fn wake(&self, vcpu: &'static Vcpu) {
        vcpu.is_waiting.store(false, Ordering::Relaxed);
        self.end_block(vcpu);
    }

    /// Tells the agent the end of its block, if there is one. Xen is asked for the blocked time
    /// then.
    fn end_block(&self, vcpu: &'static Vcpu) {
        if vcpu.is_block.swap(false, Ordering::Relaxed) {
            self.ask_blocked_ns(vcpu);
            let next_ns = self.agent.on_wake();
            vcpu.tick_at_ns.store(next_ns.unwrap_or(NEVER), Ordering::Relaxed);
        }
    }

    /// Whether an event of the guest's own is pending. If not, the upcall is acknowledged, so that
    /// the guest's handler need not run.
    fn take_upcall(&self, vcpu: &Vcpu) -> bool {
        let vcpu = vcpu.info(self.shared);
        if vcpu.evtchn_upcall_pending.load(Ordering::SeqCst) == 0 {
            return false;
        }
        // The order of Xen's own demultiplexing: a new event sets the flag again.
        vcpu.evtchn_upcall_pending.store(0, Ordering::SeqCst);
        let words = vcpu.evtchn_pending_sel.swap(0, Ordering::SeqCst);
        let all = self.shared.evtchn_pending.iter().zip(&self.shared.evtchn_mask);
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

    /// Arms the timer for the next tick or poll, unless it is armed for that time already and has
    /// not fired.
    fn arm(&self, vcpu: &'static Vcpu, has_fired: bool) {
        if vcpu.is_unusable.load(Ordering::Relaxed) {
            return;
        }
        let tick_at_ns = vcpu.tick_at_ns.load(Ordering::Relaxed);
        let next_ns = if vcpu.is_first() {
            let is_owed = !self.is_polling() && self.is_owed.load(Ordering::Relaxed);
            let poll_at_ns = if is_owed { 0 } else { self.next_poll_ns() };
            poll_at_ns.min(self.check_at_ns.load(Ordering::Relaxed))
        } else {
            NEVER
        };
        let now_ns = self.clock.now_ns();
        let at_ns = match next_ns.min(tick_at_ns) {
            NEVER => NEVER,
            at_ns => at_ns.min(now_ns + LONGEST_NS),
        };
        if vcpu.armed_ns.swap(at_ns, Ordering::Relaxed) == at_ns && !has_fired {
            return;
        }
        let delay_ns = (at_ns != NEVER).then(|| at_ns.saturating_sub(now_ns));
        self.apic.arm(delay_ns, |delay_ns| {
            let cycles_per_ns = self.cycles_per_ns.load(Ordering::Relaxed);
            let cycles = (u128::from(delay_ns) * u128::from(cycles_per_ns)) >> 32;
            read_counter().wrapping_add(cycles as u64)
        });
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
