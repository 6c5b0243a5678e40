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
//! # The first vCPU's interrupts
//!
//! | found | the guest's handler | a poll that is due |
//! |---|---|---|
//! | neither the timer nor the device | runs | follows by the timer |
//! | the timer, by a vector that is in service | not: the guest's event interrupts by itself | begins |
//! | the timer or the device, no event of the guest's | not | begins |
//! | the same, and an event of the guest's | runs: it *has passed* | follows by the timer |
//! | the same, by the local APIC, when one has passed already | is *owed*, after the poll | begins |
//!
//! The last row keeps clients connected to a guest that computes and leaves its upcall pending.
//!
//! | state | from | to |
//! |---|---|---|
//! | `is_noticed`: poll at once | an event of the device, a start, a restore | a poll begins |
//! | `is_stuck`: do not for what was received | a poll could not take it | a poll has |
//! | `has_passed` | the guest's handler runs | a poll begins, or no event of the guest's is pending |
//! | `is_owed`: interrupt at once | a poll begins in the handler's place | the next interrupt |
//! | `check_at_ns`: look at the device | [`CHECK_NS`] after an event of the guest's | it was looked at, and no upcall is pending |
//! | `is_waiting`, `is_block`, `waits_at` | see [`wait`] | |
//!
//! The guest may look for its events outside of upcalls, and takes those of the device then, which
//! it does not know, or masks its port. So each interrupt looks at the device itself, and
//! [`CHECK_NS`] after an event of the guest's own there is one; again and again while an upcall is
//! pending, since Xen raises no other.
#![allow(unsafe_code, reason = "the state is reached from interrupts")]

#[cfg(feature = "trace")]
mod breakpoint;
mod device;
mod entry;
mod poll;
mod timer;
mod wait;

use core::cell::UnsafeCell;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};

use unikprof_agent::{Continuation, Registers};
use xen_sys_lite::HypercallInstruction;
use xen_sys_lite::abi::xen::SharedInfo;
use xen_sys_lite::clock::Clock;
use xen_sys_lite::cpuid::XenLeaves;
use xen_sys_lite::events::{Binding, EventChannels, Port};

use crate::delivery::Delivery;
use crate::machine;
use crate::machine::apic::Apic;
use crate::machine::descriptors;
use crate::machine::own_stacks;
use crate::served::{Served, ServedAgent};
use crate::vcpus::{self, NEVER, Vcpu};
use entry::Saved;

/// After the guest has handled an event, the device is looked at within this time.
const CHECK_NS: u64 = 20_000_000;

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
    if !own_stacks::is_on_poll_stack(sp) {
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
        let cycles_per_ns = timer::cycles_per_ns(&clock);
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
}
